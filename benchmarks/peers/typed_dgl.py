"""dgl.dataloading.NeighborSampler on a heterograph behind its DataLoader, no workers (dgl 2.1.0), each fanout for every
relation. Runs in DGL's environment.

The whole frontier is expanded again at each hop. Ids are int64: see `run_dgl`.
"""

from collections.abc import Iterator
from typing import Any

import dgl
import numpy as np
import torch
from serve import LATER, Engine, Hop, Job, serve


def heterograph(indptr: np.ndarray, indices: np.ndarray, kind: np.ndarray, types: dict[str, Any]) -> Any:
    """The graph in DGL's form, with a list of in-neighbours for each relation."""
    names, offsets = types["node_types"], types["offsets"]
    nodes = {name: offsets[t + 1] - offsets[t] for t, name in enumerate(names)}
    first = dict(zip(names, offsets))
    lists = {}
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    for number, (a, name, b) in enumerate(types["relations"]):
        at = kind == number
        ends = np.zeros(nodes[b] + 1, np.int64)
        np.cumsum(np.bincount(rows[at] - first[b], minlength=nodes[b]), out=ends[1:])
        sources = indices[at].astype(np.int64) - first[a]
        lists[a, name, b] = ("csc", tuple(map(torch.from_numpy, (ends, sources, np.empty(0, np.int64)))))
    return dgl.heterograph(lists, num_nodes_dict=nodes)


def start(job: Job) -> Engine:
    """See `serve.Engine`."""
    torch.set_num_threads(job.threads)
    types, kind = job.types()
    graph = heterograph(job.indptr, job.indices, kind, types)
    del kind
    first = dict(zip(types["node_types"], types["offsets"]))
    target = types["node_types"][0]
    # DGL lists fanouts from the input inwards.
    sampler = dgl.dataloading.NeighborSampler(list(reversed(job.fanout)))

    def loader(minibatches: int) -> Any:
        seeds = {target: torch.from_numpy(job.seeds[: minibatches * job.batch_size])}
        return dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=job.batch_size, shuffle=True, num_workers=0)

    def epoch(minibatches: int) -> Iterator[tuple[int, int]]:
        for nodes, _, blocks in loader(minibatches):
            yield sum(b.num_edges() for b in blocks), sum(map(len, nodes.values()))

    def one() -> tuple[np.ndarray, list[Hop]]:
        _, seeds, blocks = list(loader(LATER))[-1]
        hops = []
        for block in reversed(blocks):
            src, dst, kinds = [], [], []
            for number, (a, name, b) in enumerate(types["relations"]):
                here = block[a, name, b]
                u, v = here.edges()
                src.append(here.srcdata[dgl.NID][u] + first[a])
                dst.append(here.dstdata[dgl.NID][v] + first[b])
                kinds.append(torch.full((len(u),), number))
            rows = torch.cat([ids + first[t] for t, ids in block.dstdata[dgl.NID].items()])
            hops.append(Hop(rows, torch.cat(src), torch.cat(dst), torch.cat(kinds)))
        return seeds[target].numpy(), hops

    return Engine(epoch, one)


if __name__ == "__main__":
    serve(start)
