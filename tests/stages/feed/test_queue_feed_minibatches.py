"""The minibatches of an epoch are the same whatever makes and carries them."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.stages.assignment import SeedPlan
from millrace.stages.feed.queue_feed import BulkDraws, BulkSpan, Producer
from millrace.stages.kernels.runtime import threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.base import Sampler
from millrace.stages.sample.fastgcn import FastGCNSampler
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.ladies import LadiesSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph, from_edges
from millrace.storage.queue.base import MemoryQueue, MinibatchQueue
from millrace.storage.queue.zarr import ZarrQueue
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.oracles.sampling import backend as reference

V, MINIBATCHES, BATCH = 300, 67, 2
"""Three bulks of 32, the last one of 3 minibatches, the last of which has one seed."""
BULKS = {1: 6, 8: 3, 32: 3}
"""Minibatches of the epoch that are compared, by k: a small bulk on disk costs as much as a large one."""
EPOCH = 2
PRODUCERS = 3

SAMPLERS: dict[str, Sampler] = {
    "neighbor": NeighborSampler((4, 3)),
    "neighbor, all edges": NeighborSampler((-1, 2)),
    "neighbor, weighted": NeighborSampler((4, 3), weighted=True),
    "neighbor, replace": NeighborSampler((4, 3), replace=True),
    "neighbor, weighted, replace": NeighborSampler((4, 3), weighted=True, replace=True),
    "neighbor, expand all": NeighborSampler((4, 3), expand="all", edge_ids=True),
    "neighbor, expand all, weighted": NeighborSampler((4, 3), expand="all", weighted=True),
    "ladies": LadiesSampler((5, 4), edge_ids=True),
    "ladies, bottom_k": LadiesSampler((5, 4), "bottom_k"),
    "ladies, with_replacement": LadiesSampler((5, 4), "with_replacement"),
    "fastgcn": FastGCNSampler((5, 4)),
    "fastgcn, none": FastGCNSampler((5, 4), "none"),
    "labor": LaborSampler((4, 3), edge_ids=True),
    "labor, poisson": LaborSampler((4, 3), poisson=True),
}


@pytest.fixture
def one_or_two_threads() -> Iterator[None]:
    yield
    threads.set_num_threads(None)


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Hubs, isolated nodes, parallel edges, self loops; weights of unlike size, and 0."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, V - 10, 2000)
    dst = np.where(rng.random(2000) < 0.2, rng.integers(0, 5, 2000), rng.integers(0, V - 10, 2000))
    return from_edges(src, dst, V, edge_weight=rng.choice([0.0, 0.1, 1.0, 7.0], 2000))


def digests(queue: MinibatchQueue, count: int) -> list[str]:
    return [minibatch_digest(queue.get(EPOCH, index, timeout_s=60).check()) for index in range(count)]


def produced(
    queues: list[MinibatchQueue], reader: MinibatchQueue, sampler: Sampler, graph: Graph, plan: SeedPlan, kernel: Any
) -> list[str]:
    """Minibatches that a reader gets while producers work side by side: producer p of P makes the bulks p, p + P,
    ..."""
    bulks = BULKS[plan.bulk_size]

    def produce(p: int) -> None:
        workspace = kernel.Workspace() if hasattr(kernel, "Workspace") else None
        try:
            for n in range(p, bulks, len(queues)):
                queues[p].put(sampler.sample(graph, plan.request(EPOCH, n), kernel, workspace), timeout_s=60)
        except BaseException as e:
            reader.fail(e)

    producers = [threading.Thread(target=produce, args=(p,)) for p in range(len(queues))]
    for producer in producers:
        producer.start()
    try:
        return digests(reader, min(bulks * plan.bulk_size, MINIBATCHES))
    finally:
        for producer in producers:
            producer.join()


def alone(k: int, folder: Path) -> tuple[list[MinibatchQueue], MinibatchQueue]:
    """A producer and a reader that share a queue in memory."""
    queue = MemoryQueue(bulk_size=k, max_bytes=1 << 30)
    return [queue], queue


def side_by_side(k: int, folder: Path) -> tuple[list[MinibatchQueue], MinibatchQueue]:
    """Three producers and a reader that know of each other only through a folder, as processes would."""
    join = partial(
        ZarrQueue.create, folder, fingerprint={"graph": "g"}, bulk_size=k, max_bytes=1 << 30, keep="all", sweep=False
    )
    return [join() for _ in range(PRODUCERS)], ZarrQueue.open(folder)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_one_epoch_for_every_bulk_size_thread_count_producer_and_kernel(tmp_path, graph, sampler, one_or_two_threads):
    plans = {k: SeedPlan(np.arange(MINIBATCHES * BATCH - 1), BATCH, k, seed=7) for k in BULKS}
    assert plans[32].num_minibatches == MINIBATCHES
    want = produced(*alone(32, tmp_path), sampler, graph, plans[32], cpu)
    assert len(set(want)) == MINIBATCHES
    # The reference kernels have one thread, whatever is asked. What carries minibatches does not see who made them: of
    # each sampler bulks of one size go through a folder.
    at = list(SAMPLERS.values()).index(sampler)
    ways = [
        *(((cpu, 1 + (i + at) % 2), k, alone) for i, k in enumerate(BULKS)),
        ((cpu, 1 + at // 3 % 2), list(BULKS)[at % 3], side_by_side),
        *product([(reference, 1)], BULKS, [alone]),
    ]
    for (kernel, count), k, queues in ways:
        threads.set_num_threads(count)
        folder = tmp_path / f"{kernel.__name__}-{count}-{k}"
        seen = produced(*queues(k, folder), sampler, graph, plans[k], kernel)
        assert seen == want[: len(seen)], (kernel.__name__, count, k, queues.__name__)
    assert set(produced(*alone(8, tmp_path), sampler, graph, replace(plans[8], seed=8), cpu)).isdisjoint(want)


def test_a_producers_thread_and_the_queues_do_not_show(tmp_path, graph, one_or_two_threads):
    """As a run uses them: a queue that holds a bulk or two, drained while a thread of this process fills it."""
    seen, minibatches = set(), 21
    for count, k, place in product((1, 2), (1, 8), ("memory", "zarr")):
        threads.set_num_threads(count)
        plan = SeedPlan(np.arange(minibatches * BATCH), BATCH, k, seed=7)
        if place == "memory":
            queue = MemoryQueue(bulk_size=k, max_bytes=2000)
        else:
            queue = ZarrQueue.create(tmp_path / f"{count}-{k}", fingerprint={"graph": "g"}, bulk_size=k, max_bytes=2000)
        draws = BulkDraws(graph, NeighborSampler((4, 3)), plan, cpu)
        producer = Producer(queue, draws, BulkSpan(range(EPOCH, EPOCH + 1), plan.num_bulks))
        found = []
        try:
            for index in range(minibatches):
                found.append(minibatch_digest(queue.get(EPOCH, index, timeout_s=60).check()))
                queue.release(EPOCH, index)
        finally:
            producer.close()
            queue.close()
        seen.add(tuple(found))
    assert len(seen) == 1
