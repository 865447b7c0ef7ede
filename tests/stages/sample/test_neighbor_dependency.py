"""Minibatches that draw by the same numbers: which, by an oracle of single minibatches, and the rows they share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.assignment import BulkRequest, SeedPlan
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.base import Sampler, check_kernel
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import MiniBatch
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.messages import graphs
from millrace.tests.oracles.sampling import backend as reference

KINDS = {
    "neighbor": lambda k: NeighborSampler((10, 5), batch_dependency=k),
    "neighbor, all": lambda k: NeighborSampler((6, 6), expand="all", batch_dependency=k),
    "labor": lambda k: LaborSampler((10, 5), batch_dependency=k),
}
SAMPLERS = pytest.mark.parametrize("kind", KINDS)


def epoch(graph: Graph, plan: SeedPlan, sampler: Sampler, kernel: object = cpu, number: int = 1) -> list[MiniBatch]:
    bulks = (sampler.sample(graph, plan.request(number, n), kernel) for n in range(plan.num_bulks))
    return [m for bulk in bulks for m in bulk.check().minibatches]


@SAMPLERS
@settings(max_examples=15)
@given(graph=graphs(), k=st.integers(1, 5), batch_size=st.integers(1, 6), seed=st.integers(0, 2**40))
def test_each_is_the_minibatch_that_its_group_would_draw(
    kind: str, graph: Graph, k: int, batch_size: int, seed: int
) -> None:
    """Minibatch i has the numbers of a plain sampler's minibatch i // k, in bulks of any size and by either kernel."""
    nodes = np.arange(graph.num_nodes)
    seen = []
    for kernel, bulk_size in ((cpu, 1), (cpu, 4), (reference, 3)):
        plan = SeedPlan(nodes, batch_size, bulk_size, seed)
        seen.append([minibatch_digest(m) for m in epoch(graph, plan, KINDS[kind](k), kernel)])
    assert seen[1:] == seen[:-1]
    plan = SeedPlan(nodes, batch_size, 1, seed)
    for i, digest in enumerate(seen[0]):
        seeds = plan.request(1, i).seeds
        alone = BulkRequest(seed, 1, 0, i, seeds, (i // k,))
        (m,) = KINDS[kind](1).sample(graph, alone, cpu).minibatches
        same = MiniBatch(m.epoch, i, m.blocks, nested=m.nested)
        assert minibatch_digest(same) == digest


@pytest.mark.parametrize(("kind", "share"), [("neighbor", 0.95), ("neighbor, all", 0.95), ("labor", 0.75)])
def test_together_they_read_fewer_rows(kind: str, share: float) -> None:
    rng = np.random.default_rng(0)
    V, E = 6000, 200_000
    graph = from_edges((rng.random(E) ** 3 * V).astype(np.int64), rng.integers(0, V, E), V)
    plan = SeedPlan(rng.permutation(V)[:800], 50, 4, 7)

    def rows(k: int) -> int:
        made = epoch(graph, plan, KINDS[kind](k))
        return sum(len(np.unique(np.concatenate([m.nodes for m in made[i : i + 4]]))) for i in range(0, 16, 4))

    assert rows(4) < share * rows(1)


@SAMPLERS
def test_only_one_that_is_set_is_recorded(kind: str) -> None:
    assert KINDS[kind](1).record() == {k: v for k, v in KINDS[kind](3).record().items() if k != "batch_dependency"}
    assert KINDS[kind](3).record()["batch_dependency"] == 3


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
@SAMPLERS
def test_numbers_that_are_none_are_refused(kind: str, number: object) -> None:
    with pytest.raises(InputError, match=r"batch_dependency is .*; expected a whole number of minibatches, 1 or more"):
        KINDS[kind](number)


def test_cugraph_draws_by_numbers_of_its_own() -> None:
    with pytest.raises(InputError, match='batch_dependency is 2, but kernel is "cugraph"'):
        check_kernel(NeighborSampler(batch_dependency=2), "cugraph")
    check_kernel(NeighborSampler(), "cugraph")
