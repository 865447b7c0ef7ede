"""Exact evaluation by all ranks together: each computes its own rows, layer after layer, over full neighbourhoods.

The same neighbourhoods that train full-batch: no rank holds more than its share of the graph, of the features and of
any layer.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from ...stages.comm.base import Group
from ...stages.evaluate.cuda import DeviceBudget
from ...stages.evaluate.edges import edge_outputs
from ...stages.evaluate.layerwise import evaluating
from ...stages.evaluate.link_metrics import OneRelation, PairsOfSet, link_metrics
from ...stages.evaluate.links import KnownPairs, unknown_pairs
from ...stages.evaluate.measures import Measures, Scored
from ...stages.fetch.visit import Visits
from ...stages.links.decoders import decoder_of
from ...stages.memory.arena import Arena, give_back, reusing
from ...stages.models.base import layered
from ...stages.placement.row_blocks import BlockRows
from ...stages.placement.sharded import Share
from ...storage.array_kinds import IdArray, Mask
from ...storage.links.pairs import (
    POSITIVE,
    PairArray,
    Pairs,
    contains,
    edge_keys,
    given_negatives,
    keys_of,
    node_ranges,
    of_pairs,
)
from ...storage.partition.splitmix import node_words
from ...storage.typed.graph_types import GraphTypes

ACCURACY = Measures()


def evaluate_together(module: nn.Module, visits: Visits, split: str, measures: Measures = ACCURACY) -> Scored | None:
    """Metrics over all ranks' rows of a split, those of the test split by class too; None for a split without nodes.
    All ranks call this at the same time.

    Args:
        module: has `num_layers` and `layer(i, neighbourhood, h)`; runs in evaluation mode, without gradients, and gets
            its mode back. A copy on the host runs in place of one whose parameters lie on a device, if `visits`
            computes on the host.
        visits: of this rank's share, on the host or on the module's device. What ranks exchange is counted under
            ``evaluation``.
        split: train, val or test.
        measures: what is measured; by default accuracy.
    """
    module, share, group = _where_visited(module, visits), visits.share, visits.group
    rows = share.splits[split]
    with group.counting("evaluation"), evaluating(module):
        h = _rows_of(module, visits)
        count = torch.tensor([len(rows)], dtype=torch.float64)
        group.all_reduce(count, "control")
        return measures.over_ranks(h[rows], share.labels[rows], group, split == "test") if count[0] else None


def evaluate_pairs_together(
    module: nn.Module, visits: Visits, pairs: Pairs, known: "KnownOfSet | None", split: str, measures: Measures
) -> Scored:
    """Metrics of the links, or the labelled edges, of a set, which is not empty: each rank computes its own rows, and
    the first one, which gets all of them, scores. All ranks call this at the same time.

    Args:
        module: see `evaluate_together`; has a decoder or a head.
        visits: likewise, by ranks in the order of their blocks.
        pairs: by the numbers of the nodes in the order of the ranks.
        known: links that rankings of the set leave out; None: the pairs are labelled edges.
        split: train, val or test.
        measures: what is measured.
    """
    visitor, module, group = _where_visited(module, visits), _on_host(module), visits.group
    with group.counting("evaluation"), evaluating(module), evaluating(visitor):
        rows, found, numbers = _all_rows(visitor, visits), None, pairs.sets[split]
        if group.rank == 0 and known is not None:
            table = pairs.table
            if known.order is not None:
                rows, table = rows[torch.from_numpy(known.order)], pairs.renumbered(np.argsort(known.order)).table
            of_set = PairsOfSet(table, numbers, split, known.types)
            found = link_metrics(decoder_of(module), rows, of_set, measures.all_names, known.relation)
        elif group.rank == 0:
            assert pairs.labels is not None
            own = pairs.labels.take(numbers)
            outputs = edge_outputs(decoder_of(module), rows, pairs.table[numbers], own.features)
            found = measures.measured(outputs, torch.from_numpy(own.values), split == "test")
        return broadcast_score(found, measures.all_names, group)


def broadcast_score(scored: Scored | None, names: Sequence[str], group: Group) -> Scored:
    """The metrics that the first rank has, on all; those by class and by relation stay there. Collective.

    Args:
        scored: of the first rank; None on the others.
        names: of its metrics besides accuracy.
        group: the ranks.
    """
    numbers = torch.zeros(1 + len(names), dtype=torch.float64)
    if group.rank == 0:
        assert scored is not None
        accuracy = math.nan if scored.accuracy is None else scored.accuracy
        numbers = torch.tensor([accuracy, *(scored.values[k] for k in names)], dtype=torch.float64)
    group.broadcast(numbers, 0, "control")
    accuracy, *values = numbers.tolist()
    counts, by_relation = (None, {}) if scored is None else (scored.counts, scored.by_relation)
    return Scored(None if math.isnan(accuracy) else accuracy, dict(zip(names, values)), counts, by_relation)


@dataclass(frozen=True, eq=False)
class KnownOfSet:
    """Known pairs that a set needs, of each relation that is predicted."""

    types: GraphTypes
    by_place: Mapping[int | None, "KnownOfBlocks"]
    """By `OneRelation.place`."""

    @classmethod
    def of_blocks(cls, placed: BlockRows, split: str, group: Group) -> "KnownOfSet":
        """Collective: see `KnownOfBlocks.of_blocks`."""
        assert placed.pairs is not None
        table, types = placed.pairs.table, placed.graph.types
        each = OneRelation.each(table, placed.pairs.sets[split], types)
        return cls(types, {one.place: KnownOfBlocks.of_blocks(placed, one, split, group) for one in each})

    def relation(self, one: OneRelation) -> "KnownOfBlocks":
        """Those of a relation."""
        return self.by_place[one.place]

    @property
    def order(self) -> IdArray | None:
        return next(iter(self.by_place.values())).order


@dataclass(frozen=True, eq=False)
class KnownOfBlocks(KnownPairs):
    """Known pairs of a relation that a set needs, from blocks of rows, whose nodes may be renumbered."""

    drawn: PairArray
    """Pairs that are not linked."""
    order: IdArray | None = None
    """int64 [V], the nodes in the order in which keys and `drawn` number them, if types are no ranges otherwise."""

    @classmethod
    def of_blocks(cls, placed: BlockRows, one: OneRelation, split: str, group: Group) -> "KnownOfBlocks":
        """Collective: the first rank gets the known destinations of the set's sources, all get the same `drawn`."""
        assert placed.pairs is not None
        labels, new, n = one.table, placed.pairs.new, placed.num_nodes
        types, sources = one.types, placed.pairs.table[one.rows, 0]
        ends = node_ranges(types.in_ranges(), n)
        own = of_pairs(placed.graph, types=types)
        edges = np.unique(edge_keys(placed.graph, n, placed.first)[own])
        source, destination = np.divmod(edges, max(1, n))
        positive = labels[labels[:, 2] == POSITIVE, :2]
        if _symmetric(types, ends[0] == ends[1], edges, keys_of(destination, source, n), group):
            positive = np.concatenate([positive, positive[:, ::-1]])
        linked = np.unique(keys_of(positive[:, 0], positive[:, 1], n))

        def here(pairs: PairArray) -> PairArray:
            return pairs if new is None else new[pairs]

        def known(drawn: PairArray) -> Mask:
            source, destination = here(np.stack(np.divmod(drawn, max(1, n))))
            keys = keys_of(source, destination, n)
            there = torch.from_numpy(contains(edges, keys).astype(np.int64))
            group.all_reduce(there, "control")
            return (there.numpy() > 0) | contains(linked, keys)

        given = len(given_negatives(labels, split)) > 0
        # Drawn by the nodes' own numbers, as everywhere.
        drawn = np.empty((0, 2), np.int64) if given else here(unknown_pairs(n, len(one.rows), split, known, ends))
        wanted = np.isin(source, np.zeros(0, np.int64) if given else sources)
        keys = torch.cat(_at_first(torch.from_numpy(edges[wanted]), group, "graph")).numpy()
        keys, order = np.unique(np.concatenate([keys, linked])), None
        if not types.is_single and (kinds := types.types_of(np.arange(n))).size and (np.diff(kinds) < 0).any():
            order = np.argsort(kinds, kind="stable")
            place = np.argsort(order)
            source, destination = place[np.stack(np.divmod(keys, n))]
            keys, drawn = np.sort(keys_of(source, destination, n)), place[drawn]
        return cls(n, keys, drawn, order, ends=ends)

    def unknown(self, count: int, name: str) -> PairArray:
        return self.drawn


def _symmetric(types: GraphTypes, same_nodes: bool, edges: PairArray, reverses: PairArray, group: Group) -> bool:
    """See `storage.links.pairs.is_symmetric`: by the types, or by sums of 64-bit hashes of the distinct edges of all
    ranks. Collective unless the types tell.

    Args:
        types: say which relation the edges are of.
        same_nodes: true if its sources and destinations are of one type.
        edges: keys of this rank's edges.
        reverses: keys of these reversed.
        group: the ranks.
    """
    if not types.is_single and types.one_predicted in types.pair_relations[0][1:]:
        return True
    if not same_nodes:
        return False
    sums = [node_words(1, keys).sum(dtype=np.uint64) for keys in (edges, reverses)]
    flat = torch.from_numpy(np.array([*sums, len(edges)], np.uint64).view(np.int64))
    group.all_reduce(flat, "control")
    return bool(flat[0] == flat[1]) and (types.is_single or bool(flat[2]))


def _at_first(rows: Tensor, group: Group, kind: str) -> list[Tensor]:
    """The rows of all ranks on the first, in order; nothing on the others."""
    return group.all_to_all([rows] + [rows[:0]] * (group.size - 1), kind)


def _all_rows(module: nn.Module, visits: Visits) -> Tensor:
    """[V, C] on the first rank, outputs of all nodes in the order of the ranks; others get none. Collective."""
    h, own = _rows_of(module, visits), torch.from_numpy(np.argsort(visits.share.graph.order))
    return torch.cat(_at_first(h[own], visits.group, "activations"))


def _rows_of(module: nn.Module, visits: Visits) -> Tensor:
    """[N, C] on the host, outputs of this rank's nodes."""
    neighbourhoods, h = visits.everything(visits.share.graph, module, layered(module).num_layers)
    for i, neighbourhood in enumerate(neighbourhoods):
        # Layers differ in width: what one has used would lie idle beside what the next one takes.
        with reusing(Arena()):
            h = layered(module).layer(i, neighbourhood, h)
        give_back()
    return h.cpu()


def fits_device(share: Share, module: nn.Module, device: torch.device) -> bool:
    """True if a rank's rows, its edges and two layers take at most half of what is free on the device, and what stays
    there between evaluations at most half of what training has left over."""
    whole = share.graph.whole
    widest = max((max(p.shape) for p in module.parameters() if p.ndim > 1), default=1)
    layers = 3 * (whole.num_src + whole.remote_rows) * max(widest, share.x.shape[1]) * share.x.itemsize
    stays, half = share.new_bytes_on(device), DeviceBudget.from_free_memory(device).num_bytes
    used = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return stays + layers <= half and stays <= half - used // 2


def _where_visited(module: nn.Module, visits: Visits) -> nn.Module:
    return _on_host(module) if visits.device.type == "cpu" else module


def _on_host(module: nn.Module) -> nn.Module:
    """The module itself, or a copy if not all of it lies on the host."""
    state = chain(module.parameters(), module.buffers())
    return module if all(t.device.type == "cpu" for t in state) else copy.deepcopy(module).cpu()
