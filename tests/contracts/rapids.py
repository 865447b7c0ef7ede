"""Stand-ins for RAPIDS 26.10 during a test; `install` puts them where imports find them.

Each has the name and the parameters of the real function or class, so that an argument which the real one does not take
is a TypeError here too; `rapids_signatures.json`, read from the wheels, lists them. Their implementation is simple and
correct, on the processor: arrays of "the device" refuse to be taken for NumPy's, as CuPy's do.
"""

import importlib.machinery
import inspect
import os
import sys
import threading
import types
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster, default_client

from millrace.stages import rapids
from millrace.tests.contracts import dask_cuda


class NoDefault:
    def __repr__(self) -> str:
        return "no_default"


no_default = NoDefault()


class CUDARuntimeError(RuntimeError):
    """cupy.cuda.runtime's."""


class DeviceArray:
    """cupy.ndarray, whose values only `get` returns. Operations take numbers and arrays of this class."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)
        self.dtype = self.values.dtype

    def __array__(self, *args: Any, **kwargs: Any):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    __array_ufunc__ = None

    def __len__(self) -> int:
        return len(self.values)

    def get(self, stream=None, order="C", out=None, blocking=True):
        return self.values.copy()

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        with np.errstate(over="ignore"):
            return DeviceArray(self.values.astype(dtype))

    def all(self):
        return DeviceArray(self.values.all())

    def any(self):
        return DeviceArray(self.values.any())

    def sum(self):
        return DeviceArray(self.values.sum())

    def __bool__(self) -> bool:
        return bool(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __getitem__(self, at):
        assert isinstance(at, int | slice | DeviceArray), "the real one takes no index of the host's"
        return DeviceArray(self.values[at.values if isinstance(at, DeviceArray) else at])

    def __invert__(self):
        return DeviceArray(~self.values)

    def _with(self, operation, other):
        assert isinstance(other, int | float | DeviceArray), "Unsupported type: an array of the host's"
        return DeviceArray(operation(self.values, other.values if isinstance(other, DeviceArray) else other))

    def __sub__(self, other):
        return self._with(np.subtract, other)

    def __mul__(self, other):
        return self._with(np.multiply, other)

    def __add__(self, other):
        return self._with(np.add, other)

    def __and__(self, other):
        return self._with(np.bitwise_and, other)

    def __ge__(self, other):
        return self._with(np.greater_equal, other)

    def __gt__(self, other):
        return self._with(np.greater, other)

    def __lt__(self, other):
        return self._with(np.less, other)

    def __eq__(self, other):
        return self._with(np.equal, other)

    __hash__ = None


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, pd.Series):
        assert isinstance(a, Series) and not a.null_count, "a column with nulls is no array"
        a = a.values
    return DeviceArray(np.asarray(a.values if isinstance(a, DeviceArray) else a, dtype))


def arange(start, stop=None, step=1, dtype=None):
    return DeviceArray(np.arange(start, stop, step, dtype))


def searchsorted(a, v, side="left", sorter=None):
    assert isinstance(a, DeviceArray) and isinstance(v, DeviceArray)
    return DeviceArray(np.searchsorted(a.values, v.values, side))


def cumsum(a, axis=None, dtype=None, out=None):
    assert isinstance(a, DeviceArray) and a.dtype == np.int64, "sums of float32 are rounded"
    return DeviceArray(np.cumsum(a.values))


def bincount(x, weights=None, minlength=None):
    assert isinstance(x, DeviceArray) and (not len(x) or x.values.min() >= 0)
    return DeviceArray(np.bincount(x.values, weights, minlength or 0))


class Series(pd.Series):
    """cudf.Series: a column."""

    @property
    def _constructor(self):
        return Series

    @property
    def null_count(self) -> int:
        return int(self.isna().sum())

    def to_numpy(self, dtype=None, copy=True, na_value=no_default):
        return np.array(self.values, dtype)


class Limits:
    """Limits of a GPU, which tests lower."""

    rows = 2**31 - 1
    edges = 2147483100
    """Of `Graph.from_cudf_edgelist`, as its source has them."""


class DataFrame(pd.DataFrame):
    """cudf.DataFrame: pandas', so that Dask's own dataframes divide, shuffle and sort it."""

    def __init__(self, data=None, index=None, columns=None, dtype=None, copy=None, nan_as_null=no_default):
        if isinstance(data, dict):
            data = {name: c.values if isinstance(c, DeviceArray) else c for name, c in data.items()}
            if max(map(len, data.values())) > Limits.rows:
                raise OverflowError("CUDF failure: column exceeds the size limit")
        super().__init__(data, index, columns, dtype, copy)

    @property
    def _constructor(self):
        return DataFrame

    @property
    def _constructor_sliced(self):
        return Series

    def sort_values(
        self,
        by,
        axis=0,
        ascending=True,
        inplace=False,
        kind="quicksort",
        na_position="last",
        ignore_index=False,
        key=None,
    ):
        assert not inplace
        # Not stable: the order of equal rows is arbitrary.
        mixed = self.iloc[np.random.default_rng(0).permutation(len(self))]
        return super(DataFrame, mixed).sort_values(by, ascending=ascending, ignore_index=ignore_index)


def concat(
    objs,
    axis=0,
    join="outer",
    ignore_index=False,
    keys=None,
    levels=None,
    names=None,
    verify_integrity=False,
    sort=None,
):
    assert objs and all(isinstance(f, DataFrame) and [*f.columns] == [*objs[0].columns] for f in objs)
    if sum(map(len, objs)) > Limits.rows:
        raise OverflowError("CUDF failure: Total number of concatenated rows exceeds the column size limit")
    return pd.concat(objs, ignore_index=ignore_index)


def read_parquet(
    filepath_or_buffer,
    engine="cudf",
    columns=None,
    storage_options=None,
    filesystem=None,
    filters=None,
    row_groups=None,
    use_pandas_metadata=True,
    categorical_partitions=True,
    bytes_per_thread=None,
    dataset_kwargs=None,
    nrows=None,
    skip_rows=None,
    allow_mismatched_pq_schemas=False,
    ignore_missing_columns=True,
    case_sensitive_names=True,
    *args,
    **kwargs,
):
    assert not args and not kwargs and columns and len(row_groups) == 1, "one list of row groups for each file"
    table = pq.ParquetFile(filepath_or_buffer).read_row_groups(row_groups[0], columns=columns)
    if use_pandas_metadata and (of_pandas := table.schema.pandas_metadata):
        columns = [c for c in columns if c not in of_pandas["index_columns"]]
    return DataFrame({c: table[c].to_pandas() for c in columns})


def from_delayed(dfs, meta=None, divisions=None, prefix=None, verify_meta=True):
    assert len(dfs) and isinstance(meta, DataFrame)
    return dask_frames().from_delayed(dfs, meta, divisions, prefix, verify_meta)


def dask_frames() -> Any:
    """Dask's own dataframes, which dask_cudf's are; imported where they are used, since that takes seconds."""
    import dask.dataframe

    return dask.dataframe


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
        if len(input_df) > Limits.edges:
            raise ValueError("cudf dataFrame edge list is too big to fit in a single GPU")
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
        assert isinstance(input_ddf, dask_frames().DataFrame)
        assert Comms.initialized, "the real one asks Comms for the workers"
        self.distributed = True
        whole = input_ddf.compute()
        assert (whole.dtypes == input_ddf.dtypes).all()
        self._take(whole, source, destination, edge_attr)

    def _take(self, frame: DataFrame, source: str, destination: str, weight: str) -> None:
        assert self.edges is None, "Graph is already initialized"
        a, b, w = (frame[name].values for name in (source, destination, weight))
        assert a.dtype == b.dtype and a.dtype in (np.int32, np.int64) and w.dtype in (np.float32, np.float64)
        self.edges = nx.Graph()
        self.edges.add_weighted_edges_from(zip(a.tolist(), b.tolist(), w.tolist()))
        assert self.edges.number_of_edges() == len(a), "an edge is given twice: the real one would drop or merge it"


class Comms:
    """State of cugraph.dask.comms.comms."""

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


def halves(frame: DataFrame) -> Any:
    return dask_frames().from_pandas(frame, npartitions=2)


def dask_louvain(input_graph, max_level=None, max_iter=None, resolution=1.0, threshold=1e-7):
    assert input_graph.distributed and Comms.initialized
    return halves(found(input_graph, resolution, threshold, 0)), 0.5


def dask_leiden(input_graph, max_iter=100, resolution=1.0, random_state=None, theta=1.0):
    assert input_graph.distributed and Comms.initialized
    return halves(found(input_graph, resolution, 1e-7, random_state)), 0.5


class LocalCUDACluster(LocalCluster):
    """dask_cuda's cluster, with threads for workers."""

    @wraps(dask_cuda.LocalCUDACluster.__init__)
    def __init__(self, *args, **kwargs):
        given = inspect.signature(dask_cuda.LocalCUDACluster.__init__).bind(self, *args, **kwargs)
        given.apply_defaults()
        a = given.arguments
        os.environ["RAPIDS_NO_INITIALIZE"] = "True"  # as the real one does
        super().__init__(
            n_workers=a["n_workers"], threads_per_worker=a["threads_per_worker"], processes=False, **a["kwargs"]
        )


@contextmanager
def named_cluster(
    monkeypatch: pytest.MonkeyPatch, gpus: int, threads: int = 1, *, processes: bool = False
) -> Iterator[tuple[LocalCluster, Client]]:
    """A cluster that a user has started by dask-cuda; none can be started beside it. See `install`."""
    install(monkeypatch, gpus, processes=processes)
    options: dict[str, Any] = {"protocol": "tcp", "host": "127.0.0.1", "dashboard_address": ":0"}
    if not processes:
        monkeypatch.setattr(rapids, "_own_gpu", lambda needed: uuid.uuid4().hex)
        options |= {"processes": False}
    kind = dask_cuda.LocalCUDACluster if processes else LocalCluster
    with (
        kind(n_workers=gpus, threads_per_worker=threads, **options) as own,
        Client(own) as client,
        monkeypatch.context() as patch,
    ):
        patch.delattr("dask_cuda.LocalCUDACluster")
        yield own, client
        assert len(client.run(os.getpid)) == gpus, "it goes on"


PATIENCE_S = 120.0
"""Seconds after which a call that some process does not make fails in the others; the real one waits on."""


class Clique:
    """Processes that share one unique id, here threads: a call of all of them waits for the last, with a limit."""

    met: ClassVar[dict[bytes, "Clique"]] = {}

    def __init__(self) -> None:
        self.lock, self.barrier, self.said = threading.Lock(), None, {}

    def gather(self, rank: int, size: int, what: str, value: Any) -> list[Any]:
        with self.lock:
            self.barrier = self.barrier or threading.Barrier(size, timeout=PATIENCE_S)
            assert self.barrier.parties == size and rank not in self.said
            self.said[rank] = (what, value)
        self.barrier.wait()
        said = dict(self.said)
        if self.barrier.wait() == 0:
            self.said.clear()
        self.barrier.wait()
        assert {what for what, _ in said.values()} == {what} and set(said) == set(range(size)), "not all call the same"
        return [said[r][1] for r in range(size)]


def end_calls() -> None:
    """Let calls that wait for other processes fail now, as when one of them has died."""
    for clique in Clique.met.values():
        if clique.barrier is not None:
            clique.barrier.abort()


class Handle:
    """pylibraft.common.handle.Handle, with a place in a clique."""

    alive: ClassVar[dict[int, "Handle"]] = {}

    def __init__(self, clique: Clique, rank: int, size: int) -> None:
        self.clique, self.rank, self.size = clique, rank, size
        self.alive[id(self)] = self

    def getHandle(self):  # noqa: N802
        return id(self)

    def gather(self, what: str, value: Any) -> list[Any]:
        return self.clique.gather(self.rank, self.size, what, value)


comms_here = threading.local()
"""State that the real module keeps for each process."""


def cugraph_comms_create_unique_id():
    unique = os.urandom(8)
    Clique.met[unique] = Clique()
    return unique


def cugraph_comms_init(rank, world_size, uid, device=0):
    if getattr(comms_here, "handle", None) is not None:
        raise RuntimeError("cuGraph has already been initialized!")
    assert device == 0, "dask-cuda shows a process its own GPU as the first"
    comms_here.handle = Handle(Clique.met[uid], rank, world_size)
    comms_here.handle.gather("init", world_size)


def cugraph_comms_get_raft_handle():
    return comms_here.handle


def cugraph_comms_shutdown():
    del Handle.alive[comms_here.handle.getHandle()]
    comms_here.handle = None


class ResourceHandle:
    def __init__(self, handle=None):
        assert handle is None or isinstance(handle, int), "a pointer as a number"
        self.raft = None if handle is None else Handle.alive[handle]


class GraphProperties:
    def __init__(self, is_symmetric=False, is_multigraph=False):
        self.is_symmetric, self.is_multigraph = is_symmetric, is_multigraph


class SGGraph:
    """pylibcugraph's graph, with edges from the first array to the second."""

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
        assert (
            len(
                {
                    a.dtype
                    for a in (src_or_offset_array, dst_or_index_array, vertices_array, edge_id_array)
                    if a is not None
                }
            )
            == 1
        )
        self.src, self.dst, self.weight, self.edge_id, self.edge_type, self.vertices = (
            None if a is None else a.values for a in arrays
        )
        self.edges_of: dict[int, np.ndarray] = {int(v): np.flatnonzero(self.src == v) for v in np.unique(self.src)}


class MGGraph:
    """pylibcugraph's graph, with edges from the first arrays to the second: each process gives its own, and all of them
    call."""

    def __init__(
        self,
        resource_handle,
        graph_properties,
        src_array,
        dst_array,
        weight_array=None,
        store_transposed=False,
        do_expensive_check=False,
        edge_id_array=None,
        edge_type_array=None,
        edge_start_time_array=None,
        edge_end_time_array=None,
        vertices_array=None,
        num_arrays=1,
        drop_self_loops=False,
        drop_multi_edges=False,
        symmetrize=False,
    ):
        lists = [src_array, dst_array, weight_array, edge_id_array, edge_type_array, vertices_array]
        assert all(x is None or (isinstance(x, list) and len(x) == num_arrays == 1) for x in lists)
        own = [None if x is None else x[0].values for x in lists]
        assert len({len(x) for x in own[:5] if x is not None}) == 1, "an array of edges has another length"
        of_all = resource_handle.raft.gather("MGGraph", own)
        assert len({tuple(x is None for x in parts) for parts in of_all}) == 1, "all give the same arrays"
        joined = [
            None if x is None else DeviceArray(np.concatenate([parts[i] for parts in of_all]))
            for i, x in enumerate(own)
        ]
        assert len(np.unique(joined[3].values)) == len(joined[3]) and len(np.unique(joined[5].values)) == len(joined[5])
        src, dst, weight, place, kind, nodes = joined
        whole = SGGraph(
            ResourceHandle(), graph_properties, src, dst, weight, False, True, False, place, kind, vertices_array=nodes
        )
        vars(self).update(vars(whole))
        self.raft, self.own_edges = resource_handle.raft, len(own[0])


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
    assert isinstance(resource_handle, ResourceHandle) and isinstance(input_graph, SGGraph | MGGraph)
    assert resource_handle.raft is getattr(input_graph, "raft", None)
    if isinstance(input_graph, MGGraph):
        same = (
            h_fan_out.tolist(),
            with_replacement,
            prior_sources_behavior,
            use_edge_weights_as_biases,
            return_hops,
            renumber,
        )
        assert all(other == same for other in resource_handle.raft.gather("neighbor_sample", same))
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
                p = (
                    g.weight[out] / g.weight[out].sum()
                    if use_edge_weights_as_biases and len(out) and g.weight[out].any()
                    else None
                )
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
    "cudf.DataFrame.sort_values": DataFrame.sort_values,
    "cudf.concat": concat,
    "cudf.read_parquet": read_parquet,
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
    "pylibcugraph.MGGraph": MGGraph,
    "pylibcugraph.comms.cugraph_comms_create_unique_id": cugraph_comms_create_unique_id,
    "pylibcugraph.comms.cugraph_comms_get_raft_handle": cugraph_comms_get_raft_handle,
    "pylibcugraph.comms.cugraph_comms_init": cugraph_comms_init,
    "pylibcugraph.comms.cugraph_comms_shutdown": cugraph_comms_shutdown,
    "pylibraft.common.handle.Handle.getHandle": Handle.getHandle,
    "pylibcugraph.neighbor_sample": neighbor_sample,
    "cupy.asarray": asarray,
    "cupy.arange": arange,
    "cupy.bincount": bincount,
    "cupy.cumsum": cumsum,
    "cupy.searchsorted": searchsorted,
}
"""Functions, classes (with the parameters of their constructors) and methods by their real names."""


IN_WORKERS = "from millrace.tests.contracts import rapids\nrapids.install_for_good()"
"""Code that a worker runs when it begins."""


def install_for_good() -> None:
    """Stand in for RAPIDS in this process until it ends: a worker, which sees GPUs in its environment."""
    install(pytest.MonkeyPatch(), len(os.environ[dask_cuda.VISIBLE].split(",")), processes=True)


def install(monkeypatch: pytest.MonkeyPatch, gpus: int = 1, *, processes: bool = False) -> None:
    """Make imports of RAPIDS and CuPy find the stand-ins, on a machine that seems to have `gpus` GPUs; 0 is a machine
    without a driver.

    Clusters of dask-cuda have threads of this process for workers, which see what a test changes here, or `processes`,
    to which all that tasks take and give is pickled.
    """

    def count() -> int:
        if not gpus:
            raise CUDARuntimeError(
                "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
            )
        return gpus

    if gpus > 1:
        dask_frames()  # it would look into a CuPy that it finds
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
    found = {
        **FAKES,
        "cupy.cuda.runtime.getDeviceCount": count,
        "cupy.cuda.runtime.CUDARuntimeError": CUDARuntimeError,
    }
    if processes:
        found["dask_cuda.LocalCUDACluster"] = dask_cuda.LocalCUDACluster
        monkeypatch.setattr(dask_cuda.LocalCUDACluster, "preload", [IN_WORKERS])
        if dask_cuda.VISIBLE not in os.environ:
            monkeypatch.setenv(dask_cuda.VISIBLE, ",".join(map(str, range(gpus))))
    for name, fake in found.items():
        home, _, last = name.rpartition(".")
        if home.rpartition(".")[2][0].islower():
            setattr(module(home), last, fake)
