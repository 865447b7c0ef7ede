"""Layers over files: the bits of evaluation in one process, whoever computes which range in which order."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from millrace.stages.evaluate import in_files
from millrace.stages.evaluate.in_files import FileLayers, ModelReads, lay_out
from millrace.stages.evaluate.layerwise import evaluating, infer
from millrace.stages.models import GINE, RGAT
from millrace.stages.models.base import as_model
from millrace.stages.models.relational import TypedInput
from millrace.stages.self_loops import degree_of
from millrace.storage.dataset import Dataset, Split
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, RunError, StoreError
from millrace.storage.features import ArrayFeatures, MappedFeatures
from millrace.storage.graph import Graph
from millrace.storage.lazy_dataset import open_lazily
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.stages.evaluate.test_direct import OPTIONS, WIDTHS, build, large, rows_of
from millrace.tests.stages.evaluate.test_layerwise import Maxed, cases, dense, hub_graph


def computed(folder, model, graph, features, nodes, ranges=3, seed=0):
    """Outputs for ascending `nodes`, of ranges in any order, each with an object of its own; one is done twice."""
    with evaluating(model):
        dtype = next(p.dtype for p in model.parameters())
        layout = lay_out(folder, graph, features, nodes, ModelReads(model.num_layers, dtype, graph.edge_features, True))
        driver = FileLayers(layout, model)
        for k in driver.stages:
            spans = driver.begin(k, ranges)
            assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
            assert (spans[-1][1], len(spans) <= max(ranges, 1)) == (driver.num_rows(k), True)
            for at in [*np.random.default_rng(seed).permutation(len(spans)), 0]:
                assert sum(FileLayers(layout, model).compute(k, *spans[at])) == spans[at][1] - spans[at][0]
        return torch.from_numpy(driver.result()), driver


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=8, deadline=None)
@given(case=cases(), ranges=st.integers(1, 4))
def test_any_nodes_of_any_graph(name, width, tmp_path_factory, case, ranges):
    graph, nodes = case
    x, model, nodes = rows_of(graph.num_nodes, width), build(name, width), np.unique(nodes)
    folder = tmp_path_factory.mktemp("f")
    got, driver = computed(folder, model, graph, ArrayFeatures(x), nodes, ranges)
    assert driver.in_parts
    assert torch.equal(got, infer(model, graph, x, nodes=nodes))
    torch.testing.assert_close(got, dense(model, graph, x)[nodes], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", OPTIONS)
def test_many_blocks_are_cut_as_in_one_process(name, tmp_path):
    graph, model, x = large(), build(name, 8), rows_of(5000, 8)
    for nodes in (np.arange(5000), np.arange(0, 5000, 3)):
        (folder := tmp_path / str(len(nodes))).mkdir()
        got, driver = computed(folder, model, graph, ArrayFeatures(x), nodes, 3)
        assert torch.equal(got, infer(model, graph, x, nodes=nodes))
        with evaluating(model):
            assert len(driver.begin(1, 3)) > 1


@pytest.mark.parametrize("name", [*OPTIONS, "any layer"])
def test_rows_that_do_not_fit_are_read_by_the_wave_and_no_bit_moves(name, tmp_path, monkeypatch):
    graph, x, nodes = large(), rows_of(5000, 8), np.arange(0, 5000, 3)
    # With more classes than hidden columns attention sums these once for each head.
    model = as_model(Maxed().double()) if name == "any layer" else build(name, 8, classes=12)
    x = rows_of(5000, 5) if name == "any layer" else x
    want = infer(model, graph, x, nodes=nodes)
    monkeypatch.setattr(in_files, "fits_in_memory", lambda _: False)
    monkeypatch.setattr(MappedFeatures, "is_cached", lambda *_: False)
    read, gather = [], MappedFeatures.gather
    monkeypatch.setattr(MappedFeatures, "gather", lambda *a: read.append(len(a[1])) or gather(*a))
    got, _ = computed(tmp_path, model, graph, ArrayFeatures(x), nodes, 3)
    assert read
    if name == "any layer":
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    else:
        assert torch.equal(got, want)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_module_that_has_no_parts_goes_by_chunks(weighted, tmp_path):
    graph, x = hub_graph(weighted), rows_of(40, 5)
    for number, model in enumerate((as_model(Maxed().double()), hooked(build("gat", 5)))):
        for nodes in (np.arange(40), np.array([0, 7, 39]), np.empty(0, np.int64)):
            (folder := tmp_path / f"{number}-{len(nodes)}").mkdir()
            got, driver = computed(folder, model, graph, ArrayFeatures(x), nodes)
            assert not driver.in_parts
            torch.testing.assert_close(got, infer(model, graph, x, nodes=nodes), rtol=1e-12, atol=1e-12)


def test_features_of_edges_come_from_a_store_and_from_a_file(tmp_path):
    plain, x = hub_graph(True), rows_of(40, 5)
    rows = np.random.default_rng(1).standard_normal((plain.num_edges, 3))
    np.save(tmp_path / "rows.npy", rows)
    torch.manual_seed(0)
    model = GINE(hidden=8, layers=2, dropout=0.0, edge_width=3).build(5, 2).double()
    for number, edges in enumerate((ArrayFeatures(rows), MappedFeatures(tmp_path / "rows.npy"))):
        graph = replace(plain, edge_features=edges)
        for nodes in (np.arange(40), np.array([0, 7, 39])):
            (folder := tmp_path / f"{number}-{len(nodes)}").mkdir()
            got, driver = computed(folder, model, graph, ArrayFeatures(x), nodes)
            assert not driver.in_parts and (folder / "edge_features.npy").exists() == (number == 0)
            torch.testing.assert_close(got, infer(model, graph, x, nodes=nodes), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", ["memory", "store"])
def test_relations_and_the_features_of_their_edges(place, tmp_path):
    data = typed_dataset(edge_features=True)
    torch.manual_seed(0)
    given = TypedInput(data.graph.types, data.features.widths)
    model = RGAT(hidden=8, layers=2, heads=2, dropout=0.0, edge_width=3).build_typed(given, 3).double()
    nodes = np.array([0, 3, 19, 30, 35])
    wanted = infer(model, data, nodes=nodes)
    if place == "store":
        write_dataset(tmp_path / "store", data)
        data = open_lazily(tmp_path / "store")
    (tmp_path / "f").mkdir()
    got, driver = computed(tmp_path / "f", model, data.graph, data.features, nodes)
    assert not driver.in_parts
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def hooked(model: nn.Module) -> nn.Module:
    model.register_forward_hook(lambda *_: None)
    return model


def test_nothing_and_a_graph_without_edges(tmp_path):
    model, empty = build("gcn", 3), Graph(np.zeros(5, np.int64), np.empty(0, np.int32))
    for nodes in (np.empty(0, np.int64), np.arange(4)):
        (folder := tmp_path / str(len(nodes))).mkdir()
        got, _ = computed(folder, model, empty, ArrayFeatures(rows_of(4, 3)), nodes)
        assert torch.equal(got, infer(model, empty, rows_of(4, 3), nodes=nodes))


@pytest.mark.parametrize("place", ["npy", "zarr"])
def test_a_store_is_copied_piece_by_piece_and_mapped_features_are_left(place, tmp_path, monkeypatch):
    """Whatever the sizes of the pieces; weights too, whose sums are the degrees."""
    graph, x = hub_graph(True), rows_of(40, 5).astype(np.float32)
    none = np.empty(0, np.int64)
    whole = Dataset("d", graph, ArrayFeatures(x), np.zeros(40, np.int64), Split(none, none, none), 3)
    write_dataset(tmp_path / "store", whole, features_format=place)
    stored = open_lazily(tmp_path / "store", "mapped" if place == "npy" else "zarr")
    monkeypatch.setattr(in_files, "PIECE_BYTES", 64)
    model = build("gcn", 5)
    got, driver = computed(tmp_path, model, stored.graph, stored.features, np.arange(40))
    assert torch.equal(got, infer(model, graph, x))
    assert np.array_equal(driver.degree.numpy(), degree_of(graph, loops=True))
    assert "indices" not in vars(stored.graph), "the driver has read all edges"
    assert isinstance(stored.features, MappedFeatures) == (not (tmp_path / "features.npy").exists())


def test_a_mapped_graph_stays_where_it_is(tmp_path):
    graph, x = hub_graph(True), rows_of(40, 5).astype(np.float32)
    none = np.empty(0, np.int64)
    whole = Dataset("d", graph, ArrayFeatures(x), np.zeros(40, np.int64), Split(none, none, none), 3)
    write_dataset(tmp_path / "store", whole, graph_format="npy", feature_dtype="float16")
    stored, model = open_lazily(tmp_path / "store", "zarr", graph="mapped"), build("gcn", 5)
    got, driver = computed(tmp_path, model, stored.graph, stored.features, np.arange(40))
    for name in ("indptr", "indices", "edge_weight"):
        assert (tmp_path / f"{name}.npy").resolve() == (tmp_path / "store" / f"{name}.npy").resolve()
    assert torch.equal(got, infer(model, graph, stored.features.gather(np.arange(40))))
    assert np.array_equal(driver.degree.numpy(), degree_of(graph, loops=True))
    np.load(tmp_path / "store" / "indices.npy", mmap_mode="r+")[-1] = 40
    graph, reads = open_lazily(tmp_path / "store", graph="mapped").graph, ModelReads(1, torch.half)
    with pytest.raises(StoreError, match="indices lie in"):
        lay_out(tmp_path, graph, ArrayFeatures(x), none, reads)


def test_a_damaged_store_is_an_error(tmp_path):
    none = np.empty(0, np.int64)
    whole = Dataset("d", hub_graph(), ArrayFeatures(rows_of(40, 5)), np.zeros(40, np.int64), Split(none, none, none), 3)
    write_dataset(tmp_path / "store", whole)
    graph = open_lazily(tmp_path / "store").graph
    for file in (tmp_path / "store" / "arrays" / "indices" / "c").iterdir():
        file.write_bytes(b"damaged")
    with pytest.raises(StoreError, match="array 'indices' is damaged"):
        lay_out(tmp_path, graph, whole.features, np.arange(40), ModelReads(1, torch.float32))


def test_a_width_that_the_model_does_not_read_is_a_sentence(tmp_path):
    model, graph = build("gcn", 5), hub_graph()
    with pytest.raises(InputError, match="a node has 4 features"):
        computed(tmp_path, model, graph, ArrayFeatures(rows_of(40, 4)), np.arange(40))


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    model, graph, x = build("gcn", 5), hub_graph(), ArrayFeatures(rows_of(40, 5))
    with evaluating(model):
        layers = FileLayers(lay_out(tmp_path, graph, x, np.arange(40), ModelReads(3, torch.float64, None, True)), model)
        layers.begin(0, 1)
        sink = in_files._FileSink([tmp_path / "rows-0.npy"], 0, 1)
        sink.begin(torch.zeros(1, 8))
        sink.file.close()
        sink._parts = [(type("Full", (), {"seek": full, "write": full, "close": full})(), 0, slice(0, 8))]
        with pytest.raises(RunError, match="No space left"):
            sink.append(torch.zeros(1, 8))
        with pytest.raises(RunError, match="No space left"):
            sink.close()
        monkeypatch.setattr(in_files, "make_npy", full)
        with pytest.raises(RunError, match=r"cannot write to .*No space left"):
            lay_out(tmp_path, graph, x, np.arange(40), ModelReads(3, torch.float64, None, True))
