"""Edges of Parquet on GPUs, with RAPIDS stood in for: what the processor makes of the same files, bit for bit."""

import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from millrace.pipeline.datasets import ReadOptions, open_dataset
from millrace.pipeline.datasets.readers import graph, parquet_rapids
from millrace.pipeline.ingest.budget import Budget
from millrace.pipeline.ingest.convert import convert
from millrace.pipeline.ingest.spill import RunWriter
from millrace.stages.partition.stage import open_shards
from millrace.stages.rapids import named_cluster
from millrace.storage.dataset_store import open_dataset_store
from millrace.storage.errors import InputError, MissingExtraError, RunError
from millrace.tests.contracts import rapids
from millrace.tests.contracts.command import command

NODES = 40


def write(folder, seed=0, *, edges=300, gaps=False, weighted=True, files=2, group=80, ids="int64", **columns):
    """Edges with loops and repeated ones, in several files and row groups, between nodes that may have gaps in their
    ids."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    id_of = np.sort(rng.choice(1000, NODES, replace=False)) if gaps else np.arange(NODES)
    ends = id_of[np.minimum(rng.geometric(0.08, (2, edges)) - 1, NODES - 1)].astype(ids)
    table = {"src": ends[0], "dst": ends[1], **columns}
    if weighted:
        # Sums of these depend on the order in which they are added.
        table["weight"] = np.exp(rng.normal(0, 6, edges))
    cuts = np.linspace(0, edges, files + 1).astype(int)
    for i, (a, b) in enumerate(zip(cuts, cuts[1:])):
        pq.write_table(pa.table(table).slice(a, b - a), folder / f"edges-{i}.parquet", row_group_size=group)
    nodes = {"id": id_of, "label": rng.integers(0, 3, NODES), "x": rng.normal(size=(NODES, 2)).astype("f4").tolist()}
    pq.write_table(pa.table(nodes).take(rng.permutation(NODES)), folder / "nodes.parquet")
    return folder


def assert_same(a, b):
    for name in ("indptr", "indices", "edge_weight"):
        x, y = getattr(a.graph, name), getattr(b.graph, name)
        assert (x is None) == (y is None)
        assert x is None or (x.dtype == y.dtype and x.tobytes() == y.tobytes()), name
    assert a.notes == b.notes
    assert np.array_equal(a.labels, b.labels)
    every = np.arange(NODES)
    assert np.array_equal(a.features.gather(every), b.features.gather(every))


def seen(edges):
    """Whether edges are repeated, and whether there are loops."""
    src, dst = edges.ends
    return len({*zip(src.tolist(), dst.tolist())}) < len(src), bool((src == dst).any())


@pytest.fixture
def on_gpus(monkeypatch):
    """`use(gpus)` makes so many, and gives a list of what comes from them."""
    sorted_there, real = [], parquet_rapids.edges_in_order
    monkeypatch.setattr(graph, "edges_in_order", lambda *a: (sorted_there.append(found := real(*a)), found)[1])

    def use(gpus):
        rapids.install(monkeypatch, gpus)
        return sorted_there

    return use


@pytest.fixture
def one_cluster(monkeypatch):
    """`use(gpus)` makes so many, in one cluster for all reads: each would start its own, with new certificates."""
    with ExitStack() as stack:

        def use(gpus):
            _, client = stack.enter_context(rapids.named_cluster(monkeypatch, gpus))
            stack.enter_context(named_cluster(client))

        yield use


DIRECTIONS, DUPLICATES, LOOPS = ["directed", "reverse", "undirected"], ["merge", "keep"], ["keep", "drop"]


@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize(("gaps", "weighted"), [(False, True), (True, True), (True, False)])
def test_the_graph_is_the_processors(tmp_path, on_gpus, one_cluster, gpus, gaps, weighted):
    """Every combination of options for each kind of table; one GPU and three share them, each pair of options for
    both."""
    used = on_gpus(gpus)
    one_cluster(gpus)
    folder = write(tmp_path / "g", 5 + gpus, gaps=gaps, weighted=weighted)
    share = [
        (DIRECTIONS[d], DUPLICATES[e], LOOPS[f])
        for d, e, f in product(range(3), range(2), range(2))
        if (d + e + f + gaps + weighted) % 2 == gpus // 2
    ]
    assert len(share) == 6
    for n, (direction, duplicates, loops) in enumerate(share):
        options = ReadOptions(direction=direction, duplicates=duplicates, self_loops=loops, missing_ids="compact")
        if n % 3 == gpus // 2:
            options = replace(options, edge_weights="ignore")
        assert_same(
            open_dataset(folder, options=options), open_dataset(folder, options=replace(options, edges_on="gpu"))
        )
        assert len(used) == n + 1 and used[-1] is not None
        assert all(seen(used[-1]))


@pytest.mark.parametrize("gpus", [1, 2])
def test_edges_that_are_clean(tmp_path, on_gpus, gpus):
    used = on_gpus(gpus)
    folder = write(tmp_path / "g", files=0)
    ends = np.random.default_rng(1).permutation([(a, b) for a in range(NODES) for b in range(NODES) if a != b])[:500]
    pq.write_table(
        pa.table({"src": ends[:, 0].astype("i4"), "dst": ends[:, 1].astype("u2")}),
        folder / "edges-9.parquet",
        row_group_size=64,
    )
    options = ReadOptions(direction="directed")
    assert_same(open_dataset(folder, options=options), open_dataset(folder, options=replace(options, edges_on="gpu")))
    assert not any(seen(used[0]))


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("processes", [False, True])
def test_a_cluster_of_dask_cuda_that_is_named_does_the_work(tmp_path, on_gpus, monkeypatch, processes):
    """By its own client, though the caller has another one."""
    folder, used = write(tmp_path / "g", gaps=True), on_gpus(2)
    with rapids.named_cluster(monkeypatch, 2, processes=processes) as (own, _):
        given = ("edges_on=gpu", "missing_ids=compact", "direction=directed")
        sets = [word for key in given for word in ("--set", f"read.{key}")]
        code, _, err = command(
            "convert", folder, *sets, "--scheduler", own.scheduler_address, "--out", tmp_path / "new"
        )
        assert code == 0, err
    assert not used, "they are converted in pieces"
    alone = open_dataset(folder, options=ReadOptions(missing_ids="compact", direction="directed"))
    assert_same(open_dataset_store(tmp_path / "new"), alone)


def test_symmetric_edges_are_seen_to_be(tmp_path, on_gpus):
    on_gpus(2)
    folder = write(tmp_path / "g", weighted=False)
    whole = pa.concat_tables([pq.read_table(f) for f in sorted(folder.glob("edges*"))])
    pq.write_table(whole.rename_columns(["dst", "src"]).select(["src", "dst"]), folder / "edges-9.parquet")
    assert_same(open_dataset(folder), open_dataset(folder, options=ReadOptions(edges_on="gpu")))


def test_an_index_that_pandas_has_stored_is_a_column(tmp_path, on_gpus):
    used, folder = on_gpus(1), write(tmp_path / "g", weighted=False)
    for file in folder.glob("edges*"):
        of_pandas = json.dumps({"index_columns": ["src"], "columns": [], "column_indexes": []})
        pq.write_table(pq.read_table(file).replace_schema_metadata({"pandas": of_pandas}), file)
    options = ReadOptions(direction="directed")
    assert_same(open_dataset(folder, options=options), open_dataset(folder, options=replace(options, edges_on="gpu")))
    assert used[0] is not None


NOT_CLEAN = {
    "nulls": ({"src": pa.array([0, None, 2]), "dst": pa.array([1, 2, 0])}, {}, "nulls"),
    "out of range": ({"src": [0, 1, 40], "dst": [1, 2, 0]}, {}, "out of range for 40 nodes"),
    "below 0": ({"src": [0, 1, -1], "dst": [1, 2, 0]}, {}, "out of range for 40 nodes"),
    "text": ({"src": ["a", "b", "c"], "dst": [1, 2, 0]}, {}, "column edges.src is text and column nodes.id is int64"),
    "no dst": ({"src": [0, 1, 2], "other": [1, 2, 0]}, {}, "no column 'dst'"),
    "nan": ({"src": [0, 1, 2], "dst": [1, 2, 0], "weight": [1.0, np.nan, 1.0]}, {}, "NaN or infinite"),
    "infinite as float32": ({"src": [0, 1, 2], "dst": [1, 2, 0], "weight": [1.0, 1e300, 1.0]}, {}, "NaN or infinite"),
    "negative": ({"src": [0, 1, 2], "dst": [1, 2, 0], "weight": [1.0, -2.0, 1.0]}, {}, "negative"),
    "loops": ({"src": [0, 1, 2], "dst": [1, 1, 0]}, {"self_loops": "error"}, "there is 1 self loop (first: node 1)"),
    "repeated": ({"src": [0, 1, 1], "dst": [1, 0, 0]}, {"duplicates": "error"}, "(first: 1 -> 0)"),
}


@pytest.mark.parametrize("case", NOT_CLEAN)
def test_what_is_wrong_is_said_as_the_processor_says_it(tmp_path, on_gpus, case):
    on_gpus(2)
    columns, given, told = NOT_CLEAN[case]
    folder = write(tmp_path / "g", files=0)
    pq.write_table(pa.table(columns), folder / "edges.parquet")
    said = []
    for where in ("cpu", "gpu"):
        with pytest.raises(InputError) as e:
            open_dataset(folder, options=ReadOptions(direction="directed", edges_on=where, **given))
        said.append(str(e.value))
    # The command to paste keeps the options that were given.
    assert said[0] == said[1].replace("--set read.edges_on=gpu ", "") and told in said[0]


def test_ends_that_are_no_nodes_and_damaged_files(tmp_path, on_gpus):
    on_gpus(1)
    folder = write(tmp_path / "g", gaps=True)
    pq.write_table(pa.table({"src": [1001], "dst": [1002], "weight": [1.0]}), folder / "edges-9.parquet")
    options = ReadOptions(direction="directed", missing_ids="compact", edges_on="gpu")
    with pytest.raises(InputError, match=r"1 values of edges.src \(first: 1001\) are not the id of any node"):
        open_dataset(folder, options=options)
    (folder / "edges-9.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot be read"):
        open_dataset(folder, options=options)


def test_no_edges_and_weights_of_other_kinds(tmp_path, on_gpus):
    used = on_gpus(1)
    write(tmp_path / "none", edges=0, files=1)
    for place in ("cpu", "gpu"):
        with pytest.raises(InputError, match="has a header and no rows"):
            open_dataset(tmp_path / "none", options=ReadOptions(edges_on=place))
    for i, weight in enumerate(
        (np.arange(300) % 2 == 0, np.arange(300, dtype="i8") + (1 << 40), np.arange(300, dtype="f4"))
    ):
        folder = write(tmp_path / f"w{i}", weighted=False, weight=weight)
        options = ReadOptions(direction="directed")
        assert_same(
            open_dataset(folder, options=options), open_dataset(folder, options=replace(options, edges_on="gpu"))
        )
    assert [u is None for u in used] == [True, True, False, False]


def test_edges_out_of_order_are_an_error(tmp_path, on_gpus, monkeypatch):
    on_gpus(2)
    folder = write(tmp_path / "g")
    frame = rapids.dask_frames().DataFrame
    monkeypatch.setattr(frame, "to_delayed", lambda self, real=frame.to_delayed: real(self)[::-1])
    with pytest.raises(RunError, match=r"^dask-cuDF returned edges that are not in the order of their destinations"):
        open_dataset(folder, options=ReadOptions(direction="directed", edges_on="gpu"))
    monkeypatch.setattr(frame, "to_delayed", lambda self, real=frame.to_delayed: real(self)[::-1][1:])
    with pytest.raises(RunError, match=r"^dask-cuDF returned \d+ of 300 edges; use read"):
        open_dataset(folder, options=ReadOptions(direction="directed", edges_on="gpu"))


def test_edges_come_from_the_gpus_range_by_range(tmp_path, on_gpus, monkeypatch):
    """The driver never has a list of all of them beside the graph's arrays."""
    on_gpus(3)
    gathered, real = [], Client.gather
    monkeypatch.setattr(Client, "gather", lambda self, *a, **k: (gathered.append(x := real(self, *a, **k)), x)[1])
    folder = write(tmp_path / "g")
    options = ReadOptions(direction="directed", self_loops="drop")
    assert_same(open_dataset(folder, options=options), open_dataset(folder, options=replace(options, edges_on="gpu")))
    assert gathered and not any(isinstance(x, tuple) for got in gathered for x in got), "a range is a tuple"


def test_edges_that_do_not_fit_are_an_error(tmp_path, on_gpus, monkeypatch):
    def full(*_, **__):
        raise MemoryError("std::bad_alloc: out_of_memory")

    on_gpus(1)
    monkeypatch.setattr("cudf.concat", full)
    words = ("--set", "read.direction=directed", "--set", "read.edges_on=gpu", "--out", tmp_path / "out")
    code, _, err = command("convert", write(tmp_path / "g"), *words)
    assert code == 3 and not (tmp_path / "out").exists()
    assert 'MemoryError: std::bad_alloc: out_of_memory; use read.edges_on = "cpu"' in " ".join(err.split())


def test_commands_convert_and_cut_what_gpus_have_read(tmp_path, on_gpus):
    used = on_gpus(2)
    folder = write(tmp_path / "g")
    for where in ("cpu", "gpu"):
        words = ("--set", "read.direction=directed", "--set", f"read.edges_on={where}", "--out", tmp_path / where)
        code, _, err = command("convert", folder, *words)
        assert code == 0, err
        words = ("--parts", 3, "--method", "hash", *words[:-1], tmp_path / f"parts-{where}")
        code, _, err = command("partition", folder, *words)
        assert code == 0, err
    assert len(used) == 1, "to be cut, they are opened"
    assert_same(*(open_dataset_store(tmp_path / where) for where in ("cpu", "gpu")))
    for part in range(3):
        (a, nodes, _), (b, others, _) = (open_shards(tmp_path / f"parts-{where}", part) for where in ("cpu", "gpu"))
        assert np.array_equal(nodes, others)
        assert all(np.array_equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


SHORT, EDGES = 64, 400
"""Edges of a range, and of all ranges."""


@pytest.fixture
def short_ranges(monkeypatch):
    """Ranges of `SHORT` edges, and a list of the numbers of edges that come from GPUs at a time."""
    sizes, real = [], parquet_rapids._ranges

    def spied(*arguments):
        for each in real(*arguments):
            sizes.append(len(each.src))
            yield each

    monkeypatch.setattr(parquet_rapids, "AT_ONCE", SHORT)
    monkeypatch.setattr(Budget, "edge_batch", lambda *_: SHORT)
    monkeypatch.setattr(parquet_rapids, "_ranges", spied)
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize(("gaps", "weighted"), [(False, True), (True, True), (True, False)])
def test_the_graph_is_converted_in_pieces(
    tmp_path, on_gpus, one_cluster, short_ranges, monkeypatch, gpus, gaps, weighted
):
    """The store is the processor's, and neither the graph nor more than a range of it is in the driver's memory."""
    used = on_gpus(gpus)
    one_cluster(gpus)
    monkeypatch.setattr(parquet_rapids, "RawEdges", None)
    folder = write(tmp_path / "g", 5 + gpus, gaps=gaps, weighted=weighted, edges=EDGES, group=110)
    share = [(d, DUPLICATES[(k + gpus) % 2], f) for k, (d, f) in enumerate(product(DIRECTIONS, LOOPS))]
    for n, (direction, duplicates, loops) in enumerate(share):
        options = ReadOptions(direction=direction, duplicates=duplicates, self_loops=loops, missing_ids="compact")
        if n % 3 == gpus // 2:
            options = replace(options, edge_weights="ignore")
        got, stores = len(short_ranges), []
        for where in ("cpu", "gpu"):
            given = replace(options, edges_on=where)
            stores.append(convert(folder, tmp_path / f"{where}-{n}", options=given, verbose=False))
        assert stores[0].fingerprint == stores[1].fingerprint
        assert stores[0].meta["notes"] == stores[1].meta["notes"]
        assert_same(*(open_dataset_store(s.path) for s in stores))
        kept = EDGES - sum(np.diff(_ends(folder))[:, 0] == 0) * (loops == "drop")
        assert sum(short_ranges[got:]) == kept and max(short_ranges) == SHORT and not used


def _ends(folder):
    tables = [pq.read_table(f, columns=["src", "dst"]) for f in sorted(folder.glob("edges-*.parquet"))]
    return np.stack([pa.concat_tables(tables)[end].to_numpy() for end in ("src", "dst")], axis=1)


@pytest.mark.parametrize("gpus", [1, 2])
def test_ranges_go_on_in_the_midst_of_a_destination(tmp_path, on_gpus, short_ranges, gpus):
    """A hub's edges come in several ranges; a repeated one is seen though it begins the next."""
    used = on_gpus(gpus)
    folder = write(tmp_path / "g", files=0)
    src = np.concatenate([np.arange(NODES)[:39], np.repeat([39], 26), [1]])
    table = {"src": src, "dst": np.append(np.full(65, 3), 30)}
    pq.write_table(pa.table(table), folder / "edges-9.parquet", row_group_size=20)
    options = ReadOptions(direction="directed", duplicates="keep")
    assert_same(open_dataset(folder, options=options), open_dataset(folder, options=replace(options, edges_on="gpu")))
    assert seen(used[0])[0] and SHORT in short_ranges


def test_a_conversion_that_was_stopped_goes_on(tmp_path, on_gpus, short_ranges, monkeypatch):
    on_gpus(1)
    folder, options = write(tmp_path / "g"), ReadOptions(direction="directed", edges_on="gpu")
    with monkeypatch.context() as full:
        full.setattr(RunWriter, "add", lambda *_: (_ for _ in ()).throw(RunError("the disk is full")))
        with pytest.raises(RunError, match="the disk is full"):
            convert(folder, tmp_path / "out", options=options, verbose=False)
    assert short_ranges and not (tmp_path / "out").exists()
    store = convert(folder, tmp_path / "out", options=options, verbose=False)
    assert_same(open_dataset_store(store.path), open_dataset(folder, options=replace(options, edges_on="cpu")))


@pytest.mark.parametrize("case", ["loops", "names", "range", "times", "csv", "no nodes"])
def test_what_gpus_do_not_convert(tmp_path, on_gpus, short_ranges, case):
    """A defect is told as by the processor, which reads names; what would go unused is refused."""
    on_gpus(1)
    folder = write(tmp_path / "g", **({"time": np.arange(300)} if case == "times" else {}))
    options, said, source = ReadOptions(direction="directed", edges_on="gpu"), None, folder
    if case == "loops":
        options, said = replace(options, self_loops="error"), r"there are \d+ self loops \(first: node \d+\)"
    elif case == "range":
        pq.write_table(pa.table({"src": [99], "dst": [1], "weight": [1.0]}), folder / "edges-0.parquet")
        said = "edge source ids lie in"
    elif case == "times":
        options = replace(options, edge_time="time")
        said = "edges_on is gpu, but edges have times, which are read on the CPU; leave edges_on out"
    elif case == "csv":
        source, said = tmp_path, "is not a folder of Parquet"
        (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
        (tmp_path / "nodes.csv").write_text("id,label\n0,0\n1,1\n")
    elif case == "no nodes":
        (folder / "nodes.parquet").unlink()
        options = replace(options, task="link")
        with pytest.raises(InputError, match="edges_on is gpu, but there is no table of nodes"):
            open_dataset(folder, options=options)
    else:
        for file in folder.glob("*.parquet"):
            table = pq.read_table(file)
            for name in {"id", "src", "dst"} & {*table.column_names}:
                table = table.set_column(table.column_names.index(name), name, table[name].cast("string"))
            pq.write_table(table, file)
    if said:
        with pytest.raises(InputError, match=said):
            convert(source, tmp_path / "out", options=options, verbose=False)
        assert not (tmp_path / "out").exists() and not short_ranges
        return
    given = [convert(source, tmp_path / w, options=replace(options, edges_on=w), verbose=False) for w in ("cpu", "gpu")]
    assert given[0].fingerprint == given[1].fingerprint
    assert bool(short_ranges) == (case == "no nodes")


def test_it_is_refused_where_it_cannot_be(tmp_path, monkeypatch):
    folder = write(tmp_path / "g")
    options = ReadOptions(direction="directed", edges_on="gpu")
    with pytest.raises(InputError, match="digits is not a folder of Parquet"):
        open_dataset("digits", options=options)
    code, _, err = command("convert", folder, "--set", "read.edges_on=gpu", "--out", tmp_path / "out")
    assert code == 2 and "read.edges_on=gpu needs an NVIDIA GPU and RAPIDS" in " ".join(err.split())
    assert "use read.edges_on=cpu" in " ".join(err.split())
    rapids.install(monkeypatch, 2)
    monkeypatch.delitem(sys.modules, "dask_cudf")
    with pytest.raises(MissingExtraError, match="dask_cudf cannot be found"):
        open_dataset(folder, options=options)
