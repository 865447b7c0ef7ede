"""LABOR relation by relation: the same bits in both kernels, its invariants, and the law of its rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.labor import LaborSampler
from millrace.storage.errors import InputError
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.typed import typed_dataset, typed_graphs
from millrace.tests.oracles.sampling import backend as reference

numbers = st.sampled_from([-1, 1, 2, 3, 70])


@pytest.fixture(autouse=True)
def _restore_threads():
    yield
    threads.set_num_threads(None)


def drawn(sampler, graph, kernel, k, num_threads=1, seed=0):
    threads.set_num_threads(num_threads)
    plan = SeedPlan(np.arange(graph.num_nodes), 3, k, seed)
    bulks = (sampler.sample(graph, plan.request(0, b), kernel) for b in range(plan.num_bulks))
    return [m for bulk in bulks for m in bulk.minibatches]


@settings(max_examples=20, deadline=None)
@given(typed_graphs(), st.data())
def test_same_minibatches_for_any_kernel_threads_and_bulk_size(graph, data):
    sampler = LaborSampler(
        (data.draw(numbers), data.draw(numbers)),
        poisson=data.draw(st.booleans()),
        expand=data.draw(st.sampled_from(["new", "all"])),
        relations={",".join(r): data.draw(numbers | st.just(0)) for r in graph.types.relations[:2]},
        edge_ids=True,
    )
    if data.draw(st.booleans()):
        graph = replace(graph, edge_weight=np.arange(1, graph.num_edges + 1, dtype=np.float32))
    first = drawn(sampler, graph, reference, 2)
    digests = [minibatch_digest(m) for m in first]
    for k, num_threads in ((1, 1), (3, 2)):
        assert [minibatch_digest(m) for m in drawn(sampler, graph, cpu, k, num_threads)] == digests
    fanout = sampler.by_relation(graph.types)
    for m in first:
        block = m.check().blocks[-1]
        for i, v in enumerate(block.src[: block.num_dst]):
            edges = slice(block.indptr[i], block.indptr[i + 1])
            at = block.edge_id[edges]
            assert (graph.indices[at] == block.src[block.indices[edges]]).all()
            own = graph.edge_type[graph.indptr[v] : graph.indptr[v + 1]]
            for r, s in enumerate(fanout[0].tolist()):
                mine = graph.edge_type[at] == r
                kept, degree = int(mine.sum()), int((own == r).sum())
                weight = block.weight[edges][mine]
                if graph.edge_weight is not None:
                    weight = weight / graph.edge_weight[at[mine]]
                if sampler.poisson:
                    assert weight == pytest.approx(max(degree / s, 1) if s > 0 else 1)
                    continue
                assert kept == (degree if s < 0 else min(s, degree))
                assert weight == pytest.approx(degree / max(kept, 1))


@pytest.mark.parametrize("poisson", [False, True])
def test_rows_agree_on_their_sources_and_sums_are_not_biased(poisson):
    """Papers of one venue and writers: a source that one row keeps is more likely kept by the others too."""
    graph = typed_dataset(degree=150).graph
    # Of parallel edges only the first: those of rows of exact size are biased, see `LaborSampler`.
    rows = np.repeat(np.arange(36), graph.in_degree)
    _, first = np.unique(np.stack([rows, graph.edge_type, graph.indices]), axis=1, return_index=True)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[np.sort(first)], minlength=36))])
    keep = np.sort(first)
    graph = replace(graph, indptr=indptr, indices=graph.indices[keep], edge_type=graph.edge_type[keep]).check()
    x, sums, epochs = np.arange(36.0), np.zeros((2, 36)), 400
    for epoch in range(epochs):
        request = SeedPlan(np.arange(36), 36, 1, 1, shuffle=False).request(epoch, 0)
        block = LaborSampler((2,), poisson=poisson, edge_ids=True).sample(graph, request, cpu).minibatches[0].blocks[0]
        out = np.repeat(np.arange(36), np.diff(block.indptr))
        found = np.bincount(out, block.weight * x[block.src[block.indices]], minlength=36)
        sums += found, found**2
    exact = np.bincount(np.repeat(np.arange(36), graph.in_degree), x[graph.indices], minlength=36)
    mean = sums[0] / epochs
    error = np.sqrt(np.maximum(sums[1] / epochs - mean**2, 0) / epochs)
    assert (np.abs(mean - exact) <= 5 * error + 1e-4 * np.maximum(exact, 1)).all()


def test_what_does_not_go_with_relations_is_refused():
    graph = typed_dataset().graph
    for sampler, said in (
        (LaborSampler((2,), poisson=True, iterations=1), "iterations is 1, but the graph has several relations"),
        (LaborSampler((2,), weighted=True), "the sampler is weighted, but the graph has several relations"),
        (LaborSampler((2,), relations={"wrote": 1}), "there is no relation 'wrote'"),
    ):
        with pytest.raises(InputError, match=said):
            sampler.check(graph)
    assert LaborSampler((2,), relations={"writes": 1}).record()["relations"] == {"writes": 1}
