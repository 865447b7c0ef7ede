"""Sampling of relations by the owners of rows: the edges and weights of the whole graph, on any blocks."""

from dataclasses import replace

import numpy as np
import pytest

from millrace.stages.assignment import BulkRequest
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.placement.row_owners import Owners
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.partition.book import RangeBook
from millrace.tests.contracts.block_sampling import block_rows
from millrace.tests.contracts.thread_ranks import run_threads
from millrace.tests.contracts.typed import typed_dataset

GRAPH = typed_dataset(degree=120).graph
WEIGHTED = replace(GRAPH, edge_weight=np.arange(1, GRAPH.num_edges + 1, dtype=np.float32))
R = GRAPH.types.num_relations
SAMPLERS = [
    NeighborSampler((2, 3), relations={"cites": (-1, 1), "writes": 0}, edge_ids=True),
    NeighborSampler((2, 2), replace=True, expand="all", edge_ids=True),
    LaborSampler((2, -1), edge_ids=True),
    LaborSampler((2, 3), poisson=True, relations={"prints": 1}, expand="all", edge_ids=True),
]


def blocks_of(minibatch):
    return [(b.src.tolist(), b.indptr.tolist(), b.indices.tolist(), b.weight.tolist()) for b in minibatch.blocks]


@pytest.mark.parametrize("graph", [GRAPH, WEIGHTED], ids=["plain", "weighted"])
@pytest.mark.parametrize("offsets", [(0, 36), (0, 13, 36), (0, 20, 20, 29, 36)], ids=str)
def test_owners_draw_what_the_whole_graph_gives(graph, offsets):
    book = RangeBook(np.array(offsets))

    def rank(group):
        rows = block_rows(graph, book, group.rank, group)
        owners = Owners(rows, group)
        # The last rank has no minibatches, unless it is alone.
        k = 2 if group.rank == 0 or group.rank < group.size - 1 else 0
        for sampler in SAMPLERS:
            request = BulkRequest(7, group.rank, 0, 2 * group.rank, (np.arange(9), np.array([30, 3, 20]))[:k])
            found = sampler.sample_by_owners(owners, request).minibatches
            if not k:
                assert not found
                continue
            for one, other in zip(found, sampler.sample(graph, request, cpu).minibatches, strict=True):
                assert blocks_of(one) == blocks_of(other)
                for b, whole in zip(one.blocks, other.blocks):
                    assert (b.edge_id // R == whole.edge_id).all()
                    assert (rows.types_of(b.edge_id).of_edges() == graph.edge_type[whole.edge_id]).all()

    run_threads(rank, book.num_parts)
