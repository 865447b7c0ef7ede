"""Bulks of links on the device beside the host's: their bits, and how many edges a second either draws.

Planning, which is the host's work whoever draws, is not timed with them: pairs, negatives, and their distinct ends.
"""

import statistics
from typing import Any

import numpy as np
from gpu_lab import Lab
from peers.train_task import FANOUT

FEW = 8
"""Minibatches of the bulks whose bits are compared."""
BULKS = (16, 64)


def link_bulks(lab: Lab) -> None:
    """A line of the part "bits" for each size of bulks, and each kind of lists."""
    from millrace.stages.kernels.sampling.cpu import backend as cpu
    from millrace.stages.kernels.sampling.cuda.tables import Workspace
    from millrace.stages.links.exclude import WithoutOwnEdges
    from millrace.stages.links.plan import LinkPlan
    from millrace.stages.links.train_pairs import Negatives, TrainPairs
    from millrace.stages.sample.neighbor import NeighborSampler
    from millrace.storage.links.pairs import Pairs
    from millrace.tests.contracts.digests import minibatch_digest

    graph, batch = lab.graph, max(1, lab.batch // 2)
    sizes = sorted({min(b, lab.minibatches) for b in (FEW, *BULKS)})
    chosen = np.random.default_rng(0).integers(graph.num_edges, size=batch * sizes[-1])
    ends = graph.indices[chosen], np.searchsorted(graph.indptr, chosen, side="right") - 1
    labels = np.stack([*ends, np.zeros(len(chosen), np.int64)], axis=1).astype(np.int64)
    links = TrainPairs.from_graph(graph, Pairs(labels, {}), Negatives())
    for expand in ("new", "all"):
        sampler = NeighborSampler(FANOUT, expand=expand)
        without, name = WithoutOwnEdges(sampler), "sampling links" + ", all nodes again" * (expand == "all")
        for k in sizes:
            with lab.attempt(f"{name}, bulks of {k}"):
                plan, space = LinkPlan(np.arange(len(labels)), batch, k, 0, links=links), Workspace()
                planning = lab.seconds(lambda p=plan: p.request(0, 0))
                request = plan.request(0, 0)

                def draw(by: Any, request: Any = request, space: Any = space) -> Any:
                    return by.sample_on_device(graph, request, space)

                made = draw(without)
                edges = sum(m.num_edges for m in made.minibatches)
                if k == sizes[0]:
                    want = without.sample(graph, request, cpu)
                    if len({tuple(map(minibatch_digest, b.minibatches)) for b in (want, made)}) > 1:
                        raise AssertionError(f"minibatches of {name} differ from those of the compiled kernels")
                del made
                s, plain = (statistics.median(lab.repeated(lambda b=b: draw(b))) for b in (without, sampler))
                host = statistics.median(lab.repeated(lambda w=without, r=request: w.sample(graph, r, cpu), most=3))
                lab.add(
                    f"{name}, bulks of {k}", edges / s / 1e9, "G edges/s", peer=edges / host / 1e9, against="the host"
                )
                took = {"planned_s": planning, "drawn_s": s, "own_edges_s": s - plain, "host_s": host, "edges": edges}
                lab.details.setdefault("links", {})[f"{expand} {k}"] = took
                lab.say(
                    f"    {1000 * s:.2f} ms, {1000 * (s - plain):.2f} for own edges; planned in {1000 * planning:.2f}"
                )
        lab.clear()
