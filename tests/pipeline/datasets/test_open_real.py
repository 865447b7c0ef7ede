"""The real graphs open, with the published counts."""

import numpy as np
import pytest

from millrace.pipeline.datasets import ReadOptions, open_dataset

PUBLISHED = {
    # file: (nodes, edges after reading, features, classes, stored split)
    "cora": (2708, 10556, 1433, 7, (140, 500, 1000)),
    "citeseer": (3327, 9228, 3703, 6, (120, 500, 1000)),
    "amazon_computers": (13752, 491722, 767, 10, None),
    "minesweeper": (10000, 2 * 39402, 7, 2, (5000, 2500, 2500)),
    "flickr_saint": (89250, 899756, 2, 7, (44625, 22312, 22313)),
    "ogbn_arxiv": (169343, 1166243, 2, 40, (90941, 29799, 48603)),
    "coauthor_cs": (18333, 163788, 6805, 15, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(shared_data, name):
    nodes, edges, features, classes, parts = PUBLISHED[name]
    d = open_dataset(shared_data / f"{name}.npz").check()
    assert (d.num_nodes, d.graph.num_edges, d.features.num_features, d.num_classes) == (nodes, edges, features, classes)
    assert d.name == name
    sizes = tuple(len(ids) for ids in (d.split.train, d.split.val, d.split.test))
    labelled = int((d.labels >= 0).sum())
    assert sizes == (parts or (20 * classes, 30 * classes, labelled - 50 * classes))


def test_what_was_done_is_noted(shared_data):
    assert any("124 self loops" in n for n in open_dataset(shared_data / "citeseer.npz").notes)
    assert any("15 nodes are unlabelled" in n for n in open_dataset(shared_data / "citeseer.npz").notes)
    assert any("symmetrise before use" in n for n in open_dataset(shared_data / "amazon_computers.npz").notes)
    assert any("no features" in n for n in open_dataset(shared_data / "flickr_saint.npz").notes)


def test_options_change_what_is_read(shared_data):
    dropped = open_dataset(shared_data / "citeseer.npz", options=ReadOptions(self_loops="drop"))
    assert dropped.graph.num_edges == 9104
    both = open_dataset(shared_data / "ogbn_arxiv.npz", options=ReadOptions(direction="undirected"))
    assert both.graph.num_edges == 2315598
    once = open_dataset(shared_data / "amazon_computers.npz", options=ReadOptions(direction="directed"))
    assert once.graph.num_edges == 287209


def test_rows_are_the_stored_rows(shared_data):
    d = open_dataset(shared_data / "cora.npz")
    with np.load(shared_data / "cora.npz") as z:
        v = 1234
        row = np.zeros(1433, np.float32)
        stored = slice(z["x_indptr"][v], z["x_indptr"][v + 1])
        row[z["x_indices"][stored]] = z["x_data"][stored]
        src, dst = z["edge_index"]
    assert np.array_equal(d.features.gather(np.array([v]))[0], row)
    assert np.array_equal(d.graph.indices[d.graph.indptr[v] : d.graph.indptr[v + 1]], np.sort(src[dst == v]))
