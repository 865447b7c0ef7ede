"""A store renumbered by tasks: byte for byte what is reordered in memory, also after a kill."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from millrace.pipeline.cli import app
from millrace.pipeline.config.load import resolve
from millrace.pipeline.datasets.cleaning.options import ReadOptions
from millrace.pipeline.datasets.edge_labels import edge_dataset
from millrace.pipeline.datasets.links import link_dataset
from millrace.pipeline.ingest import arrays, budget, convert, features, spill
from millrace.pipeline.relabel import run, tasks
from millrace.pipeline.relabel.run import Cut, relabel
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.given import Given
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.metis import Metis
from millrace.stages.partition.quality import measure
from millrace.storage import fingerprint
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import KIND, open_dataset_store, write_dataset
from millrace.storage.errors import InputError, RunError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.storage.lazy_dataset import open_lazily
from millrace.storage.node_names import NodeNames
from millrace.storage.partition.reorder import reorder
from millrace.storage.store import arrays as store_arrays
from millrace.storage.store.manifest import MANIFEST, manifest_text
from millrace.storage.store.store import open_store
from millrace.tests.contracts.ingest import Killed, killed

MEMORY = 1 << 30
INLINE = resolve({"executor": "inline"})


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


def cut_small(monkeypatch):
    """Everything is cut into many pieces."""
    monkeypatch.setattr(store_arrays, "CHUNK_BYTES", 1024)
    monkeypatch.setattr(fingerprint, "LEAF_BYTES", 1024)
    monkeypatch.setattr(fingerprint, "SAMPLED_ROWS", 7)
    monkeypatch.setattr(arrays, "SLICE_BYTES", 4096)
    monkeypatch.setattr(budget, "LEAST_EDGES", 16)
    monkeypatch.setattr(spill, "CELLS", 16)
    monkeypatch.setattr(run, "NAME_ROWS", 17)
    monkeypatch.setattr(tasks, "PIECE_ROWS", 13)
    monkeypatch.setattr(run, "budget_of", lambda *_: budget.Budget(6000))


def made(nodes=80, edges=600, *, seed=0, weighted=False, ids=False, names=False, many=False, dtype=np.float32, width=3):
    rng = np.random.default_rng(seed)
    src, dst = np.minimum(rng.geometric(0.05, (2, edges)) - 1, nodes - 1) if nodes else np.empty((2, 0), int)
    sets = rng.permutation(nodes)
    cuts = nodes // 2, nodes // 2 + nodes // 5
    return Dataset(
        "some",
        from_edges(src, dst, nodes, edge_weight=rng.random(edges) if weighted else None, keep_edge_id=ids),
        ArrayFeatures(rng.random((nodes, width)).astype(dtype)),
        (rng.random((nodes, 2)) < 0.5).astype(np.float32) if many else rng.integers(0, 3, nodes),
        Split(*(np.sort(s) for s in np.split(sets, cuts))),
        2 if many else 3,
        "multilabel" if many else "multiclass",
        ("A note.",),
        NodeNames.from_values([f"{'ä' * (v % 3)}{v}" for v in range(nodes)]) if names else None,
        None if many else ("a", "b", "c"),
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def same(data, tmp_path, partitioner, parts, features="zarr", seed=0, feature_dtype=None, order="ids"):
    form = {"feature_dtype": feature_dtype}
    write_dataset(tmp_path / "before", data, features_format=features, graph_format=features, **form)
    lazy = open_lazily(tmp_path / "before")
    cut = Cut(partitioner, parts, seed, order)
    quality, _ = relabel(INLINE, lazy, cut, tmp_path / "got", MEMORY, lambda event: None)
    book = partitioner.assign(data.graph, parts, seed)
    write_dataset(tmp_path / "want", reorder(data, book, order), features_format="npy", graph_format=features, **form)
    got, want = contents(tmp_path / "got"), contents(tmp_path / "want")
    assert got.keys() == want.keys()
    assert not [name for name in got if got[name] != want[name]]
    assert quality == measure(data.graph, book, None if data.of_pairs else data.split.train)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["before", "got", "want"]
    return open_dataset_store(tmp_path / "got")


PLAIN = ("zarr", {})
NAMED = ("npy", {"weighted": True, "names": True})
MANY = ("zarr", {"ids": True, "many": True, "dtype": np.float64})
DENSE = ("npy", {"weighted": True, "ids": True, "seed": 4, "edges": 1500})
GIVEN = Given(np.arange(80) % 5 // 2)


@pytest.mark.parametrize(
    ("partitioner", "how"),
    # Each with a store of either kind, and each dataset twice.
    [
        *((Hash(), how) for how in (PLAIN, NAMED)),
        *((Metis(), how) for how in (MANY, DENSE)),
        *((Contiguous(), how) for how in (MANY, NAMED)),
        *((GIVEN, how) for how in (PLAIN, DENSE)),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_the_store_is_that_of_the_dataset_reordered_in_memory(tmp_path, partitioner, how):
    features, given = how
    form = {"hash": "int8", "metis": "float16", "contiguous": "bfloat16"}.get(partitioner.name)
    found = same(made(**given), tmp_path, partitioner, 3, features, seed=2, feature_dtype=form)
    assert len(found.graph.part_offsets) == 4


@pytest.mark.parametrize(
    ("nodes", "edges", "parts", "width"), [(1, 0, 1, 2), (1, 3, 1, 1), (3, 40, 3, 2), (300, 2, 7, 5), (40, 90, 2, 0)]
)
def test_any_size(tmp_path, nodes, edges, parts, width):
    same(made(nodes, edges, names=bool(edges % 2), width=width), tmp_path, Hash(), parts, "npy" if width else "zarr")


@pytest.mark.parametrize(("order", "features"), [("degree", "zarr"), ("rcm", "npy")])
def test_nodes_of_a_part_in_another_order(tmp_path, order, features):
    data = made(weighted=True)
    found = same(data, tmp_path, Hash(), 3, features, order=order)
    plain = reorder(data, Hash().assign(data.graph, 3, 0))
    assert list(found.node_names) != list(plain.node_names)


@pytest.mark.parametrize("task", ["multiclass", "regression", "link"])
@pytest.mark.parametrize("features", ["zarr", "npy"])
def test_labelled_edges_and_links_go_along(tmp_path, task, features):
    data, rng = made(weighted=True, names=True), np.random.default_rng(0)
    pairs = rng.integers(0, 80, (90, 2))
    labels = {"multiclass": rng.integers(0, 3, 90), "regression": rng.random((90, 2))}
    if task == "link":
        given = link_dataset(data, split="fraction:0.6,0.2")
    else:
        options = ReadOptions(task=task, labelled_edges="hidden" if features == "npy" else "seen")
        plain = edge_dataset(data, pairs, labels[task], features=rng.random((90, 2)), options=options)
        given = replace(plain, pair_time=rng.integers(0, 9, 90) if task == "regression" else None)
    for partitioner in (Hash(), Metis()):
        (tmp_path / partitioner.name).mkdir()
        found = same(given, tmp_path / partitioner.name, partitioner, 3, features)
        assert found.hides_pairs == given.hides_pairs and np.array_equal(found.split.val, given.split.val)


@pytest.mark.parametrize("kind", ["times", "features"])
def test_what_pieces_do_not_move_is_moved_in_memory_if_it_is_small(tmp_path, kind, monkeypatch):
    data = made()
    times = {"edge_time": np.arange(data.graph.num_edges), "node_time": np.arange(80)} if kind == "times" else {}
    rows = ArrayFeatures(np.random.default_rng(1).random((data.graph.num_edges, 2), np.float32))
    data = replace(data, graph=replace(data.graph, **(times or {"edge_features": rows})))
    write_dataset(tmp_path / "before", data)
    words = ["partition", str(tmp_path / "before"), "--parts", "2", "--method", "hash", "--into"]
    for flags in (["--memory", "1GiB"], ["--set", "executor=dask"]):
        done = CliRunner().invoke(app, [*words, str(tmp_path / "got"), *flags])
        assert "which a renumbering in pieces does not move" in str(done.exception)
    done = CliRunner().invoke(app, [*words, str(tmp_path / "got")])
    assert done.exit_code == 0, done.output
    write_dataset(tmp_path / "want", reorder(data, Hash().assign(data.graph, 2, 0)), features_format="npy")
    assert contents(tmp_path / "got") == contents(tmp_path / "want")
    monkeypatch.setattr(convert, "DEFAULT_MEMORY", "20KiB")
    done = CliRunner().invoke(app, [*words, str(tmp_path / "large")])
    assert "which a renumbering in pieces does not move" in str(done.exception)


def test_parts_are_renumbered_again(tmp_path):
    """The names that a first renumbering left stay."""
    first = reorder(made(), Hash().assign(made().graph, 3, 0))
    found = same(first, tmp_path, Contiguous(), 3)
    assert sorted(found.node_names, key=int) == [str(v) for v in range(80)]


def test_a_store_of_an_earlier_version(tmp_path):
    """Without digests and a summary of degrees in its manifest."""
    data = made(weighted=True)
    store = write_dataset(tmp_path / "before", data)
    meta = {key: value for key, value in store.meta.items() if key not in ("digests", "in_degree")}
    (tmp_path / "before" / MANIFEST).write_text(manifest_text(KIND, store.fingerprint, meta, store.entries))
    lazy = open_lazily(tmp_path / "before")
    relabel(INLINE, lazy, Cut(Hash(), 2, 0), tmp_path / "got", MEMORY, lambda event: None)
    write_dataset(tmp_path / "want", reorder(data, Hash().assign(data.graph, 2, 0)), features_format="npy")
    assert contents(tmp_path / "got") == contents(tmp_path / "want")


STAGES = ["assign", "spill", "sort", "labels", "unpack", "name", "features", "gather", "arrays", "count"]


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory):
    """A store, and that of what is reordered in memory."""
    place, data = tmp_path_factory.mktemp("stores"), made(90, 400, names=True, weighted=True)
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        write_dataset(place / "before", data)
        write_dataset(place / "want", reorder(data, Metis().assign(data.graph, 3, 1)), features_format="npy")
    return place / "before", contents(place / "want")


def test_one_that_is_killed_in_each_stage_goes_on(in_memory, tmp_path, monkeypatch):
    """Killed in a task of each stage, one after the other, before its record; of two stages also after a record."""
    store, want = in_memory
    lazy, cut = open_lazily(store), Cut(Metis(), 3, 1)

    def go_on():
        kept, events = len(list((tmp_path / ".ingest-got" / "done").glob("*.json"))), []
        try:
            relabel(INLINE, lazy, cut, tmp_path / "got", MEMORY, events.append)
        finally:
            told = f"going on with the renumbering into {tmp_path / 'got'} that was stopped"
            assert (told in [getattr(e, "text", None) for e in events]) == (kept > 0)

    for stage in STAGES:
        for before in (True, False) if stage in ("spill", "arrays") else (True,):
            with monkeypatch.context() as patch:
                patch.setattr(convert, "inline", killed(stage, before))
                with pytest.raises(Killed):
                    go_on()
            assert sorted(p.name for p in tmp_path.iterdir()) == [".ingest-got"], stage
    go_on()
    assert contents(tmp_path / "got") == want
    assert sorted(p.name for p in tmp_path.iterdir()) == ["got"]


def test_what_cannot_be_is_refused(tmp_path, monkeypatch):
    write_dataset(tmp_path / "before", made())
    lazy = open_lazily(tmp_path / "before")
    for parts, owners in ((2, np.zeros(79, int)), (2, np.full(80, 2))):
        with pytest.raises(InputError, match="owners"):
            relabel(INLINE, lazy, Cut(Given(owners), parts, 0), tmp_path / "got", MEMORY, lambda event: None)
        assert [p.name for p in tmp_path.iterdir()] == ["before"]
    monkeypatch.setattr(budget.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match="MiB are free; free some"):
        relabel(INLINE, lazy, Cut(Hash(), 2, 0), tmp_path / "got", MEMORY, lambda event: None)
    assert [p.name for p in tmp_path.iterdir()] == ["before"]


def test_a_full_disk_leaves_what_is_done_and_nothing_else(tmp_path, monkeypatch):
    write_dataset(tmp_path / "before", made())
    lazy = open_lazily(tmp_path / "before")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(features, "gather_features", full)
        with pytest.raises(RunError, match="no space is left"):
            relabel(INLINE, lazy, Cut(Hash(), 2, 0), tmp_path / "got", MEMORY, lambda event: None)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".ingest-got", "before"]
    relabel(INLINE, lazy, Cut(Hash(), 2, 0), tmp_path / "got", MEMORY, lambda event: None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["before", "got"]


def test_the_command(tmp_path):
    write_dataset(tmp_path / "before", made())
    np.save(tmp_path / "owners.npy", np.arange(80) % 2)
    owners = f"partition.owners={tmp_path / 'owners.npy'}"
    flags = ["--parts", "2", "--into", str(tmp_path / "got"), "--memory", "1GiB", "--set", owners]
    done = CliRunner().invoke(app, ["partition", str(tmp_path / "before"), *flags])
    assert done.exit_code == 0, done.output
    assert "2 parts in" in done.output
    assert open_store(tmp_path / "got", KIND).read("part_offsets").tolist() == [0, 40, 80]
    for given, told in (
        (["--out", "x", "--memory", "1GiB"], "--memory bounds the writing of a renumbered store"),
        (["--into", str(tmp_path / "other"), "--memory", "lots"], "memory is 'lots'"),
        (["--out", "x", "--order", "rcm"], "--order is that of a renumbered store"),
        (["--into", str(tmp_path / "other"), "--order", "rmc"], "did you mean 'rcm'"),
    ):
        done = CliRunner().invoke(app, ["partition", str(tmp_path / "before"), "--parts", "2", *given])
        assert told in str(done.exception)
    for given, told in (
        (["--memory", "1GiB"], "--memory is for stores"),
        (["--set", "executor=dask"], "executor=dask"),
    ):
        into = ["--into", str(tmp_path / "other")]
        done = CliRunner().invoke(app, ["partition", "sbm:nodes=100,classes=2", "--parts", "2", *into, *given])
        assert told in str(done.exception)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".jsonl") == ["before", "got", "owners.npy"]
