"""Numbering of sources against sorted sets."""

import numpy as np
from hypothesis import given, settings

from millrace.stages.kernels.aggregation.cpu.numbering import new_table, number_sources
from millrace.tests.stages.kernels.aggregation.cpu.test_destinations import blocks


@settings(max_examples=30, deadline=None)
@given(case=blocks())
def test_destinations_come_first_and_the_others_ascend(case):
    graph, dst, _ = case
    table = new_table(graph.num_nodes)
    sources = np.concatenate([graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in dst] + [dst[:0]])
    for _ in range(2):
        src, local = number_sources(graph.indptr, graph.indices, dst, table)
        assert src.tolist() == [*dst.tolist(), *sorted({*sources.tolist()} - {*dst.tolist()})]
        assert src[local].tolist() == sources.tolist()
        assert (table == -1).all(), "the table is as it was"
