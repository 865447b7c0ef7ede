"""Outputs and metrics of labelled edges."""

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.evaluate import edges
from millrace.stages.evaluate.edges import NodeRows, edge_outputs
from millrace.stages.evaluate.scored import nodes_to_evaluate
from millrace.stages.links.edge_head import EdgeHead
from millrace.storage.features import ArrayFeatures


@pytest.mark.parametrize("chunk", [1, 500, 1 << 20])
@pytest.mark.parametrize("width", [0, 2])
def test_pieces_do_not_show(monkeypatch, chunk, width):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    head, rows = EdgeHead(3, width, 4).double(), torch.rand(6, 3).double()
    positions = rng.integers(0, 6, (50, 2))
    own = rng.random((50, width)).astype(np.float32) if width else None
    monkeypatch.setattr(edges, "CHUNK_BYTES", chunk)
    found = edge_outputs(head, rows, positions, own)
    more = () if own is None else (torch.from_numpy(own),)
    torch.testing.assert_close(found, head(rows[positions[:, 0]], rows[positions[:, 1]], *more), rtol=1e-12, atol=0)
    assert not found.requires_grad
    assert edge_outputs(head, rows, positions[:0], None if own is None else own[:0]).shape == (0, 4)


@pytest.mark.parametrize("times", [1, 100])
def test_rows_are_found_by_their_nodes(times):
    rows = NodeRows(np.array([2, 5, 90]), torch.rand(3, 1))
    # Two edges are searched for, two hundred looked up.
    found = rows.positions(np.array([[90, 2], [5, 5]] * times))
    assert found.tolist() == [[2, 0], [1, 1]] * times


def test_nodes_to_evaluate_are_the_ends_of_the_splits():
    rng, none = np.random.default_rng(0), np.empty(0, np.int64)
    pairs = rng.integers(0, 30, (40, 2))
    graph = mr.Graph(np.zeros(31, np.int64), np.empty(0, np.int32))
    split = mr.Split(np.arange(10), np.arange(10, 18), none)
    data = mr.Dataset("d", graph, ArrayFeatures(np.zeros((30, 1))), np.zeros(40, np.int64), split, 2, pairs=pairs)
    assert np.array_equal(nodes_to_evaluate(data, ("val",)), np.unique(pairs[10:18]))
    assert np.array_equal(nodes_to_evaluate(data), np.unique(pairs[:18]))
    assert nodes_to_evaluate(data, ("test",)).dtype == np.int64 and not len(nodes_to_evaluate(data, ("test",)))
