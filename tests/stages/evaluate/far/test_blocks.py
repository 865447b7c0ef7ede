"""Rows of layers that lie on disk: the bits of rows in memory, each read a few times, and no more than has room."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from millrace.stages.evaluate import direct
from millrace.stages.evaluate.far import blocks as far_rows
from millrace.stages.evaluate.far import rows as rows_module
from millrace.stages.evaluate.layerwise import infer
from millrace.storage.features import MappedFeatures
from millrace.storage.graph import Graph, from_edges
from millrace.storage.store.row_file import RowFile
from millrace.tests.stages.evaluate.test_direct import OPTIONS, build, large, rows_of


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Has rows lie on disk, with memory for so many bytes of them; gives the bytes of each reading."""
    found: list[int] = []

    def begin(room: int) -> list[int]:
        monkeypatch.setattr(MappedFeatures, "is_cached", lambda self, ids: False)
        monkeypatch.setattr(far_rows, "SPARE_BYTES", 0)
        monkeypatch.setattr(far_rows, "bytes_left", lambda: far_rows.LEFT_SHARE * room)
        for place in (direct, rows_module):
            monkeypatch.setattr(place, "fits_in_memory", lambda num_bytes: False)
        real = far_rows.FarRows.read
        monkeypatch.setattr(
            far_rows.FarRows, "read", lambda s, nodes, *a: found.append(len(nodes) * s.row_bytes) or real(s, nodes, *a)
        )
        return found

    return begin


@pytest.mark.parametrize(
    ("name", "room"),
    [*((n, 40_000) for n in OPTIONS), *((n, r) for n in ("sage", "gat") for r in (1, 8_000)), ("sage-max", 1 << 30)],
)
def test_rows_on_disk_give_the_bits_of_memory(held, tmp_path, name, room):
    """Features and hidden rows. With room for a single row each edge reads its own, so that graph is small."""
    graph = large() if room > 1 else scattered(400, 4000)
    x = rows_of(graph.num_nodes, 50)
    # With more classes than hidden columns attention sums these once for each head.
    model = build(name, 50, classes=12)
    want = infer(model, graph, x, max_bytes=100_000)
    np.save(tmp_path / "x.npy", x)
    read = held(room)
    (tmp_path / "scratch").mkdir()
    steps: list[tuple[int, int]] = []
    got = infer(
        model,
        graph,
        MappedFeatures(tmp_path / "x.npy"),
        max_bytes=100_000,
        scratch=tmp_path / "scratch",
        on_progress=lambda *step: steps.append(step),
    )
    assert torch.equal(got, want)
    assert len(read) > 2
    assert steps == sorted(steps)
    assert steps[-1] == (3 * graph.num_nodes, 3 * graph.num_nodes)
    if room == 40_000:
        assert max(read) <= room


def scattered(n: int = 6000, edges: int = 60_000) -> Graph:
    """A graph without locality, whose sums do not fit the cache."""
    rng = np.random.default_rng(2)
    ends, weight = rng.integers(n, size=(2, edges)), rng.random(edges).astype(np.float32)
    return from_edges(*ends, n, edge_weight=weight)


@pytest.mark.parametrize("width", [12, 50])
@pytest.mark.parametrize("name", ["sage", "sage-max", "gcn", "gat"])
def test_sources_all_over_the_file_go_by_a_few_times(held, tmp_path, name, width):
    """Memory for the sums of a third of the nodes: each layer reads its rows once for each third, and own rows once;
    products before sums lie apart, in float32 too."""
    graph, x = scattered(), rows_of(6000, width).astype(np.float32)
    model = build(name, width).float()
    want = infer(model, graph, x, max_bytes=20_000)
    np.save(tmp_path / "x.npy", x)
    room = -int(-far_rows.SUMS_SHARE * 2000 * (far_rows.SUM_BYTES + 4 * max(8, width)) // far_rows.LEFT_SHARE)
    held(room)
    counts: list[int] = []
    real = RowFile.read

    def read(self, rows, *rest):
        counts.append(len(rows) if self.row_bytes else 0)
        assert len(rows) * self.row_bytes <= max(room, 20_000)
        real(self, rows, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowFile, "read", read)
        got = infer(model, graph, MappedFeatures(tmp_path / "x.npy"), max_bytes=20_000, scratch=tmp_path)
    assert torch.equal(got, want)
    # Three layers, of at most three passes each over what is summed, one over the rest, and the first product's.
    assert sum(counts) <= (3 * (3 + 1) + 1) * 6000 + 3 * 6000


def test_lists_in_another_order_are_read_by_the_wave(held, tmp_path):
    graph, x = scattered(), rows_of(6000, 12)
    turned = graph.indices.copy()
    for v in range(6000):
        turned[graph.indptr[v] : graph.indptr[v + 1]] = graph.indices[graph.indptr[v] : graph.indptr[v + 1]][::-1]
    other, model = Graph(graph.indptr, turned), build("sage", 12)
    np.save(tmp_path / "x.npy", x)
    want = infer(model, other, x, max_bytes=20_000)
    held(40_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(far_rows.FarBlocks, "_swept", None)
        got = infer(model, other, MappedFeatures(tmp_path / "x.npy"), max_bytes=20_000, scratch=tmp_path)
    assert torch.equal(got, want)


@pytest.mark.parametrize("at", [2, 40])
def test_an_evaluation_that_is_stopped_in_the_midst_ends(held, tmp_path, at):
    """Progress is asked for while features are multiplied and while rows go by, and its error ends the evaluation and
    the reading thread."""
    graph, x = scattered(), rows_of(6000, 12)
    np.save(tmp_path / "x.npy", x)
    held(20_000)
    asked: list[int] = []

    def stop(done: int, rows: int) -> None:
        asked.append(done)
        if len(asked) == at:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        infer(
            build("sage", 12),
            graph,
            MappedFeatures(tmp_path / "x.npy"),
            max_bytes=20_000,
            scratch=tmp_path,
            on_progress=stop,
        )
    assert len(asked) == at
    assert (max(asked) == 0) == (at == 2)
    assert max(asked) < 6000
    assert threading.active_count() <= before + 2
