"""GraphBolt (dgl 2.1.0) without its data pipe: sample_neighbors and unique_and_compact, int32 ids. Runs in DGL's
environment.

The whole frontier is expanded again at each hop. Options: sampler ("neighbor", "labor", "weighted" or "links": uniform
negatives, and the pairs' own edges and their reverses left out by `exclude_edges`), pool (that many Python threads,
each taking whole minibatches; else the threads work inside an operator).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from dgl import graphbolt as gb
from serve import Engine, Hop, Job, serve


def start(job: Job) -> Engine:
    """See `serve.Engine`."""
    pool = job.options.get("pool", 1)
    torch.set_num_threads(job.threads // pool)
    sampler = job.options["sampler"]
    weighted = {"edge_attributes": {"weight": torch.from_numpy(job.weights())}} if sampler == "weighted" else {}
    graph = gb.fused_csc_sampling_graph(torch.from_numpy(job.indptr), torch.from_numpy(job.indices), **weighted)
    draw = graph.sample_layer_neighbors if sampler == "labor" else graph.sample_neighbors
    options = {"probs_name": "weight"} if weighted else {}
    fanouts = [torch.tensor([s]) for s in job.fanout]
    executor = ThreadPoolExecutor(pool)

    links = sampler == "links"
    ends = torch.from_numpy(job.pairs().astype(np.int32)) if links else torch.from_numpy(job.seeds.astype(np.int32))

    def minibatch(
        seeds: torch.Tensor,
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
        blocks, nodes, own = [], seeds, None
        if links:
            pairs = (seeds[:, 0], seeds[:, 1])
            negative = graph.sample_negative_edges_uniform(None, pairs, 1)[1]
            nodes, _ = gb.unique_and_compact([*pairs, negative])
            own = gb.add_reverse_edges(pairs)
            seeds = torch.stack([seeds, torch.stack([pairs[0], negative.to(seeds.dtype)], 1)], 1)
        for fanout in fanouts:
            drawn = draw(nodes, fanout, **options).sampled_csc
            rows = nodes
            nodes, compacted = gb.unique_and_compact_csc_formats(drawn, rows)
            if own is not None:
                compacted = gb.SampledSubgraphImpl(compacted, rows, nodes).exclude_edges(own).sampled_csc
            blocks.append((nodes, compacted.indptr, compacted.indices))
        return seeds, blocks

    def count(seeds: torch.Tensor) -> tuple[int, int]:
        _, blocks = minibatch(seeds)
        return sum(len(b[2]) for b in blocks), len(blocks[-1][0])

    def epoch(minibatches: int) -> Iterator[tuple[int, int]]:
        seeds = ends[: minibatches * job.batch_size]
        parts = seeds[torch.randperm(len(seeds))].split(job.batch_size)
        yield from executor.map(count, parts) if pool > 1 else map(count, parts)

    def one() -> tuple[np.ndarray, list[Hop]]:
        hops = []
        seeds, blocks = minibatch(ends[: job.batch_size])
        for nodes, indptr, indices in blocks:
            rows = nodes[: len(indptr) - 1]
            hops.append(Hop(rows, nodes[indices.long()], rows.repeat_interleave(indptr.diff())))
        return seeds.numpy(), hops

    return Engine(epoch, one)


if __name__ == "__main__":
    serve(start)
