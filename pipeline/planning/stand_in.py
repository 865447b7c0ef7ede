"""A generated graph with the types, the features of edges and the pairs of a larger one."""

from dataclasses import replace
from typing import Any

import numpy as np

from ...stages.models.relational import TypedInput
from ...storage.dataset import SPLITS, Dataset, Split
from ...storage.features import ArrayFeatures
from ...storage.links.pairs import KIND_OF, POSITIVE, PairArray, keys_of_pairs, of_pairs
from ...storage.optional import taken
from ...storage.typed.features import TypedFeatures
from ...storage.typed.graph_types import GraphTypes, edges_of_types
from ..datasets.cleaning.relations import graph_of_relations
from ..setup.model import types_of
from .inputs import Numbers


def detailed(base: Dataset, numbers: Numbers, like: Dataset | None) -> Dataset:
    """The graph `base` with node types, relations and features of edges in the proportions of `like`, or only with
    features of edges by `numbers`, if there are any, if that has no types, or is None.

    The edges of a relation are drawn from all edges of `base`, with their ends renumbered to nodes of the relation's
    types, so that degrees are as skewed as there.
    """
    rng, graph = np.random.default_rng(0), base.graph
    if like is None or (record := types_of(like)) is None:
        if not numbers.edge_features:
            return base
        rows = rng.standard_normal((graph.num_edges, numbers.edge_features), np.float32)
        return replace(base, graph=replace(graph, edge_features=ArrayFeatures(rows)))
    (types, widths), v = TypedInput.of_record(record), base.num_nodes
    scale = v / like.num_nodes
    counts = [max(1, round(types.num_nodes(t) * scale)) for t in range(len(types.node_types))]
    offsets = (0, *np.cumsum(counts).tolist())
    ends, edges, of_edges = np.stack([graph.indices, np.repeat(np.arange(v), graph.in_degree)]), {}, []
    for r, (relation, number) in enumerate(zip(types.relations, edges_of_types(like.graph))):
        drawn = ends[:, rng.integers(0, graph.num_edges, round(number * graph.num_edges / like.graph.num_edges))]
        src, dst = (offsets[t] + row * counts[t] // v for t, row in zip(types.ends[r], drawn.astype(np.int64)))
        edges[relation] = src, dst
        d = types.edge_widths[r] if types.edge_widths else 0
        of_edges.append(rng.standard_normal((len(src), d), np.float32) if d else None)
    smaller = GraphTypes(types.node_types, offsets, types.relations)
    features = TypedFeatures(
        tuple(ArrayFeatures(rng.standard_normal((n, w), np.float32)) for n, w in zip(counts, widths)), offsets
    )
    train = max(1, round(min(0.9 * counts[0], scale * like.split_sizes["train"])))
    sets = np.split(rng.permutation(counts[0]), [train, (train + counts[0]) // 2])
    labels = np.where(np.arange(offsets[-1]) < counts[0], np.resize(base.labels, offsets[-1]), -1)
    made = graph_of_relations(edges, smaller, features=of_edges)
    made = replace(made, types=replace(made.types, pair_relations=types.pair_relations))
    split = Split(*(np.sort(ids) for ids in sets))
    return replace(base, graph=made, features=features, labels=labels, split=split).check()


def with_pairs(made: Dataset, like: Dataset) -> Dataset:
    """The graph `made` with as many pairs for each node as `like` has, whose labels are of pairs. Train pairs are
    edges, and some of them several times if there are fewer; the others join the source of one edge to the destination
    of another. Labels and features of edges are some of `like`."""
    rng, graph, scale = np.random.default_rng(0), made.graph, made.num_nodes / like.num_nodes
    every, relation = np.stack(np.divmod(keys_of_pairs(graph), graph.num_nodes), axis=1), None
    first, size = np.zeros(1, np.int64), np.array([len(every)])
    if graph.types.predicts_several:
        kinds = graph.edge_relations[of_pairs(graph)].astype(np.int64)
        order = np.argsort(kinds, kind="stable")
        every, relation = every[order], kinds[order]
        size = np.bincount(kinds, minlength=graph.types.num_relations)
        first = np.cumsum(size) - size
    pairs, numbers, given = [], [], like.pair_table[:, 2:3]

    def drawn(count: int, kind: int, joined: bool) -> PairArray:
        """Rows of edges, or with `joined` of the source of one and the destination of another of its relation."""
        ends = rng.integers(0, len(every), (count, 2))
        group = 0 if relation is None else relation[ends[:, 0]]
        other = first[group] + ends[:, 1] % size[group]
        rows = np.stack([every[ends[:, 0], 0], every[other, 1]], axis=1) if joined else every[ends[:, 0]]
        rows = np.insert(rows, 2, kind, axis=1)
        return rows if relation is None else np.column_stack([rows, group])

    for name in SPLITS:
        rows = drawn(max(1, round(scale * like.split_sizes[name])), POSITIVE, joined=name != "train")
        numbers.append(sum(map(len, pairs)) + np.arange(len(rows)))
        pairs.append(rows)
    counts = {kind: round(scale * np.count_nonzero(given == kind)) for kind in KIND_OF.values()}
    pairs += [drawn(count, kind, joined=True) for kind, count in counts.items()]
    table, split = np.concatenate(pairs), Split(*numbers)
    if like.task == "link":
        return replace(made, labels=table, split=split, num_classes=1, task="link", class_names=None).check()
    some = rng.choice(like.split.train, len(table))
    alike: dict[str, Any] = {n: getattr(like, n) for n in ("num_classes", "task", "class_names", "hides_pairs")}
    features = taken(like.pair_features, some)
    labels = like.labels[some]
    return replace(made, labels=labels, split=split, pairs=table[:, :2], pair_features=features, **alike).check()
