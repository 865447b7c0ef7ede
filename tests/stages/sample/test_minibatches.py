"""Minibatches for loops of one's own."""

from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels import sampling_backend
from millrace.stages.kernels.runtime import threads
from millrace.stages.sample import minibatches
from millrace.stages.sample.minibatches import sample_minibatches
from millrace.storage.minibatch import MiniBatch

SAMPLERS: tuple[Any, ...] = (
    mr.NeighborSampler((3, 2)),
    mr.NeighborSampler((3, 2), weighted=True, expand="all", edge_ids=True),
    mr.LaborSampler((3, 2)),
    mr.LadiesSampler((8, 4)),
    mr.FastGCNSampler((8, 4)),
)


def graph_of(n: int = 60, edges: int = 400) -> mr.Graph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, n, (2, edges))
    return mr.from_edges(src, dst, n, edge_weight=rng.random(edges).astype(np.float32))


def same(a: MiniBatch, b: MiniBatch) -> bool:
    def arrays(m: MiniBatch) -> list[Any]:
        return [x for block in m.blocks for x in (block.src, block.indptr, block.indices, block.weight, block.edge_id)]

    pairs = zip(arrays(a), arrays(b), strict=True)
    return (a.epoch, a.index) == (b.epoch, b.index) and all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: f"{s.name}{s.weighted if s.name == 'neighbor' else ''}")
def test_minibatches_are_those_of_a_run(sampler: Any):
    graph, seeds = graph_of(), np.arange(0, 60, 2)
    cpu = sampling_backend("cpu")
    plan = SeedPlan(seeds, 7, 2, 5)
    wanted = [m for n in range(plan.num_bulks) for m in sampler.sample(graph, plan.request(3, n), cpu).minibatches]
    for bulk_size, number, kernel in ((1, None, "cpu"), (3, 1, "cpu"), (64, 2, "cpu"), (2, None, "matrix")):
        if kernel == "matrix" and not isinstance(sampler, mr.MatrixSampler):
            continue
        given = sample_minibatches(
            graph, sampler, seeds, batch_size=7, bulk_size=bulk_size, epoch=3, seed=5, threads=number, kernel=kernel
        )
        found = list(given)
        assert [m.index for m in found] == list(range(5))
        assert all(same(a, b) for a, b in zip(wanted, found, strict=True))


def test_seeds_may_be_a_mask_a_tensor_or_a_list():
    graph, sampler = graph_of(), mr.NeighborSampler((2,))
    mask = np.zeros(60, bool)
    mask[[3, 8, 9]] = True
    (wanted,) = sample_minibatches(graph, sampler, [3, 8, 9], shuffle=False)
    assert wanted.seeds.tolist() == [3, 8, 9]
    for seeds in (mask, torch.from_numpy(mask), torch.tensor([3, 8, 9]), np.array([3, 8, 9], np.uint16)):
        (found,) = sample_minibatches(graph, sampler, seeds, shuffle=False)
        assert same(found, wanted)


def test_a_dataset_stands_for_its_graph():
    dataset = mr.open_dataset("sbm:nodes=300,classes=3,degree=6")
    for a, b in zip(
        mr.sample_minibatches(dataset, mr.NeighborSampler((2,)), dataset.split.train, batch_size=32),
        mr.sample_minibatches(dataset.graph, mr.NeighborSampler((2,)), dataset.split.train, batch_size=32),
        strict=True,
    ):
        assert same(a, b)


def test_epochs_differ_and_cover_all_seeds():
    orders = []
    for epoch in range(2):
        found = list(
            sample_minibatches(graph_of(), mr.NeighborSampler((2,)), np.arange(60), batch_size=16, epoch=epoch)
        )
        orders.append(np.concatenate([m.seeds for m in found]))
        assert [len(m.seeds) for m in found] == [16, 16, 16, 12]
    assert not np.array_equal(*orders)
    assert all(np.array_equal(np.sort(order), np.arange(60)) for order in orders)


def test_minibatches_that_are_kept_do_not_change():
    graph, sampler = graph_of(), mr.NeighborSampler((3, 2))
    kept = list(sample_minibatches(graph, sampler, np.arange(60), batch_size=4, bulk_size=2))
    again = sample_minibatches(graph, sampler, np.arange(60), batch_size=4, bulk_size=15)
    assert all(same(a, b) for a, b in zip(kept, again, strict=True))


def test_buffers_serve_the_next_epoch_whether_or_not_this_one_was_finished():
    graph = graph_of()
    for whole in (True, False):
        for _ in sample_minibatches(graph, mr.NeighborSampler((2,)), np.arange(20), batch_size=4):
            if not whole:
                break
        assert [len(idle) for idle in minibatches._idle[graph].values()] == [1]


def test_threads_are_limited_while_sampling_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "_asked", 3)
    seen = []

    class Asks:
        name = "asks"

        def check(self, graph: Any) -> None:
            pass

        def sample(self, graph: Any, request: Any, kernel: Any, workspace: Any = None) -> Any:
            seen.append(threads.get_num_threads())
            return mr.NeighborSampler((1,)).sample(graph, request, kernel, workspace)

    sampler: Any = Asks()
    for limit in (None, 1, 2, 7):
        for _ in sample_minibatches(graph_of(), sampler, [1], threads=limit):
            assert threads.get_num_threads() == 3
    assert seen == [3, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph": "digits"}, "graph is 'digits'; expected a Graph"),
        ({"sampler": mr.NeighborSampler}, r"sampler is the class NeighborSampler; expected a sampler, such as mr\."),
        ({"sampler": "labor"}, "sampler is 'labor'; expected a sampler"),
        ({"sampler": (15, 10)}, "sampler is of type tuple"),
        ({"sampler": mr.NeighborSampler((2,), weighted=True), "graph": mr.from_edges([0], [1], 60)}, "no edge weights"),
        ({"seeds": []}, "seeds has shape .0."),
        ({"seeds": [[1]]}, r"seeds has shape \[1, 1\]"),
        ({"seeds": [0.5]}, "seeds is of float64"),
        ({"seeds": [1, 60]}, r"seeds holds node ids in \[1, 60\]; expected \[0, 60\)"),
        ({"seeds": [-1]}, r"seeds holds node ids in \[-1, -1\]"),
        ({"seeds": [4, 5, 4]}, "seeds holds node 4 2 times"),
        ({"seeds": np.zeros(3, bool)}, r"mask of shape \[3\]; expected \[60\]"),
        ({"batch_size": 0}, "batch_size is 0; expected a whole number, 1 or more"),
        ({"bulk_size": 2.5}, "bulk_size is 2.5"),
        ({"epoch": -1}, "epoch is -1; expected a whole number, 0 or more"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"threads": 0}, "threads is 0"),
        ({"kernel": "reference"}, 'or set kernel = "matrix" to check a MatrixSampler'),
        ({"kernel": "matrix"}, "the sampler neighbor has kernels of its own; leave kernel out"),
        ({"kernel": "gpu"}, "no sampling kernel 'gpu'; expected one of cpu, cuda, matrix"),
    ],
)
def test_bad_arguments_are_refused_by_the_call(change: dict[str, Any], message: str):
    given: dict[str, Any] = {"graph": graph_of(), "sampler": mr.NeighborSampler((2,)), "seeds": [1, 2]} | change
    with pytest.raises(mr.InputError, match=message):
        sample_minibatches(given.pop("graph"), given.pop("sampler"), given.pop("seeds"), **given)
