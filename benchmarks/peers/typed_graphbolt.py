"""GraphBolt (dgl 2.1.0) on a graph with types, without its data pipe: sample_neighbors and unique_and_compact, int32
ids, each fanout for every relation. Runs in DGL's environment.

The whole frontier is expanded again at each hop. Option: pool (that many Python threads, each taking whole minibatches;
else the threads work inside an operator).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from dgl import graphbolt as gb
from serve import Engine, Hop, Job, serve

Nodes = dict[str, torch.Tensor]


def start(job: Job) -> Engine:
    """See `serve.Engine`."""
    pool = job.options.get("pool", 1)
    torch.set_num_threads(job.threads // pool)
    types, kind = job.types()
    first = dict(zip(types["node_types"], types["offsets"]))
    relations = {":".join(r): number for number, r in enumerate(types["relations"])}
    graph = gb.fused_csc_sampling_graph(
        torch.from_numpy(job.indptr),
        torch.from_numpy(job.indices),
        node_type_offset=torch.tensor(types["offsets"]),
        type_per_edge=torch.from_numpy(kind),
        node_type_to_id={name: number for number, name in enumerate(types["node_types"])},
        edge_type_to_id=relations,
    )
    fanouts = [torch.full((len(relations),), s) for s in job.fanout]
    target = types["node_types"][0]
    executor = ThreadPoolExecutor(pool)

    def minibatch(seeds: torch.Tensor) -> list[tuple[Nodes, Nodes, Any]]:
        hops, nodes = [], {target: seeds}
        for fanout in fanouts:
            drawn = graph.sample_neighbors(nodes, fanout).sampled_csc
            found, compacted = gb.unique_and_compact_csc_formats(drawn, nodes)
            hops.append((nodes, found, compacted))
            nodes = found
        return hops

    def count(seeds: torch.Tensor) -> tuple[int, int]:
        hops = minibatch(seeds)
        edges = sum(len(each.indices) for _, _, compacted in hops for each in compacted.values())
        return edges, sum(map(len, hops[-1][1].values()))

    def epoch(minibatches: int) -> Iterator[tuple[int, int]]:
        seeds = torch.from_numpy(job.seeds[: minibatches * job.batch_size].astype(np.int32))
        parts = seeds[torch.randperm(len(seeds))].split(job.batch_size)
        yield from executor.map(count, parts) if pool > 1 else map(count, parts)

    def one() -> tuple[np.ndarray, list[Hop]]:
        seeds = torch.from_numpy(job.seeds[: job.batch_size].astype(np.int32))
        found = []
        for rows, nodes, compacted in minibatch(seeds):
            src, dst, kinds = [], [], []
            for name, each in compacted.items():
                a, _, b = name.split(":")
                if not len(each.indices):
                    continue
                src.append(nodes[a][each.indices.long()] + first[a])
                dst.append(nodes[b][: len(each.indptr) - 1].repeat_interleave(each.indptr.diff()) + first[b])
                kinds.append(torch.full((len(src[-1]),), relations[name]))
            every = torch.cat([ids + first[t] for t, ids in rows.items()])
            found.append(Hop(every, torch.cat(src), torch.cat(dst), torch.cat(kinds)))
        return seeds.numpy(), found

    return Engine(epoch, one)


if __name__ == "__main__":
    serve(start)
