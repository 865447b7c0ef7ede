"""dgl.dataloading.NeighborSampler behind its DataLoader, no workers (dgl 2.1.0). Runs in DGL's environment.

With the option sampler "links", inside its edge prediction sampler, with uniform negatives and without the pairs' own
edges and their reverses. The whole frontier is expanded again at each hop. With more than one thread DGL takes its
fused path. Ids are int32 on one thread; the fused path gets int64, because with int32 it loses edges from the second
minibatch on (a third of them were left after ten).
"""

from collections.abc import Iterator

import dgl
import numpy as np
import torch
from serve import LATER, Engine, Hop, Job, reverses, serve


def start(job: Job) -> Engine:
    """See `serve.Engine`."""
    torch.set_num_threads(job.threads)
    width = torch.int32 if job.threads == 1 else torch.int64
    indptr, indices = torch.from_numpy(job.indptr).to(width), torch.from_numpy(job.indices).to(width)
    graph = dgl.graph(
        ("csc", (indptr, indices, torch.empty(0, dtype=width))), num_nodes=len(job.indptr) - 1, idtype=width
    )
    # DGL lists fanouts from the input inwards.
    sampler = dgl.dataloading.NeighborSampler(list(reversed(job.fanout)))
    if job.options.get("sampler") == "links":
        sampler = dgl.dataloading.as_edge_prediction_sampler(
            sampler,
            exclude="reverse_id",
            reverse_eids=torch.from_numpy(reverses(job.indices)).to(width),
            negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
        )

    def loader(minibatches: int) -> dgl.dataloading.DataLoader:
        seeds = torch.from_numpy(job.seeds[: minibatches * job.batch_size]).to(width)
        return dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=job.batch_size, shuffle=True, num_workers=0)

    def epoch(minibatches: int) -> Iterator[tuple[int, int]]:
        for nodes, *_, blocks in loader(minibatches):
            yield sum(b.num_edges() for b in blocks), len(nodes)

    def one() -> tuple[np.ndarray, list[Hop]]:
        _, *drawn, blocks = list(loader(LATER))[-1]
        hops = []
        for block in reversed(blocks):
            src, dst = block.edges()
            rows = block.dstdata[dgl.NID]
            hops.append(Hop(rows, block.srcdata[dgl.NID][src.long()], rows[dst.long()]))
        if len(drawn) == 1:
            return drawn[0].numpy(), hops
        ends = [graph.ndata[dgl.NID][torch.stack(graph.edges(), 1).long()] for graph in drawn]
        return torch.stack(ends, 1).numpy(), hops

    return Engine(epoch, one)


if __name__ == "__main__":
    serve(start)
