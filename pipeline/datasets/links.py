"""Datasets of a link task: pairs of nodes to learn from and to score, and the graph without those held out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...stages.random import Purpose, permutation, stream
from ...storage.array_kinds import IdArray
from ...storage.dataset import SPLITS, Dataset, Split, require_dataset
from ...storage.errors import InputError, whole_number
from ...storage.graph import ALWAYS, Graph
from ...storage.links.pairs import (
    KIND_OF,
    POSITIVE,
    PairArray,
    contains,
    edge_keys,
    is_symmetric,
    keys_of,
    keys_of_pairs,
    of_pairs,
)
from ...storage.optional import present
from ...storage.plural import counted, were
from ...storage.typed.graph_types import GraphTypes
from .cleaning.components import of_edges
from .cleaning.options import Overlaps
from .cleaning.raw import AnyArray
from .cleaning.splits import by_time, parse_split
from .pair_relation import Relations, edges_by_relation, with_pair_relations
from .pairs import own_ids, sets_of

DEFAULT_SPLIT = "fraction:0.85,0.05"
Sets = Mapping[str, PairArray]
"""Pairs by the names of their sets."""
Times = Mapping[str, AnyArray]
"""Their times."""
NO_TIMES: Times = {}


def link_dataset(
    dataset: Dataset,
    *,
    pairs: Mapping[str, Any] | str | Path | None = None,
    split: str | None = None,
    seed: int = 0,
    relation: Relations | None = None,
    overlapping_splits: Overlaps = "error",
) -> Dataset:
    """A dataset for link prediction: tell pairs of nodes that belong together from others.

    Its graph lacks every edge of a held-out pair (val or test), parallel edges too. In a symmetric graph a pair stands
    for both directions; name it once. With times, all edges stay in the graph, and a pair is predicted from earlier
    edges only.

    In a graph with several types, pairs belong to one relation or more, with ids, or names, within the types of its
    source and destination. A relation that reverses it (called ``rev_NAME``, or with the same pairs reversed) loses the
    held-out pairs too.

    Args:
        dataset: its graph, features and names stay; labels and split are replaced.
        pairs: positive pairs by ``train``, ``val`` and ``test``, and given negatives by ``train_negatives``, ...:
            [n, 2] ids or names, or each set as PyG's `RandomLinkSplit` makes it, with negatives where `edge_label` is
            0; or a file, see `ReadOptions.pairs`. Without ``train``, the edges that are left. None:
            the edges of the graph but self loops, divided by `split`. With times ``train_time``, ... [n] of all sets.
            Of several relations each set is a mapping from the relation to its pairs.
        split: ``fraction:0.85,0.05`` (the default): shares of the edges for train and val; the rest is test.
            ``time:0.7,0.15`` (shares) or ``until:...`` (last times of train and val): in the order of the times of
            edges; a pair has the time of its first edge.
        seed: seed of that split.
        relation: the relation whose pairs are predicted, of a graph with several types: its name, or (source type,
            name, destination type), also joined by commas. A list of several, also joined by semicolons; ``"all"``:
            each but those that have the edges of an earlier one reversed.
        overlapping_splits: first: a pair in several sets stays in the first of train, val, test.

    Raises:
        InputError: a pair has an end that is no node, a share above 0 leaves its set empty, a positive pair is in two
            sets, or a negative is positive.
    """
    require_dataset(dataset)
    if dataset.task == "link":
        if pairs is None and split is None and relation is None:
            return dataset
        raise InputError(
            f"the pairs of {dataset.name} are split already; leave "
            f"{'pairs' if pairs is not None else 'split' if split is not None else 'relation'} out"
        )
    if dataset.has_edge_labels:
        dataset = replace(dataset, pairs=None, pair_features=None, pair_time=None, hides_pairs=False)
    dataset = with_pair_relations(dataset, relation)
    relations, notes = relations_of(dataset.graph), list(dataset.notes)
    if pairs is not None and split is not None:
        raise InputError("split and pairs are both given; expected one: the pairs have their sets")
    times = NO_TIMES
    if pairs is not None:
        sets, times = sets_of(pairs, dataset)
        _check_times(sets, times, dataset)
    elif split is not None and parse_split(split).kind in ("time", "until"):
        sets, times = _by_time(dataset, split, relations)
    else:
        sets = _drawn(dataset, split or DEFAULT_SPLIT, whole_number("seed", seed), relations)
        if split is None:
            notes.append("85 % of the edges train, 5 % validate, the rest test (split=fraction:0.85,0.05).")
    return links_of_sets(replace(dataset, notes=tuple(notes)), sets, relations, overlapping_splits, times)


def links_of_sets(
    dataset: Dataset, sets: Sets, relations: Sequence["Relation"], overlaps: Overlaps, times: Times = NO_TIMES
) -> Dataset:
    """`link_dataset`, of sets of pairs of some relations, by the global ids of nodes: [n, 2], or where the graph's
    types predict several [n, 3], with the number of each pair's relation. Without `times` of the sets, the graph is
    left without the pairs of val and test."""
    graph, notes, time = dataset.graph, list(dataset.notes), None
    kept = _kept(sets, dataset, relations, overlaps, notes, is_timed=bool(times))
    sets = {name: rows[kept[name]] for name, rows in sets.items()}
    if times:
        _check_reverse_times(graph)
        time = like_edges(np.concatenate([times[name][kept[name]] for name in SPLITS if name in times]), graph)
    else:
        held = [sets[name] for name in SPLITS[1:] if name in sets]
        graph = held_out(graph, np.concatenate(held), relations, "pairs", notes) if held else graph
    if "train" not in sets:
        sets["train"] = distinct_pairs(graph, relations)
    if not len(sets["train"]):
        raise InputError("the train set has no pairs; there is nothing to learn from: give train pairs, or more edges")
    _check_negatives(sets, dataset, relations)
    labels, numbers = _as_labels(sets)
    dataset = replace(dataset, num_classes=1, task="link", class_names=None, pair_time=time, notes=tuple(notes))
    return replace(dataset, graph=_with_symmetric(graph, relations), labels=labels, split=numbers).check()


@dataclass(frozen=True, eq=False)
class Relation:
    """Pairs of one relation, among those of all: [n, 2] without, or where several are predicted [n, 3] with it."""

    number: int | None
    """None: one is predicted, or the graph has one type of edges."""
    types: GraphTypes
    """Types where this relation alone is predicted."""
    symmetric: bool

    def within(self, graph: Graph) -> Graph:
        """The graph whose pairs are of this relation alone."""
        return replace(graph, types=self.types)

    def pairs(self, rows: PairArray) -> PairArray:
        """int64 [m, 2], the pairs of this relation."""
        return rows if self.number is None else rows[rows[:, 2] == self.number, :2]

    def rows(self, pairs: PairArray) -> PairArray:
        """Pairs [m, 2] of this relation, as rows of all."""
        return pairs if self.number is None else np.insert(pairs, 2, self.number, axis=1)


def relations_of(graph: Graph) -> list[Relation]:
    """The relations whose pairs are predicted."""
    types = graph.types
    if not types.predicts_several:
        return [Relation(None, types, is_symmetric(graph))]
    every = [(r, types.predicting(r)) for r in types.predicted]
    return [Relation(r, one, is_symmetric(graph, one)) for r, one in every]


def _check_reverse_times(graph: Graph) -> None:
    """Raise InputError if pairs have times and their reverses have none, so that they would reveal later pairs."""
    if graph.types.is_single or graph.edge_time is None:
        return
    for relation, *reverses in graph.types.pair_relations:
        for r in reverses:
            if (graph.edge_time[graph.edge_type == r] == ALWAYS[graph.edge_time.dtype]).any():
                one, other = (",".join(graph.types.relations[number]) for number in (relation, r))
                raise InputError(
                    f"pairs of {one} have times, but edges of {other}, their reverses, have none, so they would reveal "
                    "later pairs; give edge_times of both"
                )


def like_edges(times: AnyArray, graph: Graph) -> AnyArray:
    """Times of pairs as floating-point numbers where those of edges are, so that the moment before one is between."""
    floating = graph.edge_time is not None and graph.edge_time.dtype == np.float64
    return times.astype(np.float64) if floating else times


def _by_time(dataset: Dataset, text: str, relations: Sequence[Relation]) -> tuple[Sets, dict[str, AnyArray]]:
    """The pairs of the graph, each at the time of its first edge, divided by time."""
    if dataset.graph.edge_time is None:
        raise InputError(
            f"split is '{text}', but the edges of {dataset.name} have no times; give edge_time, or use {DEFAULT_SPLIT}"
        )
    every, time = (np.concatenate(a) for a in zip(*(_first_times(dataset.graph, one) for one in relations)))
    parts = dict(zip(SPLITS, by_time(time, parse_split(text), text, dataset.graph.time_unit)))
    return {name: every[part] for name, part in parts.items()}, {name: time[part] for name, part in parts.items()}


def _first_times(graph: Graph, relation: Relation) -> tuple[PairArray, AnyArray]:
    """The pairs of a relation, as rows of all, and the time of each one's first edge."""
    assert graph.edge_time is not None
    own = relation.within(graph)
    every = np.stack(np.divmod(keys_of_pairs(own), max(1, graph.num_nodes)), axis=1)
    if relation.symmetric:
        every.sort(axis=1)
    edge_time, rows = graph.edge_time[of_pairs(own)], relation.rows(every)
    order = np.argsort(edge_time, kind="stable")
    order = order[every[order, 0] != every[order, 1]]
    _, first = np.unique(keys_of(every[order, 0], every[order, 1], graph.num_nodes), return_index=True)
    return rows[order[first]], edge_time[order[first]]


def _check_times(sets: Sets, times: Mapping[str, AnyArray], dataset: Dataset) -> None:
    if not times:
        return
    if dataset.graph.edge_time is None:
        raise InputError(f"pairs have times, but the edges of {dataset.name} have none; give edge_time")
    for name in sets:
        if name not in SPLITS:
            raise InputError(f"pairs have times, and {name} are given; their negatives are drawn: leave them out")
        if len(times.get(name, ())) < len(sets[name]):
            raise InputError(f"some pairs of {name} have no times, and others have; give {name}_time of all")
    if "train" not in sets:
        raise InputError("pairs have times, but none are for train; give train and train_time")


def _drawn(dataset: Dataset, text: str, seed: int, relations: Sequence[Relation]) -> Sets:
    """The edges of the graph, divided by shares."""
    spec = parse_split(text)
    if spec.kind != "fraction":
        raise InputError(f"split is '{text}', but the task is link; expected shares of edges, such as {DEFAULT_SPLIT}")
    every = distinct_pairs(dataset.graph, relations)
    order = permutation(stream(seed, Purpose.SPLIT), np.arange(len(every)))
    ends = [round(spec.train * len(every)), round(min(1, spec.train + spec.val) * len(every))]
    parts: Sets = dict(zip(SPLITS, np.split(order, ends)))
    asked = {"train": spec.train, "val": spec.val, "test": 1 - spec.train - spec.val}
    for name, share in asked.items():
        if share > 1e-9 and not len(parts[name]):
            raise InputError(
                f"split is '{text}', but {counted(len(every), 'pair')} of {dataset.name} leave none for {name}; raise "
                "its share, or give pairs"
            )
    return {name: every[np.sort(part)] for name, part in parts.items()}


def distinct_pairs(graph: Graph, relations: Sequence[Relation]) -> PairArray:
    """int64 [n, 2], the edges of a graph as pairs of some relations, each once, without self loops; in a symmetric
    relation one for both directions. Of several relations [n, 3]."""
    found = []
    for one in relations:
        source, destination = np.divmod(np.unique(keys_of_pairs(one.within(graph))), max(1, graph.num_nodes))
        keep = source < destination if one.symmetric else source != destination
        found.append(one.rows(np.stack([source[keep], destination[keep]], axis=1)))
    return np.concatenate(found)


def _with_symmetric(graph: Graph, relations: Sequence[Relation]) -> Graph:
    """The graph whose types say which of several relations are symmetric."""
    if not graph.types.predicts_several:
        return graph
    groups = ((*own, *own[: one.symmetric]) for one, own in zip(relations, graph.types.pair_relations))
    return replace(graph, types=replace(graph.types, pair_relations=tuple(groups)))


def without_pairs(graph: Graph, rows: PairArray, relations: Sequence[Relation]) -> Graph:
    """The graph without the edges of some pairs of some relations, of symmetric ones without their reverses too, and
    without those of the relations that have their edges reversed."""
    if not len(rows):
        return graph
    keys, keep = edge_keys(graph), np.ones(graph.num_edges, bool)
    own = edges_by_relation(graph)
    for one in relations:
        pairs = one.pairs(rows)
        source, destination = (np.concatenate([pairs, pairs[:, ::-1]]) if one.symmetric else pairs).T
        relation, *reverses = (0,) if one.types.is_single else one.types.pair_relations[0]
        for r in (relation, *reverses):
            ends = (source, destination) if r == relation else (destination, source)
            keep[own[r][contains(np.unique(keys_of(*ends, graph.num_nodes)), keys[own[r]])]] = False
    return of_edges(graph, keep)


def held_out(graph: Graph, rows: PairArray, relations: Sequence[Relation], what: str, notes: list[str]) -> Graph:
    """The graph without the pairs of val and test, which are called `what` in the note."""
    kept = without_pairs(graph, rows, relations)
    if removed := graph.num_edges - kept.num_edges:
        notes.append(
            f"{counted(removed, 'edge')} {were(removed)} held out: the val and test {what}, left out of the graph."
        )
    return kept


def _numbered(sets: Sets, relations: Sequence[Relation]) -> dict[str, IdArray]:
    """For each set int64 [n], numbers that are equal where pairs are the same, in whatever sets."""
    rows = np.concatenate([*sets.values()])
    turns = np.full(len(rows), relations[0].symmetric)
    if len(relations) > 1:
        turns = np.isin(rows[:, 2], present(one.number for one in relations if one.symmetric))
    rows[turns, :2] = np.sort(rows[turns, :2], axis=1)
    order, numbers = np.lexsort(rows.T), np.zeros(len(rows), np.int64)
    numbers[order[1:]] = np.cumsum((rows[order[1:]] != rows[order[:-1]]).any(axis=1))
    ends = np.cumsum([0, *map(len, sets.values())])
    return {name: numbers[a:b] for name, a, b in zip(sets, ends, ends[1:])}


def _kept(
    sets: Sets,
    dataset: Dataset,
    relations: Sequence[Relation],
    overlaps: Overlaps,
    notes: list[str],
    is_timed: bool,
) -> dict[str, IdArray]:
    """Positions of the pairs that each set keeps: each once, and a positive one in one set, by `overlaps` the first.
    Raises InputError: it is in several, or with times more than once in one."""
    numbers, kept = _numbered(sets, relations), dict[str, IdArray]()
    for name, own in numbers.items():
        first = np.sort(np.unique(own, return_index=True)[1])
        if again := len(own) - len(first):
            if is_timed:
                raise InputError(f"a pair is in the {name} set at several times; expected each once, at its first time")
            notes.append(f"{counted(again, 'repeated pair')} of {name} {were(again)} dropped.")
        earlier = SPLITS[: SPLITS.index(name)] if name in SPLITS else ()
        there = {other: np.isin(own[first], numbers[other]) for other in earlier if other in numbers}
        for other, both in there.items() if overlaps == "error" else ():
            if both.any():
                raise InputError(
                    f"the pair {_called(sets[name][first[both]], dataset)} is in the {other} and the {name} set "
                    f"({counted(int(both.sum()), 'such pair')}); expected each in one of them: set "
                    "overlapping_splits=first to leave it in the first"
                )
        stays = ~np.any([np.zeros(len(first), bool), *there.values()], axis=0)
        if both := len(first) - int(stays.sum()):
            notes.append(f"{counted(both, 'pair')} of {name} {were(both)} in an earlier set too and stayed there.")
        kept[name] = first[stays]
    return kept


def _check_negatives(sets: Sets, dataset: Dataset, relations: Sequence[Relation]) -> None:
    """Raise InputError if a given negative is a positive pair."""
    negatives = [name for name in sets if name not in SPLITS]
    numbers = _numbered(sets, relations) if negatives else {}
    for name in negatives:
        wrong = np.isin(numbers[name], np.concatenate([own for other, own in numbers.items() if other in SPLITS]))
        if wrong.any():
            raise InputError(
                f"the pair {_called(sets[name][wrong], dataset)} is among the negatives of the "
                f"{name.partition('_')[0]} set and among the positive pairs; expected it in one place: leave it out of "
                "the other"
            )


def _called(rows: PairArray, dataset: Dataset) -> str:
    """The first of some pairs as its user calls it, in words."""
    several = rows.shape[1] > 2
    pair = tuple(own_ids(rows[:1, :2], dataset, rows[:1, 2] if several else None)[0].tolist())
    if dataset.node_names is not None:
        pair = tuple(str(dataset.node_names[end]) for end in rows[0, :2].tolist())
    return f"{pair} of {','.join(dataset.graph.types.relations[rows[0, 2]])}" if several else str(pair)


def _as_labels(sets: Sets) -> tuple[PairArray, Split]:
    none, kinds = sets["train"][:0], dict.fromkeys(SPLITS, POSITIVE) | {f"{n}_negatives": k for n, k in KIND_OF.items()}
    rows = [np.insert(sets.get(name, none), 2, kind, axis=1) for name, kind in kinds.items()]
    ends = np.cumsum([0, *map(len, rows)]).tolist()
    return np.concatenate(rows).astype(np.int64), Split(*(np.arange(*ends[k : k + 2]) for k in range(len(SPLITS))))
