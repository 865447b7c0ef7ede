"""Stand-ins for RAPIDS 26.10 where there is none, for as long as a test: `install` puts them where imports find them.

Each has the name and the parameters of the real function or class, so that an argument which that does not take is a TypeError here
too; `rapids_signatures.json`, read from the wheels, says which those are. What they do is simple and right, on the processor: arrays of
"the device" refuse to be taken for NumPy's, as CuPy's do.
"""

import importlib.machinery
import os
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
        os.environ["RAPIDS_NO_INITIALIZE"] = "True"  # as the real one does
        super().__init__(n_workers=n_workers, threads_per_worker=threads_per_worker, processes=False, **kwargs)


class DeviceArray:
    """cupy.ndarray: to be fetched by `get`, and by nothing else."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)
        self.dtype = self.values.dtype

    def __array__(self, *args: Any, **kwargs: Any):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __len__(self) -> int:
        return len(self.values)

    def get(self, stream=None, order="C", out=None, blocking=True):
        return self.values.copy()


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    return DeviceArray(np.asarray(a, dtype))


class ResourceHandle:
    def __init__(self, handle=None):
        pass


class GraphProperties:
    def __init__(self, is_symmetric=False, is_multigraph=False):
        self.is_symmetric, self.is_multigraph = is_symmetric, is_multigraph


class SGGraph:
    """pylibcugraph's, of edges from the first array to the second."""

    def __init__(
        self,
        resource_handle,
        graph_properties,
        src_or_offset_array,
        dst_or_index_array,
        weight_array=None,
        store_transposed=False,
        renumber=False,
        do_expensive_check=False,
        edge_id_array=None,
        edge_type_array=None,
        edge_start_time_array=None,
        edge_end_time_array=None,
        input_array_format="COO",
        vertices_array=None,
        drop_self_loops=False,
        drop_multi_edges=False,
        symmetrize=False,
    ):
        assert isinstance(resource_handle, ResourceHandle) and isinstance(graph_properties, GraphProperties)
        assert input_array_format == "COO" and not store_transposed
        arrays = [src_or_offset_array, dst_or_index_array, weight_array, edge_id_array, edge_type_array, vertices_array]
        assert all(a is None or isinstance(a, DeviceArray) for a in arrays)
        assert (edge_id_array is None) == (edge_type_array is None)
        assert len({a.dtype for a in (src_or_offset_array, dst_or_index_array, vertices_array, edge_id_array) if a is not None}) == 1
        self.src, self.dst, self.weight, self.edge_id, self.edge_type, self.vertices = (None if a is None else a.values for a in arrays)
        self.edges_of: dict[int, np.ndarray] = {int(v): np.flatnonzero(self.src == v) for v in np.unique(self.src)}


def neighbor_sample(
    resource_handle,
    input_graph,
    start_vertex_list,
    h_fan_out,
    *,
    starting_vertex_start_times=None,
    starting_vertex_end_times=None,
    starting_vertex_label_offsets=None,
    vertex_type_offsets=None,
    num_edge_types=1,
    with_replacement,
    do_expensive_check,
    prior_sources_behavior=None,
    deduplicate_sources=False,
    disjoint_sampling=False,
    return_hops=False,
    renumber=False,
    retain_seeds=False,
    compression="COO",
    compress_per_hop=False,
    random_state=None,
    temporal_sampling_comparison=None,
    use_edge_weights_as_biases=False,
    neighbor_selection="random",
    fixed_window=False,
):
    assert isinstance(resource_handle, ResourceHandle) and isinstance(input_graph, SGGraph)
    assert isinstance(start_vertex_list, DeviceArray) and start_vertex_list.dtype == input_graph.src.dtype
    assert isinstance(starting_vertex_label_offsets, DeviceArray) and starting_vertex_label_offsets.dtype == np.int64
    assert isinstance(h_fan_out, np.ndarray) and h_fan_out.dtype == np.int32
    assert prior_sources_behavior in ("carryover", "exclude") and deduplicate_sources and return_hops
    assert compression == "COO" and not renumber and not retain_seeds
    g, cuts = input_graph, starting_vertex_label_offsets.values
    if cuts[-1] != len(start_vertex_list):
        raise ValueError("'starting_vertex_label_offsets' and 'start_vertex_list' must be proportional")
    rng = np.random.default_rng(random_state)
    edges: list[int] = []
    ends, batch = [0], []
    for label, (a, b) in enumerate(zip(cuts, cuts[1:])):
        frontier = known = set(start_vertex_list.values[a:b].tolist())
        for fanout in h_fan_out:
            drawn: list[int] = []
            for v in rng.permutation(sorted(frontier)):
                out = g.edges_of.get(int(v), np.empty(0, np.int64))
                p = g.weight[out] / g.weight[out].sum() if use_edge_weights_as_biases and len(out) and g.weight[out].any() else None
                if use_edge_weights_as_biases:
                    out = out if p is not None else out[:0]
                possible = len(out) if p is None else int((p > 0).sum())
                if fanout >= 0 and len(out):
                    out = rng.choice(out, fanout if with_replacement else min(fanout, possible), with_replacement, p)
                drawn += out.tolist()
            edges += drawn
            batch += [label] * len(drawn)
            ends.append(len(edges))
            reached = set(g.dst[drawn].tolist())
            frontier = reached - known if prior_sources_behavior == "exclude" else reached | frontier
            known = known | reached
    at = np.array(edges, np.int64)
    found = {
        "majors": g.src[at],
        "minors": g.dst[at],
        "weight": None if g.weight is None else g.weight[at],
        "edge_id": None if g.edge_id is None else g.edge_id[at],
        "edge_type": None if g.edge_type is None else g.edge_type[at],
        "batch_id": np.array(batch, np.int32),
        "label_hop_offsets": np.array(ends, np.int64),
    }
    return {k: DeviceArray(v) for k, v in found.items() if v is not None}


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
    "pylibcugraph.ResourceHandle": ResourceHandle,
    "pylibcugraph.GraphProperties": GraphProperties,
    "pylibcugraph.SGGraph": SGGraph,
    "pylibcugraph.neighbor_sample": neighbor_sample,
    "cupy.asarray": asarray,
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

    module("raft_dask")
    monkeypatch.setattr(Comms, "initialized", False)
    for name, fake in {**FAKES, "cupy.cuda.runtime.getDeviceCount": count, "cupy.cuda.runtime.CUDARuntimeError": CUDARuntimeError}.items():
        home, _, last = name.rpartition(".")
        if home.rpartition(".")[2][0].islower():
            setattr(module(home), last, fake)
