"""Millrace's sampler `neighbor` on a graph with types, each fanout for every relation: a plan, a workspace, bulk after
bulk. Options: expand ("new" or "all"), bulk_size."""

from collections.abc import Iterator

import numpy as np
from serve import LATER, Engine, Hop, Job, serve

from millrace.stages.assignment import SeedPlan
from millrace.stages.kernels.runtime.threads import set_num_threads
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.graph import Graph
from millrace.storage.typed.graph_types import GraphTypes


def start(job: Job) -> Engine:
    """See `serve.Engine`."""
    set_num_threads(job.threads)
    types, kind = job.types()
    graph = Graph(job.indptr, job.indices, types=GraphTypes.of_record(types), edge_type=kind)
    sampler = NeighborSampler(job.fanout, expand=job.options["expand"])
    workspace = cpu.Workspace()
    epochs = iter(range(1 << 30))

    def epoch(minibatches: int) -> Iterator[tuple[int, int]]:
        plan = SeedPlan(job.seeds[: minibatches * job.batch_size], job.batch_size, job.options["bulk_size"], seed=0)
        number = next(epochs)
        for n in range(plan.num_bulks):
            bulk = sampler.sample(graph, plan.request(number, n), cpu, workspace)
            for m in bulk.minibatches:
                yield m.num_edges, len(m.nodes)

    def one() -> tuple[np.ndarray, list[Hop]]:
        plan = SeedPlan(job.seeds[: LATER * job.batch_size], job.batch_size, LATER, seed=0)
        m = sampler.sample(graph, plan.request(0, 0), cpu, cpu.Workspace()).minibatches[-1]
        hops, known = [], 0
        for block in reversed(m.blocks):
            assert block.edge_id is not None
            rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
            begin = block.indptr[known]
            src, dst = block.src[block.indices[begin:]], block.src[rows[begin:]]
            hops.append(Hop(block.src[known : block.num_dst], src, dst, kind[block.edge_id[begin:]]))
            # Nested blocks repeat the rows of the hops before.
            known = block.num_dst if m.nested else 0
        return m.seeds, hops

    return Engine(epoch, one, lambda: {"workspace_bytes": workspace.nbytes})


if __name__ == "__main__":
    serve(start)
