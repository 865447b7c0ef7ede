"""Runs everything that needs RAPIDS 26.10 on this machine's GPUs, and reports for each check if it passed.

    pip install '.[gpu]'
    python benchmarks/rapids.py

Nobody has done so yet: tests stand in for RAPIDS by fakes with the names and parameters of its wheels. With several
GPUs edges, clusters and samples are those of all of them; ``CUDA_VISIBLE_DEVICES=0`` before the command tries the ways
of one. Exit code 1: something is wrong; 2: there is no GPU, or no RAPIDS.
"""

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.stats import chi2

import millrace as mr
from millrace.pipeline.datasets import ReadOptions
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.open_queue import open_queue
from millrace.pipeline.telemetry.events import silent
from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.draws import NeighborDraws
from millrace.stages.kernels.sampling.rapids import neighbor as sample_rapids
from millrace.stages.rapids import NEEDED, count_gpus
from millrace.storage.graph import from_edges

SMALL = {
    "kernel": "cugraph",
    "epochs": 2,
    "fanout": [5, 3],
    "layers": 2,
    "hidden": 16,
    "batch_size": 64,
    "queue": {"bulk_size": 4},
}


SYSTEMS = {
    "bulk": {"bulk": {"topology": "partitioned"}},
    "grappa": {"grappa": {"rotation": "none"}},
    "sar": {},
    "retexo": {},
}


def edges_of_parquet(folder: Path, nodes: int) -> str:
    """A graph that GPUs read is the processor's, bit for bit."""
    rng = np.random.default_rng(0)
    count = 20 * nodes
    src, dst = rng.integers(0, nodes, count), np.minimum(rng.geometric(20 / nodes, count), nodes) - 1
    for i in range(3):
        at = slice(i * count // 3, (i + 1) * count // 3)
        table = pa.table({"src": 3 * src[at], "dst": 3 * dst[at], "weight": rng.exponential(size=len(src[at]))})
        pq.write_table(table, folder / f"edges-{i}.parquet", row_group_size=max(1, count // 10))
    pq.write_table(pa.table({"id": 3 * np.arange(nodes), "label": rng.integers(0, 4, nodes)}), folder / "nodes.parquet")
    for direction in ("directed", "reverse", "undirected"):
        here, there = (
            mr.open_dataset(
                folder,
                options=ReadOptions(direction=direction, missing_ids="compact", self_loops="drop", edges_on=where),
            ).graph
            for where in ("cpu", "gpu")
        )
        for name in ("indptr", "indices", "edge_weight"):
            assert getattr(here, name).tobytes() == getattr(there, name).tobytes(), f"{name} differs ({direction})"
    return f"{count:,} edges"


def clusters(_: Path, nodes: int) -> str:
    """Leiden and Louvain give every node a part, parts are even, and they cut far fewer edges than chance."""
    data, cuts = mr.open_dataset(f"sbm:nodes={nodes},classes=16,degree=16"), []
    for method in ("louvain", "leiden"):
        quality = mr.partition_quality(
            data.graph, mr.partitioner(method).assign(data.graph, 4, seed=0), data.split.train
        )
        cuts.append(quality.cut_share)
        assert sum(p.nodes for p in quality.parts) == nodes
        assert quality.cut_share < 0.6, f"{method} cuts {quality.cut_share:.0%} of the edges, chance 75%"
    return f"edges cut: {cuts[0]:.1%}, {cuts[1]:.1%}"


def drawn_alike(_: Path, nodes: int) -> str:
    """Whole neighbourhoods are the processor's; of 7 in-neighbours 3 are drawn, all with the same probability."""
    graph = mr.open_dataset(f"sbm:nodes={nodes},classes=4,degree=12").graph
    asked = BulkRequest(0, 0, 0, 0, (np.arange(nodes)[::7], np.arange(nodes)[3::7]))
    for a, b in zip(
        *(k.neighbor(graph, NeighborDraws(asked.seeds, asked.keys(2), (-1, -1))) for k in (cpu, sample_rapids)),
        strict=True,
    ):
        assert np.array_equal(a.nodes, b.nodes) and a.node_ends == b.node_ends
        assert np.array_equal(a.indptr, b.indptr)
    star = from_edges(nodes + np.arange(7 * nodes), np.repeat(np.arange(nodes), 7), 8 * nodes)
    seeds = BulkRequest(1, 0, 0, 0, (np.arange(nodes),))
    drawn = sample_rapids.neighbor(star, NeighborDraws(seeds.seeds, seeds.keys(1), (3,), keep_positions=True))[0]
    assert (
        drawn.positions is not None
        and (np.diff(drawn.indptr) == 3).all()
        and len(np.unique(drawn.positions)) == 3 * nodes
    )
    counts = np.bincount(drawn.positions % 7, minlength=7)
    p = float(chi2.sf(((counts - 3 * nodes / 7) ** 2 / (3 * nodes / 7)).sum() * 6 / 4, 6))
    assert p > 1e-4, f"draws are not uniform: {counts.tolist()}"
    return f"chi-square p = {p:.3f}"


def trained(folder: Path, nodes: int) -> str:
    """A run with ``kernel = "cugraph"`` learns what one by the compiled kernels learns."""
    data = f"sbm:nodes={nodes},classes=4,features=8,degree=12,seed=1"
    got = [
        mr.run(data, out=folder / k, **{**SMALL, "kernel": k, "epochs": 5}).test_accuracy for k in ("cpu", "cugraph")
    ]
    assert abs(got[0] - got[1]) < 0.1, f"accuracy {got[1]:.3f}, by the compiled kernels {got[0]:.3f}"
    return f"accuracy {got[1]:.3f}, by the compiled kernels {got[0]:.3f}"


def stored(folder: Path, nodes: int) -> str:
    """``millrace sample`` on all GPUs: true edges, of every seed, in the right number."""
    spec = f"sbm:nodes={nodes},classes=4,degree=12,seed=1"
    data = mr.open_dataset(spec)
    job = configure({}, dataset=spec, **SMALL)
    precompute(job, folder / "store", emit=silent, stop=lambda: False)
    queue, seeds = open_queue(folder / "store"), 0
    for minibatch in queue:
        minibatch.check()
        seeds += len(minibatch.seeds)
        block = minibatch.blocks[-1]
        degree = data.graph.in_degree[block.src[: block.num_dst]]
        assert np.array_equal(np.diff(block.indptr), np.minimum(degree, SMALL["fanout"][0]))
        for row in range(block.num_dst):
            at = data.graph.indptr[block.src[row]]
            drawn = block.src[block.indices[block.indptr[row] : block.indptr[row + 1]]]
            assert np.isin(drawn, data.graph.indices[at : at + degree[row]]).all() and len(set(drawn.tolist())) == len(
                drawn
            )
    queue.close()
    assert seeds == SMALL["epochs"] * len(data.split.train)
    return f"{seeds:,} seeds"


def fed(folder: Path, nodes: int) -> str:
    """Train every system on parts by Leiden, on two ranks, which see their own parts alone under grappa; each learns
    more than chance."""
    data, found = f"sbm:nodes={nodes},classes=4,features=8,degree=12,seed=1", []
    for name, options in SYSTEMS.items():
        config = {**options, "system": name, "dataset": data, "ranks": 2, "partition": {"method": "leiden"}}
        result = mr.run(config=config, out=folder / name, verbose=False, hidden=16, layers=2, epochs=10, lr=0.01)
        assert (result.test_accuracy or 0) > 0.35, f"{name}: accuracy {result.test_accuracy}, chance 0.25"
        found.append(f"{name} {result.test_accuracy:.3f}")
    return "accuracy " + ", ".join(found)


THINGS: tuple[Callable[[Path, int], str], ...] = (edges_of_parquet, clusters, drawn_alike, trained, stored, fed)


def main(nodes: int = 20_000) -> int:
    """Try each thing on graphs of `nodes` nodes; the exit code."""
    try:
        print(f"{count_gpus('this check', 'the tests', NEEDED)} GPU(s)")
    except mr.InputError as e:
        print(f"benchmarks/rapids.py: {e}")
        return e.exit_code
    failed = 0
    for thing in THINGS:
        start = time.perf_counter()
        with TemporaryDirectory() as folder:
            try:
                print(
                    f"ok      {thing.__name__}: {thing(Path(folder), nodes)} ({time.perf_counter() - start:.1f} s)",
                    flush=True,
                )
            except Exception:
                failed += 1
                print(f"FAILED  {thing.__name__}: {thing.__doc__}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
