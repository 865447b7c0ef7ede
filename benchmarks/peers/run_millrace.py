"""Millrace's samplers through their public classes: a plan, a workspace, bulk after bulk.

Options: sampler ("neighbor", "labor", "weighted", or "links" with uniform negatives), expand ("new" or "all"),
bulk_size, profile (time the kernel's parallel sections).
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from serve import LATER, Engine, Hop, Job, serve

from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.kernels.sampling.cpu import bulk as bulk_cpu
from millrace.stages.kernels.sampling.cpu import neighbor as sample_cpu
from millrace.stages.links.exclude import WithoutOwnEdges
from millrace.stages.links.plan import LinkPlan
from millrace.stages.links.train_pairs import Negatives, TrainPairs
from millrace.stages.sample.labor import LaborSampler
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph
from millrace.storage.links.pairs import Pairs


def _timed(parallel: Any, seconds: dict[str, float]) -> Any:
    def timed(fn: Any, parts: Any) -> None:
        start = time.perf_counter()
        parallel(fn, parts)
        seconds[fn.__name__.lstrip("_")] += time.perf_counter() - start

    return timed


def start(job: Job) -> Engine:
    """See `serve.Engine`."""
    set_num_threads(job.threads)
    kind, expand = job.options["sampler"], job.options["expand"]
    graph = Graph(job.indptr, job.indices, job.weights() if kind == "weighted" else None)
    sampler = (
        LaborSampler(job.fanout, expand=expand)
        if kind == "labor"
        else NeighborSampler(job.fanout, weighted=kind == "weighted", expand=expand)
    )
    links = None
    if kind == "links":
        sampler = WithoutOwnEdges(sampler)
        kinds = np.zeros((len(job.seeds), 1), np.int64)
        links = TrainPairs.from_graph(graph, Pairs(np.concatenate([job.pairs(), kinds], axis=1), {}), Negatives())
    workspace = cpu.Workspace()
    stages: dict[str, float] = defaultdict(float)
    epochs = iter(range(1 << 30))
    largest = 0

    def plan_of(minibatches: int, bulk_size: int) -> SeedPlan:
        count = minibatches * job.batch_size
        if links is not None:
            return LinkPlan(np.arange(count), job.batch_size, bulk_size, seed=0, links=links)
        return SeedPlan(job.seeds[:count], job.batch_size, bulk_size, seed=0)

    def epoch(minibatches: int) -> Iterator[tuple[int, int]]:
        nonlocal largest
        plan = plan_of(minibatches, job.options["bulk_size"])
        number = next(epochs)
        start_s = time.perf_counter()
        for n in range(plan.num_bulks):
            bulk = sampler.sample(graph, plan.request(number, n), cpu, workspace)
            for m in bulk.minibatches:
                yield m.num_edges, len(m.nodes)
            largest = max(largest, _payload(bulk.minibatches))
        stages["whole"] += time.perf_counter() - start_s

    def one() -> tuple[np.ndarray, list[Hop]]:
        plan = plan_of(LATER, LATER)
        m = sampler.sample(graph, plan.request(0, 0), cpu, cpu.Workspace()).minibatches[-1]
        hops, known = [], 0
        for block in reversed(m.blocks):
            rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
            first = block.indptr[known]
            hops.append(
                Hop(block.src[known : block.num_dst], block.src[block.indices[first:]], block.src[rows[first:]])
            )
            # Nested blocks repeat the rows of the hops before.
            known = block.num_dst if m.nested else 0
        return plan.pairs(LATER - 1, 0) if isinstance(plan, LinkPlan) else m.seeds, hops

    def report() -> dict[str, Any]:
        return {"workspace_bytes": workspace.nbytes, "bulk_bytes": largest, "stages_s": dict(stages)}

    if job.options.get("profile"):
        bulk_cpu.parallel = _timed(bulk_cpu.parallel, stages)
        sample_cpu.parallel = _timed(sample_cpu.parallel, stages)
    return Engine(epoch, one, report)


def _payload(minibatches: Any) -> int:
    """Bytes of the arrays that the minibatches' blocks view."""
    blocks = [b for m in minibatches for b in (m.blocks[:1] if m.nested else m.blocks)]
    return sum(b.indptr.nbytes + b.indices.nbytes for b in blocks) + sum(m.nodes.nbytes for m in minibatches)


if __name__ == "__main__":
    serve(start)
