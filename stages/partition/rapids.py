"""Communities of a graph by RAPIDS cuGraph 26.10, on one GPU or, through Dask, on all of this machine.

Modules and arguments follow the files of the 26.10 wheels; `tests/contracts/rapids.py` checks them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..rapids import gpu_cluster

Algorithm = Literal["louvain", "leiden"]
Find = Callable[[Algorithm, float, int], tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]]
"""(algorithm, resolution, seed) -> nodes, each once, and the community of each. Nodes without a neighbour may be
absent."""
Columns = dict[str, npt.NDArray[Any]]

NAMES = {"source": "low", "destination": "high", "edge_attr": "weight"}
SLICES_PER_GPU = 2
"""Number of slices that `Graph.from_dask_cudf_edgelist` makes."""


@contextmanager
def communities(
    low: npt.NDArray[np.integer], high: npt.NDArray[np.integer], weight: npt.NDArray[np.float32], gpus: int
) -> Iterator[Find]:
    """Context with an undirected graph on `gpus` GPUs, in which communities can be found.

    Args:
        low: int32 or int64 [n], the smaller end of each pair of neighbours, each pair once.
        high: of the same dtype, the larger end.
        weight: float32 [n].
        gpus: from `stages.rapids.count_gpus`. With more than one, a cluster of this machine with a worker for each is
            started and ended.
    """
    columns = {"low": low, "high": high, "weight": weight}
    with _on_one_gpu(columns) if gpus == 1 else _on_several(columns, gpus) as find:
        yield find


@contextmanager
def _on_one_gpu(columns: Columns) -> Iterator[Find]:
    import cugraph

    graph = cugraph.Graph(directed=False)
    graph.from_cudf_edgelist(_frame(columns), **NAMES)
    yield lambda algorithm, resolution, seed: _on_host(_called(cugraph, graph, algorithm, resolution, seed))


@contextmanager
def _on_several(columns: Columns, gpus: int) -> Iterator[Find]:
    with gpu_cluster(gpus) as client:
        # After the cluster: these set up the first GPU for this process, which must not happen before workers start.
        import cugraph
        import cugraph.dask as on_all
        import cugraph.dask.comms.comms as comms
        import dask_cudf

        comms.initialize(p2p=True)
        try:
            cuts = [len(columns["low"]) * i // (gpus * SLICES_PER_GPU) for i in range(gpus * SLICES_PER_GPU + 1)]
            slices: Any = client.scatter([{k: v[a:b] for k, v in columns.items()} for a, b in zip(cuts, cuts[1:])])
            empty = _frame({k: v[:0] for k, v in columns.items()})
            graph = cugraph.Graph(directed=False)
            graph.from_dask_cudf_edgelist(
                dask_cudf.from_delayed(
                    client.map(_frame, slices, key="partition-edges"), meta=empty, verify_meta=False
                ),
                **NAMES,
            )
            yield lambda algorithm, resolution, seed: _on_host(
                _called(on_all, graph, algorithm, resolution, seed).compute()
            )
        finally:
            comms.destroy()


def _frame(columns: Columns) -> Any:
    import cudf

    return cudf.DataFrame(columns)


def _called(module: Any, graph: Any, algorithm: Algorithm, resolution: float, seed: int) -> Any:
    """Arguments of the algorithm: Louvain takes no seed."""
    if algorithm == "louvain":
        return module.louvain(graph, resolution=resolution)[0]
    return module.leiden(graph, resolution=resolution, random_state=seed)[0]


def _on_host(frame: Any) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    return frame["vertex"].to_numpy(), frame["partition"].to_numpy()
