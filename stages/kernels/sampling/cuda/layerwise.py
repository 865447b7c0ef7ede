"""LADIES and FastGCN on the device: the minibatches of a bulk do each hop together; the same bits as
`oracles.layerwise`.

Launches and waits take longer than the work: the host waits once a hop, for the number of new nodes and for that of the
edges of the hop before, and once at the end. Edges are written and weighed while the host waits for the next message
and works on it.
Darts are thrown in parallel: all that may be needed, and those beyond the last that counts are dropped. Factors of
sources are computed on the device where division suffices; `bottom_k` and `with_replacement` take those of the other
kernels, on the host, since `expm1` differs between libraries. In minibatches whose darts hit too few columns the rest
is drawn by a race as elsewhere: P is added up here, and `layerwise.complete` runs on the host. That is rare unless
nearly all candidates are needed.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .....storage.array_kinds import IdArray, WordArray
from ...runtime.device_memory import ToHost, completed, to_device
from ..device_samples import Counts, DeviceList, DeviceSample, Rows, cumulated, prefix_sums
from ..draws import LayerDraws
from ..layerwise import Drawn, budget, clock, complete, dart_words, factors, same_scale, with_replacement
from .extract import Extracted, Walk, inverted, scaled
from .hits import Hits, entered, find
from .neighbor import Seeds
from .renumber import Group, forget, merged, named, start
from .tables import Tables
from .terms import Terms


@dataclass(frozen=True, eq=False)
class _Sample:
    """SAMPLE of a hop."""

    first: Tensor
    """See `Terms.throw`, as `last` and `prefix`."""
    last: Tensor
    prefix: Tensor
    drawn: list[Drawn]
    """k draws, where the host needs them for factors. If darts sufficed and may not repeat, their nodes stay on the
    device, and `Drawn.nodes` is empty."""
    total: Counts
    """int64 [k], the sum of P."""


class _Layers:
    """Draws the minibatches of one bulk."""

    def __init__(self, terms: Terms, debias: str, every_row: bool, tables: Tables, k: int) -> None:
        self.terms, self.debias, self.every_row, self.tables = terms, debias, every_row, tables
        self.graph, self.weighted = terms.graph, debias != "none" or terms.weight is not None
        if every_row:
            # All V rows, for each minibatch.
            self.all_rows = to_device(np.repeat([[0], [terms.graph.num_nodes]], k, axis=1), terms.graph.device)

    async def draw(
        self, group: Group, ends: Tensor, keys: WordArray, words: Tensor, s: int, walk: Walk | None
    ) -> tuple[_Sample, Group, Tensor]:
        """Throw darts, and number the nodes that are drawn.

        Args:
            group: the rows.
            ends: int64 [k + 1], where each minibatch's end.
            keys: uint64 [k], of the hop.
            words: int64 [k], the bits of `layerwise.dart_words`.
            s: nodes to draw.
            walk: of the hop before, which learns its edges.

        Returns:
            The sample, all nodes, and their ends.
        """
        k, terms = len(keys), self.terms
        repeats, late = self.debias == "with_replacement", self.debias == "bottom_k"
        limit, want = (s, s) if repeats else (budget(s), s + late)
        if self.every_row:
            (first, last), prefix = self.all_rows, terms.everywhere[1]
        else:
            first, last = ends[:-1], ends[1:]
            prefix = cumulated(terms.mass.index_select(0, group.rows.nodes))
        rows = None if self.every_row else group.rows
        hits = terms.throw(rows, first, last, prefix, words, limit, self.tables.stride)
        found = find(hits, first, last, prefix, s, want, self.tables)
        # The host must wait: memory depends on the number of new nodes.
        masses = prefix[-1:] if self.every_row else prefix.index_select(0, ends)
        parts = [*found.sizes, found.darts, masses, *([] if walk is None else [walk.sizes])]
        message = await ToHost(torch.cat(parts))
        places, new, darts, ends_, edges = np.split(message, np.cumsum([k + 1, k + 1, k, len(masses)]))
        if walk is not None:
            walk.arrived(edges)
        places, new = np.diff(places), np.diff(new)
        whole = np.repeat(ends_, k) if self.every_row else np.diff(ends_)
        drawn, none = [], np.empty(0, np.int64)
        if repeats:
            columns = hits.cpu().numpy() - self._begins(np.arange(k))
            drawn = [with_replacement(columns[q] if whole[q] else none) for q in range(k)]
        elif late:
            there = places >= want
            drawn = [Drawn(none, None, clock(int(keys[q]), int(darts[q])) if there[q] else np.inf) for q in range(k)]
        sample = _Sample(first, last, prefix, drawn, whole)
        short = np.flatnonzero((places < want) & (whole > 0))
        if repeats or not len(short):
            return sample, *entered(group, ends, found, new, self.tables)
        nodes = self._complete(group, hits, found, keys, s, sample, short)
        return sample, nodes, to_device(prefix_sums(nodes.counts), self.graph.device)

    def _begins(self, minibatches: IdArray) -> IdArray:
        """Their first places, as a column."""
        return minibatches[:, None] * self.tables.stride

    def _complete(
        self, group: Group, hits: Tensor, found: Hits, keys: WordArray, s: int, sample: _Sample, short: IdArray
    ) -> Group:
        """Draw the rest of the minibatches `short` on the host. Returns all nodes."""
        (k, limit), to, marks = hits.shape, self.graph.device, self.tables.found
        new = found.ranks.diff().view(k, limit) != 0
        rank = found.ranks[1:].view(k, limit) - found.ranks[:-1].view(k, limit)[:, :1]
        marks[hits[new & (rank <= s)].long()] = 1
        which = to_device(short, to)
        hit = zip(hits[which].cpu().numpy() - self._begins(short), new[which].cpu().numpy())
        rest = []
        for q, (columns, is_new), candidates in zip(short.tolist(), hit, self._candidates(group, short)):
            here = columns[is_new][:s].astype(np.int64)
            drawn = complete(int(keys[q]), s, here, limit, int(sample.total[q]), *candidates)
            rest.append(drawn.nodes + q * self.tables.stride)
            if sample.drawn:
                sample.drawn[q] = drawn
        marks[to_device(np.concatenate(rest), to)] = 1
        none = torch.empty(0, dtype=torch.int64, device=to)
        fresh, _ = completed(named(group.counts, self.tables, group.rows.nodes.dtype, none))
        return merged([group, fresh])

    def _candidates(self, group: Group, short: IdArray) -> list[tuple[IdArray, IdArray]]:
        """For each minibatch in `short`, the columns of P that are not 0, and P there, on the host."""
        if self.every_row:
            mass = self.terms.everywhere[0].cpu().numpy()
            return [(np.arange(len(mass)), mass)] * len(short)
        rows, stride = group.rows, self.tables.stride
        taken = torch.isin(rows.owner, to_device(short, self.graph.device))
        place, mass = (x.cpu().numpy() for x in self.terms.add_up(Rows(rows.nodes[taken], rows.owner[taken]), stride))
        begin, end = np.searchsorted(place, short * stride), np.searchsorted(place, (short + 1) * stride)
        return [(place[a:b] - q * stride, mass[a:b]) for q, a, b in zip(short, begin, end)]

    def weigh(self, group: Group, nodes: Group, found: Extracted, sample: _Sample) -> Tensor:
        """float32 [edges], weight of each edge; `nodes` are the rows and the new ones."""
        terms, values = self.terms, None
        mass = terms.everywhere[0].index_select(0, nodes.rows.nodes) if self.every_row else found.mass
        if self.debias == "ratio":
            values = inverted(found, mass, nodes, sample.first, sample.last, sample.prefix)
        elif self.debias != "none":
            values = self._factors(group, nodes, mass, sample).index_select(0, found.columns)
        if terms.weight is not None:
            assert found.edges.positions is not None
            own = terms.weight.index_select(0, found.edges.positions).double()
            values = own if values is None else own * values
        assert values is not None
        return scaled(terms, group, found, values) if same_scale(self.debias) else values.float()

    def _factors(self, group: Group, nodes: Group, mass: Tensor, sample: _Sample) -> Tensor:
        """float64, factor of each node, computed on the host."""
        ends = prefix_sums(nodes.counts)[1:-1]
        message, src = (np.split(x.cpu().numpy(), ends) for x in (mass, nodes.rows.nodes))
        parts = zip(message, sample.total, src, group.counts, sample.drawn)
        factor = [
            factors(self.debias, found.astype(np.float64) * (1.0 / max(int(total), 1)), ids, int(n), drawn)
            for found, total, ids, n, drawn in parts
        ]
        return to_device(np.concatenate(factor), mass.device)


def layers(terms: Terms, seeds: Seeds, asked: LayerDraws) -> DeviceSample:
    """See `cpu.layerwise.layers`.

    Args:
        terms: of the graph.
        seeds: of k > 0 minibatches.
        asked: keys are on the host; the workspace keeps the tables.

    Raises:
        RunError: a minibatch has more edges than its lists can index.
    """
    (flat, counts), keys, workspace = seeds, asked.keys, asked.workspace
    tables = workspace.take(len(counts), terms.graph)
    bulk = _Layers(terms, asked.debias, asked.every_row, tables, len(counts))
    ends = to_device(prefix_sums(counts), flat.device)
    group = start(flat, counts, ends, tables)
    words = to_device(np.ascontiguousarray(dart_words(keys).T).view(np.int64), flat.device)
    node_ends, lists = [counts], list[DeviceList]()

    def finish(walk: Walk, nodes: Group, all_ends: Tensor, sample: _Sample) -> None:
        found = walk.written(nodes, all_ends, asked.every_row)
        weight = bulk.weigh(walk.group, nodes, found, sample) if bulk.weighted else None
        lists.append(replace(found.edges, weight=weight))

    # One whose edges the device looks for, and one whose edges are known.
    hop, known = None, None
    for h, s in enumerate(asked.sizes):
        drawing = bulk.draw(group, ends, keys[:, h], words[h], s, hop and hop[0])
        drawing.send(None)
        # Behind the message: the device has work while the host reads it.
        if known is not None:
            finish(*known)
        sample, nodes, all_ends = completed(drawing)
        known, hop = hop, (Walk(terms, group, ends, tables, workspace), nodes, all_ends, sample)
        group, ends = nodes, all_ends
        node_ends.append(nodes.counts)
    if hop is not None:
        counting = hop[0].counted()
        counting.send(None)
        if known is not None:
            finish(*known)
        completed(counting)
        finish(*hop)
    forget(group.rows, tables)
    workspace.put_back(tables)
    return DeviceSample(group.rows, tuple(node_ends), tuple(lists), tuple(x.edges for x in lists))
