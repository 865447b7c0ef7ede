"""Stand-ins for RAPIDS 26.10 where there is none, for as long as a test: `install` puts them where imports find them.

Each has the name and the parameters of the real function or class, so that an argument which that does not take is a TypeError here
too; `rapids_signatures.json`, read from the wheels, says which those are. What they do is simple and right, on the processor: arrays of
"the device" refuse to be taken for NumPy's, as CuPy's do.
"""

import importlib.machinery
import sys
import types
from typing import Any

import networkx as nx
import numpy as np
import pytest
from distributed import LocalCluster, default_client


class NoDefault:
    def __repr__(self) -> str:
        return "no_default"


no_default = NoDefault()


class CUDARuntimeError(RuntimeError):
    """cupy.cuda.runtime's."""


class Series:
    """cudf.Series: a column."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.dtype = self.values.dtype

    def to_numpy(self, dtype=None, copy=True, na_value=no_default):
        return np.array(self.values, dtype)


class DataFrame:
    """cudf.DataFrame: columns of one length."""

    def __init__(self, data=None, index=None, columns=None, dtype=None, copy=None, nan_as_null=no_default):
        self.data = {name: Series(column) for name, column in data.items()}
        assert len({len(c.values) for c in self.data.values()}) == 1

    def __getitem__(self, name: str) -> Series:
        return self.data[name]


class DaskFrame:
    """dask_cudf.DataFrame: pieces on workers."""

    def __init__(self, pieces: list[Any], meta: DataFrame) -> None:
        self.pieces, self.meta = pieces, meta

    def compute(self) -> DataFrame:
        frames = [p.result() if hasattr(p, "result") else p for p in self.pieces]
        assert all({k: s.dtype for k, s in f.data.items()} == {k: s.dtype for k, s in self.meta.data.items()} for f in frames)
        return DataFrame({k: np.concatenate([f[k].values for f in frames]) for k in self.meta.data})


def from_delayed(dfs, meta=None, divisions=None, prefix=None, verify_meta=True):
    assert len(dfs)
    return DaskFrame(list(dfs), meta)


class Graph:
    """cugraph.Graph."""

    def __init__(self, m_graph=None, directed=False):
        self.directed, self.edges, self.distributed = directed, None, False

    def is_directed(self) -> bool:
        return self.directed

    def from_cudf_edgelist(
        self,
        input_df,
        source="source",
        destination="destination",
        edge_attr=None,
        weight=None,
        edge_id=None,
        edge_type=None,
        renumber=True,
        store_transposed=False,
        symmetrize=None,
        vertices=None,
    ):
        assert isinstance(input_df, DataFrame)
        self._take(input_df, source, destination, edge_attr)

    def from_dask_cudf_edgelist(
        self,
        input_ddf,
        source="source",
        destination="destination",
        edge_attr=None,
        weight=None,
        edge_id=None,
        edge_type=None,
        renumber=True,
        store_transposed=False,
    ):
        assert isinstance(input_ddf, DaskFrame)
        assert Comms.initialized, "the real one asks Comms for the workers"
        self.distributed = True
        self._take(input_ddf.compute(), source, destination, edge_attr)

    def _take(self, frame: DataFrame, source: str, destination: str, weight: str) -> None:
        assert self.edges is None, "Graph is already initialized"
        a, b, w = (frame[name].values for name in (source, destination, weight))
        assert a.dtype == b.dtype and a.dtype in (np.int32, np.int64) and w.dtype in (np.float32, np.float64)
        self.edges = nx.Graph()
        self.edges.add_weighted_edges_from(zip(a.tolist(), b.tolist(), w.tolist()))
        assert self.edges.number_of_edges() == len(a), "an edge is given twice: the real one would drop or merge it"


class Comms:
    """The state of cugraph.dask.comms.comms."""

    initialized = False


def initialize(comms=None, p2p=False, prows=None, pcols=None, partition_type=1):
    default_client()
    assert not Comms.initialized
    Comms.initialized = True


def destroy():
    Comms.initialized = False


def found(graph: Graph, resolution: float, threshold: float, seed: int | None) -> DataFrame:
    assert isinstance(graph, Graph)
    if graph.is_directed():
        raise ValueError("input graph must be undirected")
    sets = nx.community.louvain_communities(graph.edges, resolution=resolution, threshold=threshold, seed=seed)
    sizes = [len(s) for s in sets]
    vertices = np.array([v for s in sets for v in s], np.int32)
    return DataFrame({"vertex": vertices, "partition": np.repeat(np.arange(len(sets), dtype=np.int32), sizes)})


def louvain(G, max_level=None, max_iter=None, resolution=1.0, threshold=1e-7):
    assert not G.distributed
    return found(G, resolution, threshold, 0), 0.5


def leiden(G, max_iter=100, resolution=1.0, random_state=None, theta=1.0):
    assert not G.distributed
    return found(G, resolution, 1e-7, random_state), 0.5


def halves(frame: DataFrame) -> DaskFrame:
    cut = len(frame["vertex"].values) // 2
    pieces = [DataFrame({k: c.values[at] for k, c in frame.data.items()}) for at in (slice(cut), slice(cut, None))]
    return DaskFrame(pieces, frame)


def dask_louvain(input_graph, max_level=None, max_iter=None, resolution=1.0, threshold=1e-7):
    assert input_graph.distributed and Comms.initialized
    return halves(found(input_graph, resolution, threshold, 0)), 0.5


def dask_leiden(input_graph, max_iter=100, resolution=1.0, random_state=None, theta=1.0):
    assert input_graph.distributed and Comms.initialized
    return halves(found(input_graph, resolution, 1e-7, random_state)), 0.5


class LocalCUDACluster(LocalCluster):
    """dask_cuda's, with threads for workers."""

    def __init__(
        self,
        CUDA_VISIBLE_DEVICES=None,
        n_workers=None,
        threads_per_worker=1,
        memory_limit="auto",
        device_memory_limit="default",
        enable_cudf_spill=False,
        cudf_spill_stats=0,
        local_directory=None,
        protocol=None,
        enable_tcp_over_ucx=None,
        enable_infiniband=None,
        enable_nvlink=None,
        enable_rdmacm=None,
        rmm_pool_size=None,
        rmm_maximum_pool_size=None,
        rmm_managed_memory=False,
        rmm_async=False,
        rmm_allocator_external_lib_list=None,
        rmm_release_threshold=None,
        rmm_log_directory=None,
        rmm_track_allocations=False,
        log_spilling=False,
        pre_import=None,
        **kwargs,
    ):
        super().__init__(n_workers=n_workers, threads_per_worker=threads_per_worker, processes=False, **kwargs)


FAKES: dict[str, Any] = {
    "cudf.DataFrame": DataFrame,
    "cudf.Series.to_numpy": Series.to_numpy,
    "dask_cudf.from_delayed": from_delayed,
    "cugraph.Graph": Graph,
    "cugraph.Graph.from_cudf_edgelist": Graph.from_cudf_edgelist,
    "cugraph.Graph.from_dask_cudf_edgelist": Graph.from_dask_cudf_edgelist,
    "cugraph.louvain": louvain,
    "cugraph.leiden": leiden,
    "cugraph.dask.louvain": dask_louvain,
    "cugraph.dask.leiden": dask_leiden,
    "cugraph.dask.comms.comms.initialize": initialize,
    "cugraph.dask.comms.comms.destroy": destroy,
    "dask_cuda.LocalCUDACluster": LocalCUDACluster,
}
"""By their real names: functions, classes (whose parameters are those of making one), and methods."""


def install(monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> None:
    """Make imports of RAPIDS and CuPy find the stand-ins, on a machine that seems to have so many GPUs; 0 is a machine without a driver."""

    def count() -> int:
        if not gpus:
            raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")
        return gpus

    modules: dict[str, types.ModuleType] = {}

    def module(name: str) -> types.ModuleType:
        if name not in modules:
            made = modules[name] = types.ModuleType(name)
            made.__spec__ = importlib.machinery.ModuleSpec(name, None)
            monkeypatch.setitem(sys.modules, name, made)
            outer, _, last = name.rpartition(".")
            if outer:
                setattr(module(outer), last, made)
        return modules[name]

    for name in ("pylibcugraph", "raft_dask"):
        module(name)
    monkeypatch.setattr(Comms, "initialized", False)
    for name, fake in {**FAKES, "cupy.cuda.runtime.getDeviceCount": count, "cupy.cuda.runtime.CUDARuntimeError": CUDARuntimeError}.items():
        home, _, last = name.rpartition(".")
        if home.rpartition(".")[2][0].islower():
            setattr(module(home), last, fake)
