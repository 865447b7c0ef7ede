"""The minibatches of an epoch are the same whatever makes and carries them."""

import hashlib
from itertools import product

import pytest

import millrace as mr
from millrace.stages.kernels import cpu, reference, threads
from millrace.stages.sample.base import SeedPlan
from millrace.stages.sample.produce import Producer
from millrace.storage.fingerprint import minibatch_digest
from millrace.storage.queue import MemoryQueue
from millrace.storage.queue_zarr import ZarrQueue

MINIBATCHES = 21


@pytest.fixture
def one_or_two_threads():
    yield threads.set_num_threads
    threads.set_num_threads(None)


def epoch_digest(dataset, sampler, kernel, k, queue) -> str:
    plan = SeedPlan(dataset.split.train, -(-len(dataset.split.train) // MINIBATCHES), k, seed=7)
    assert plan.num_minibatches == MINIBATCHES
    producer = Producer(queue, graph=dataset.graph, sampler=sampler, plan=plan, kernel=kernel, first_epoch=2, last_epoch=3)
    digest = hashlib.sha256()
    try:
        for index in range(MINIBATCHES):
            digest.update(minibatch_digest(queue.get(2, index, timeout_s=60).check()).encode())
            queue.release(2, index)
    finally:
        producer.close()
        queue.close()
    return digest.hexdigest()


def test_one_digest_for_threads_bulk_sizes_queues_and_kernels(tmp_path, one_or_two_threads):
    dataset = mr.open_dataset("sbm:nodes=1500,classes=4,degree=12,features=2,train=0.5")
    sampler = mr.NeighborSampler((5, 4, 3))
    seen = {}
    for n, k, place, kernel in product((1, 2), (1, 8), ("memory", "zarr"), (cpu, reference)):
        one_or_two_threads(n)
        bounds = {"bulk_size": k, "max_bytes": 1 << 20}
        folder = tmp_path / f"{n}-{k}-{kernel.__name__}"
        queue = MemoryQueue(**bounds) if place == "memory" else ZarrQueue.create(folder, fingerprint={"graph": "g"}, meta={}, **bounds)
        seen[n, k, place, kernel.__name__] = epoch_digest(dataset, sampler, kernel, k, queue)
    assert len(seen) == 16
    assert len(set(seen.values())) == 1
    print(next(iter(seen.values())))
