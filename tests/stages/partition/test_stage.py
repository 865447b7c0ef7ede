"""The edge shards that the partition stage writes beside each part."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.partition import stage
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.partition.hash import Hash
from millrace.stages.partition.stage import open_part, open_shards, partition_dataset
from millrace.storage.dataset import Dataset, Split
from millrace.storage.errors import StoreError
from millrace.storage.features import ArrayFeatures
from millrace.storage.graph import from_edges
from millrace.storage.partition.book import open_book
from millrace.storage.partition.edge_shards import write_edge_shards
from millrace.storage.store.manifest import write_manifest
from millrace.tests.contracts.messages import graphs


def dataset_of(graph, seed=0):
    """A dataset around any graph that has a node."""
    n, rng = graph.num_nodes, np.random.default_rng(seed)
    split = Split(*(np.sort(part) for part in np.split(rng.permutation(n), [n // 3, n // 2])))
    return Dataset("toy", graph, ArrayFeatures(rng.random((n, 3), np.float32)), rng.integers(2, size=n), split, 2)


def toy(seed=0):
    rng = np.random.default_rng(seed)
    return dataset_of(
        from_edges(rng.integers(30, size=120), rng.integers(30, size=120), 30, edge_weight=rng.random(120)), seed
    )


def same_edges(dataset, out, parts):
    """Every edge of the graph lies in one shard of one part, under its number in the whole graph."""
    book, graph = open_book(out / "book"), dataset.graph
    src, dst = np.full((2, graph.num_edges), -1)
    for p in range(parts):
        shards, owned, rows = open_shards(out, p)
        partition, same_rows = open_part(out, p)
        assert owned.tolist() == partition.owned.tolist()
        shards.check()
        assert (shards.part, shards.num_parts, shards.num_owned) == (p, parts, partition.num_owned)
        assert rows.labels.tolist() == same_rows.labels.tolist() == dataset.labels[partition.owned].tolist()
        assert np.array_equal(
            rows.features.gather(np.arange(len(partition.owned))), dataset.features.gather(partition.owned)
        )
        row = np.repeat(shards.rows, shards.counts)
        owner = np.repeat(np.arange(parts), np.diff(shards.edge_splits))
        local = shards.indices.copy()
        away = owner != p
        local[away] = shards.sources[shards.source_splits[owner[away]] + shards.indices[away]]
        number = shards.first_edge[row] + shards.edge - partition.indptr[row]
        assert (src[number] == -1).all()
        src[number], dst[number] = book.global_ids(owner, local), partition.owned[row]
        assert graph.edge_weight is None or np.array_equal(shards.edge_weight, graph.edge_weight[number])
    assert np.array_equal(src, graph.indices)
    assert np.array_equal(dst, np.repeat(np.arange(graph.num_nodes), graph.in_degree))


@settings(deadline=None, max_examples=5)
@given(st.data(), st.sampled_from([1, 2, 6]))
def test_shards_hold_every_edge_once(tmp_path_factory, data, parts):
    graph = data.draw(graphs(max_nodes=8, max_edges=15).filter(lambda g: g.num_nodes >= parts))
    method = data.draw(st.sampled_from([Hash(), Contiguous("nodes")]))
    out = tmp_path_factory.mktemp("p") / "out"
    partition_dataset(dataset_of(graph), method, parts, out)
    same_edges(dataset_of(graph), out, parts)


def rows_stamps(out):
    return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("part-*/rows")}


@pytest.mark.parametrize("where", ["write_partition", "write_edge_shards", "_write_rows"])
def test_killed_half_way_is_completed(tmp_path, monkeypatch, where):
    out, dataset, write, calls = tmp_path / "out", toy(), getattr(stage, where), []

    def stop_in_second(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*args, **kwargs)

    monkeypatch.setattr(stage, where, stop_in_second)
    with pytest.raises(KeyboardInterrupt):
        partition_dataset(dataset, Hash(), 3, out)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="never committed"):
        open_shards(out, 0)
    first = rows_stamps(out)["part-0000"]
    assert partition_dataset(dataset, Hash(), 3, out).parts_written == 2
    assert rows_stamps(out)["part-0000"] == first
    same_edges(dataset, out, 3)


def as_before_shards(out, shardless):
    """Turn the folder into what was written before there were shards: no shards in some parts, no layout in its
    manifest."""
    for p in shardless:
        (out / f"part-{p:04d}" / "shards").rename(out.parent / f"gone-{p}")
    body = json.loads((out / "manifest.json").read_text())
    assert body["meta"].pop("layout") == stage.LAYOUT
    (out / "manifest.json").unlink()
    write_manifest(out, stage.KIND, body["fingerprint"], body["meta"], {})


def test_a_folder_of_an_earlier_version_is_refused_in_plain_words_and_completed(tmp_path):
    out, dataset = tmp_path / "out", toy()
    quality = partition_dataset(dataset, Hash(), 3, out).quality
    as_before_shards(out, (0, 2))
    open_part(out, 0)
    with pytest.raises(StoreError, match="which made no edge shards; partition the same dataset into it again"):
        open_shards(out, 0)
    again = partition_dataset(dataset, Hash(), 3, out)
    assert (again.parts_written, again.quality) == (2, quality)
    same_edges(dataset, out, 3)
    assert partition_dataset(dataset, Hash(), 3, out).parts_written == 0


def test_an_unfinished_folder_of_an_earlier_version_is_completed(tmp_path):
    """Rows that stand do not vouch for shards that nobody wrote."""
    out, dataset = tmp_path / "out", toy()
    partition_dataset(dataset, Hash(), 2, out)
    as_before_shards(out, (1,))
    (out / "manifest.json").unlink()
    assert partition_dataset(dataset, Hash(), 2, out).parts_written == 1
    same_edges(dataset, out, 2)


def test_shards_of_something_else_are_refused(tmp_path):
    partition_dataset(toy(), Hash(), 2, tmp_path / "out")
    partition_dataset(toy(1), Hash(), 2, tmp_path / "other")
    other, *_ = open_shards(tmp_path / "other", 0)
    write_edge_shards(tmp_path / "out" / "part-0000" / "shards", other, overwrite=True)
    with pytest.raises(StoreError, match="made from something else"):
        open_shards(tmp_path / "out", 0)


def test_damaged_shards_are_refused(tmp_path):
    out = tmp_path / "out"
    partition_dataset(toy(), Hash(), 2, out)
    chunk = next(p for p in (out / "part-0001" / "shards" / "arrays" / "rows").rglob("0") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    open_shards(out, 0)
    with pytest.raises(StoreError, match="'rows' is damaged"):
        open_shards(out, 1)


def test_a_part_that_is_not_there_is_refused(tmp_path):
    partition_dataset(toy(), Hash(), 2, tmp_path / "out")
    for p in (-1, 2):
        with pytest.raises(StoreError, match="has parts 0 to 1"):
            open_shards(tmp_path / "out", p)
