"""Evaluation at the moments of nodes: each over samples of what lies before it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.array_kinds import Mask
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.features import FeatureStore
from ...storage.graph import Graph
from ...storage.links.pairs import PairArray, contains, keys_of
from ...storage.optional import taken, when_present
from ..assignment import BulkRequest
from ..links.decoders import decoder_of, of_relation
from ..links.plan import Ends
from ..models.base import as_model, layered, reads_edges
from ..models.pyg.model import evaluating
from ..neighbourhood.block import BlockNeighbourhood, types_of_edges
from ..random import Purpose, branches, draw_word, stream
from ..sample.temporal import IdArray, TemporalSampler, Times, degrees_until, timed_graph
from .cuda import DeviceBudget
from .limits import Progress, silent
from .link_metrics import Knows, OneRelation, Ranked, of_relations
from .links import KnownPairs
from .measures import Scored

Chunk = Callable[[nn.Module, Graph, FeatureStore, TemporalSampler, BulkRequest], Tensor]
"""Returns a model's outputs for the seeds, and perhaps other nodes behind them, of the one minibatch of a request."""
CHUNK = 1024
"""Seeds of a minibatch of an evaluation. Fixed, since drawn samples depend on it."""
PAIRS = 128
"""Pairs that are ranked at once, likewise."""
NEGATIVES = 100
"""Negatives that each pair with a time is ranked among."""
TRIES = 20


@dataclass(frozen=True)
class Draws:
    """Samples by time that an evaluation computes outputs over."""

    sampler: TemporalSampler
    seed: int
    on_progress: Progress = silent
    chunk: Chunk | None = None
    """Computes outputs; by default from draws of the host."""


def temporal_outputs(
    model: nn.Module, graph: Graph, features: FeatureStore, draws: Draws, nodes: IdArray, moments: Times
) -> Tensor:
    """[n, C], the model's outputs for `nodes` at their moments, over the sampler's draws: exact if it takes all
    in-edges (fanout -1), else the same in every call with the same nodes. On the model's device, or on the host if half
    of what is free there is too little.

    Args:
        model: of at most as many layers as the sampler has hops; rows are on its device.
        graph: with times of edges.
        features: rows of all nodes.
        draws: the neighbourhoods.
        nodes: int64 [n], ids, that may repeat.
        moments: [n], times.
    """
    sampler = draws.sampler
    as_model(model)
    short = TemporalSampler(
        sampler.fanout[: layered(model).num_layers],
        sampler.strategy,
        sampler.replace,
        reads_edges(model) or graph.is_weighted or not graph.types.is_single,
    )
    short.check(graph)
    when = timed_graph(graph).as_time(moments)
    _, rank = np.unique(when, return_inverse=True)
    _, first, back = np.unique(rank * max(1, graph.num_nodes) + nodes, return_index=True, return_inverse=True)
    nodes, when = nodes[first], when[first]
    key, found, stays = stream(draws.seed, Purpose.EVALUATE), [], True
    with evaluating(model):
        for number, at in enumerate(range(0, len(nodes), CHUNK)):
            some = slice(at, at + CHUNK)
            request = BulkRequest(key, 0, number, number, (nodes[some],), moments=(when[some],))
            out = (draws.chunk or _on_host)(model, graph, features, short, request)
            rows = _of_seeds(model, out, len(nodes[some]))
            stays = stays if found else _fit(rows, len(nodes) + len(back))
            found.append(rows if stays else rows.cpu())
            draws.on_progress(min(at + CHUNK, len(nodes)), len(nodes))
    rows = torch.cat(found) if found else torch.empty(0, 0)
    return rows[torch.from_numpy(back).to(rows.device)]


def _on_host(
    model: nn.Module, graph: Graph, features: FeatureStore, sampler: TemporalSampler, request: BulkRequest
) -> Tensor:
    work = sampler.sample(graph, request, None).minibatches[0]
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    to, on_host = {"device": like.device, "dtype": like.dtype}, like.device.type == "cpu"
    degree = cache(lambda: torch.from_numpy(degrees_until(graph, work, request.moments[0])).to(**to))
    of_edges, ids = graph.edge_features if reads_edges(model) else None, work.blocks[0].edge_id

    @cache
    def edge_rows() -> Tensor:
        assert of_edges is not None and ids is not None
        return torch.from_numpy(of_edges.gather(ids)).to(**to)

    neighbourhoods = [
        BlockNeighbourhood(
            b,
            lambda n=b.num_src: degree()[:n],
            edge_types=types_of_edges(graph, b.edge_id, None if on_host else like.device),
            edges=None if of_edges is None else lambda n=b.num_edges: edge_rows()[:n],
        )
        for b in work.blocks
    ]
    for made, b in zip(neighbourhoods, work.blocks):
        made.given_weight = lambda at=b.edge_id: when_present(torch.from_numpy, taken(graph.edge_weight, at))
    rows = torch.from_numpy(features.gather(work.nodes.astype(np.int64))).to(**to)
    with torch.no_grad():
        return model(neighbourhoods, rows)


def _fit(rows: Tensor, count: int) -> bool:
    """True if so many rows like these fit where they are, twice. On a GPU they share it with samples."""
    return not rows.is_cuda or 2 * count * rows[:1].nbytes <= DeviceBudget.from_free_memory(rows.device).num_bytes


def _of_seeds(model: nn.Module, out: Any, count: int) -> Tensor:
    """The first rows of a model's output. Raises InputError if it is none."""
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) < count:
        seen = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"{type(model).__name__} returned {seen}; expected a row for each of {count}")
    return out[:count].float() if out.dtype == torch.bfloat16 else out[:count]


def temporal_link_metrics(
    model: nn.Module, dataset: Dataset, draws: Draws, name: str, names: Sequence[str], known: Knows
) -> Scored:
    """Metrics of the positive pairs of a set, each from what lies before it. A pair (u, v) is ranked among
    `NEGATIVES` pairs (u, w) at its time, the same in every run, for nodes w that are destinations of pairs and never
    linked to u; AUC and average precision are against the first of these. Pairs of several relations are ranked within
    theirs. See `link_metrics.link_metrics` for the arguments; progress is of pairs."""
    decoder, found, begun, quiet = decoder_of(model), {}, 0, replace(draws, on_progress=silent)
    graph, labels, time, numbers = dataset.graph, dataset.labels, dataset.pair_time, getattr(dataset.split, name)
    assert time is not None
    for one in OneRelation.each(labels, numbers, graph.types):
        every, valid = _with_negatives(labels[one.rows, :2], np.unique(one.table[:, 1]), known(one), name)
        score, scores = of_relation(decoder, one.place), []
        for at in range(0, len(every), PAIRS):
            ends = Ends.from_pairs(every[at : at + PAIRS], time[one.rows[at : at + PAIRS]], graph.num_nodes)
            assert ends.moments is not None
            rows = temporal_outputs(model, graph, dataset.features, quiet, ends.nodes, ends.moments)
            with evaluating(model):
                positions = torch.from_numpy(ends.positions).to(rows.device)
                flat = score(*(rows[positions[..., i]].flatten(0, 1) for i in (0, 1)))
                scores.append(flat.view(positions.shape[:2]).float())
            draws.on_progress(begun + min(at + PAIRS, len(every)), len(numbers))
        found[one.name] = _ranked(torch.cat(scores), valid)
        begun += len(every)
    return of_relations(found, names)


def _ranked(scores: Tensor, valid: Mask) -> Ranked:
    """See `_with_negatives` for `valid`, [n, NEGATIVES]; scores [n, 1 + NEGATIVES] are those of the pairs there."""
    own, others = scores[:, 0], scores[:, 1:]
    if not scores.isfinite().all():
        return Ranked(torch.full_like(own, torch.nan), own, others[:, 0])
    others = others.masked_fill(~torch.from_numpy(valid).to(scores.device), -torch.inf)
    larger, same = (others > own[:, None]).sum(1).double(), (others == own[:, None]).sum(1).double()
    return Ranked(1 + larger + same / 2, own, others[:, 0][others[:, 0].isfinite()])


def _with_negatives(pairs: PairArray, destinations: IdArray, known: KnownPairs, name: str) -> tuple[PairArray, Mask]:
    """int64 [n, 1 + NEGATIVES, 2], each pair and its negatives; and [n, NEGATIVES], False for those that are no
    negatives, where hardly any are there."""
    every = np.repeat(pairs[:, None], 1 + NEGATIVES, axis=1)
    words = branches(stream(0, Purpose.EVALUATE, *name.encode()), np.arange(len(pairs) * NEGATIVES))
    wrong = np.ones(len(words), bool)
    drawn = every[:, 1:, 1].reshape(-1).copy()
    source = np.repeat(pairs[:, 0], NEGATIVES)
    for attempt in range(TRIES):
        x = (draw_word(words[wrong], attempt) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        drawn[wrong] = destinations[(x * len(destinations)).astype(np.int64)]
        wrong = contains(known.keys, keys_of(source, drawn, known.num_nodes)) | (drawn == source)
        if not wrong.any():
            break
    every[:, 1:, 1] = drawn.reshape(-1, NEGATIVES)
    return every, ~wrong.reshape(-1, NEGATIVES)
