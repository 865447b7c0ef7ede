"""Bulks of samples by time on the device beside the host's: their bits, and how many edges a second either draws.

Edges of the graph and seeds have times at random, so that some seeds of a minibatch share a tree. Graphs with weights
and with types are smaller, since the host sorts each by time: their bits are compared.
"""

import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
from gpu_lab import Lab
from peers.train_task import FANOUT

from millrace.storage.graph import Graph, from_edges

BULKS = (8, 64)
"""Minibatches of a bulk; bits of the smaller ones are compared."""
TIMES = 1000
SMALL = 20_000
"""Nodes of the smaller graphs, at most."""
RELATIONS = 3


def time_bulks(lab: Lab) -> None:
    """Lines of the part "bits" for each strategy and size of bulks."""
    from millrace.stages.sample.temporal import TemporalSampler

    rng = np.random.default_rng(0)
    moments = rng.integers(TIMES // 2, TIMES, lab.num_nodes)
    graph = replace(lab.graph, edge_time=rng.integers(0, TIMES, lab.graph.num_edges), node_time=moments)
    for sampler in (TemporalSampler(FANOUT), TemporalSampler(FANOUT, "last", edge_ids=True)):
        name, host = f"sampling by time, {sampler.strategy}", None
        few, many = (min(k, lab.minibatches) for k in BULKS)
        with lab.attempt(f"bits: by time, {sampler.strategy}"):
            host = _compare(lab, graph, sampler, name, _request(lab, few))
        for k in sorted({few, many}):
            with lab.attempt(f"{name}, bulks of {k}"):
                request = _request(lab, k)

                def draw(r: Any = request, s: TemporalSampler = sampler) -> Any:
                    return s.sample_on_device(graph, r)

                edges = sum(m.num_edges for m in draw().minibatches)
                s = statistics.median(lab.repeated(draw))
                peer = None if host is None else host / 1e9
                lab.add(f"{name}, bulks of {k}", edges / s / 1e9, "G edges/s", peer=peer, against="the host")
        lab.clear()
    for name, small in _smaller(lab, rng).items():
        for last in ("uniform", "last"):
            with lab.attempt(f"bits: by time, {name}, {last}"):
                for fanout, again in (((4, 3), False), ((3, -1), False), ((4, 3), True)):
                    sampler = TemporalSampler(fanout, last, again, edge_ids=True)
                    _compare(lab, small, sampler, f"{name}, {last}", _of(small, rng, min(lab.batch, 200)))


def _request(lab: Lab, k: int) -> Any:
    from millrace.stages.assignment import BulkRequest

    return BulkRequest(0, 0, 0, 0, tuple(lab.bulks(k, lab.batch)[0].seeds))


def _of(graph: Graph, rng: np.random.Generator, batch: int) -> Any:
    """Four minibatches of these nodes at times of their own."""
    from millrace.stages.assignment import BulkRequest

    size = min(batch, graph.num_nodes)
    seeds = tuple(rng.permutation(graph.num_nodes)[:size] for _ in range(4))
    assert graph.edge_time is not None
    moments = tuple(rng.integers(TIMES // 2, TIMES, size).astype(graph.edge_time.dtype) for _ in seeds)
    return BulkRequest(0, 0, 0, 0, seeds, moments=moments)


def _compare(lab: Lab, graph: Graph, sampler: Any, name: str, request: Any) -> float:
    """Edges a second that the host has drawn, if the device has drawn the same."""
    from millrace.tests.contracts.digests import minibatch_digest

    lab.check_time()
    sampler.sample(graph, replace(request, seeds=request.seeds[:1], moments=request.moments[:1], indices=(0,)), None)
    begun = time.perf_counter()
    want = sampler.sample(graph, request, None)
    took = time.perf_counter() - begun
    made = sampler.sample_on_device(graph, request)
    if len({tuple(map(minibatch_digest, b.minibatches)) for b in (want, made)}) > 1:
        raise AssertionError(f"minibatches of {name} differ from those of the host")
    same = lab.details.setdefault("bits", {}).setdefault(f"temporal, {name}", {"equal_bulks": 0})
    same["equal_bulks"] += 1
    lab.say(f"  {name}: {len(made.minibatches)} minibatches are bit-identical with those of the host")
    return sum(m.num_edges for m in want.minibatches) / took


def _smaller(lab: Lab, rng: np.random.Generator) -> dict[str, Graph]:
    """Graphs with weights and broken times, and with types, a relation of which has no times."""
    from millrace.storage.graph import ALWAYS
    from millrace.storage.typed.graph_types import GraphTypes

    V = min(SMALL, lab.num_nodes)
    E = 20 * V
    src, dst, when = rng.integers(0, V, E), np.minimum(rng.integers(0, V, E), rng.integers(0, V, E)), rng.random(E)
    weight = rng.random(E).astype(np.float32)
    weighted = from_edges(src, dst, V, edge_weight=weight, edge_time=when * TIMES)
    row = np.repeat(np.arange(V), weighted.in_degree)
    kind = rng.integers(0, RELATIONS, weighted.num_edges).astype(np.uint8)
    order = np.lexsort((kind, row))
    edge_time = rng.integers(0, TIMES, len(order))
    edge_time[kind[order] == 0] = ALWAYS[edge_time.dtype]
    types = GraphTypes(("node",), (0, V), tuple(("node", f"r{r}", "node") for r in range(RELATIONS)))
    typed = Graph(
        weighted.indptr, weighted.indices[order], types=types, edge_type=kind[order], edge_time=edge_time
    ).check()  # fmt: skip
    return {"weights": weighted, "types": typed}
