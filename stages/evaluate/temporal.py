"""Evaluation at the moments of nodes: each over samples of what lies before it."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.errors import InputError
from ...storage.features import FeatureStore
from ...storage.graph import Graph
from ..assignment import BulkRequest
from ..models.base import as_model, layered, reads_edges
from ..models.pyg import evaluating
from ..neighbourhood.block import BlockNeighbourhood
from ..random import Purpose, stream
from ..sample.temporal import IdArray, TemporalSampler, Times, degrees_until, timed_graph

CHUNK = 1024
"""Seeds of a minibatch of an evaluation. Fixed, since drawn samples depend on it."""


def temporal_outputs(
    model: nn.Module,
    graph: Graph,
    features: FeatureStore,
    sampler: TemporalSampler,
    nodes: IdArray,
    moments: Times,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """[n, C], the model's outputs for `nodes` at their moments, over the sampler's draws: exact if it takes all
    in-edges (fanout -1), else the same in every call with the same nodes.

    Args:
        model: of at most as many layers as the sampler has hops.
        graph: with times of edges.
        features: rows of all nodes.
        sampler: draws the neighbourhoods.
        nodes: int64 [n], ids, that may repeat.
        moments: [n], times.
        seed: of the draws.
        on_progress: called with (nodes done, nodes in all).
    """
    as_model(model)
    short = TemporalSampler(
        sampler.fanout[: layered(model).num_layers], sampler.strategy, sampler.replace, reads_edges(model)
    )
    short.check(graph)
    when = timed_graph(graph).as_time(moments)
    _, rank = np.unique(when, return_inverse=True)
    _, first, back = np.unique(rank * max(1, graph.num_nodes) + nodes, return_index=True, return_inverse=True)
    nodes, when = nodes[first], when[first]
    key, found = stream(seed, Purpose.EVALUATE), []
    with evaluating(model):
        for number, at in enumerate(range(0, len(nodes), CHUNK)):
            chunk = slice(at, at + CHUNK)
            request = BulkRequest(key, 0, number, number, (nodes[chunk],), moments=(when[chunk],))
            found.append(_chunk(model, graph, features, short, request))
            if on_progress is not None:
                on_progress(min(at + CHUNK, len(nodes)), len(nodes))
    rows = torch.cat(found) if found else torch.empty(0, 0)
    return rows[torch.from_numpy(back)]


def _chunk(
    model: nn.Module, graph: Graph, features: FeatureStore, sampler: TemporalSampler, request: BulkRequest
) -> Tensor:
    work = sampler.sample(graph, request, None).minibatches[0]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    degree = cache(lambda: torch.from_numpy(degrees_until(graph, work, request.moments[0])).to(dtype))
    of_edges, ids = graph.edge_features if reads_edges(model) else None, work.blocks[0].edge_id

    @cache
    def edge_rows() -> Tensor:
        assert of_edges is not None and ids is not None
        return torch.from_numpy(of_edges.gather(ids)).to(dtype)

    neighbourhoods = [
        BlockNeighbourhood(
            b,
            lambda n=b.num_src: degree()[:n],
            edges=None if of_edges is None else lambda n=b.num_edges: edge_rows()[:n],
        )
        for b in work.blocks
    ]
    rows = torch.from_numpy(features.gather(work.nodes.astype(np.int64))).to(dtype)
    with torch.no_grad():
        out = model(neighbourhoods, rows)
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) < len(request.seeds[0]):
        seen = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"{type(model).__name__} returned {seen}; expected a row for each of {len(request.seeds[0])}")
    return out[: len(request.seeds[0])].float() if out.dtype == torch.bfloat16 else out[: len(request.seeds[0])]
