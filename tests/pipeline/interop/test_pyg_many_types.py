"""`NeighborLoader` of a `HeteroData`: exact neighbourhoods, laws by enumeration, times, weights, PyG's own modules."""

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy.stats import chisquare
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv, HGTConv, SAGEConv, to_hetero
from torch_geometric.sampler import HeteroSamplerOutput, NumNeighbors
from torch_geometric.utils import trim_to_layer

from millrace import HGTLoader, NeighborLoader
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph
from millrace.tests.contracts.typed import typed_graphs

WRITES, CITES, BACK, CHAIRS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "rev_writes", "author"),
    ("author", "chairs", "venue"),
)
SIZES = {"paper": 40, "author": 25, "venue": 3}


def hetero(seed: int = 0) -> HeteroData:
    """Features of two widths, a type without, a relation without edges; edge features, weights and times of some."""
    rng, data = torch.Generator().manual_seed(seed), HeteroData()
    data["paper"].x, data["author"].x = (
        torch.randn(SIZES[t], n, generator=rng).double() for t, n in (("paper", 5), ("author", 3))
    )
    data["venue"].num_nodes = 3
    data["paper"].y = torch.arange(40)
    for relation, count in ((WRITES, 130), (CITES, 150), (BACK, 120), (CHAIRS, 0)):
        ends = [torch.randint(SIZES[t], (count,), generator=rng) for t in (relation[0], relation[2])]
        data[relation].edge_index = torch.stack(ends)
    data[WRITES].edge_attr, data[CITES].w = torch.arange(130.0), torch.arange(150.0) % 4
    data["paper"].at, data["author"].at = torch.arange(40) % 7, torch.arange(25) % 5
    data[WRITES].since, data[CITES].since = torch.arange(130) % 7, torch.arange(150) % 6
    return data


def of_graph(graph: Graph) -> HeteroData:
    """A graph with types as a HeteroData, whose edge types have ids."""
    data, types = HeteroData(), graph.types
    assert not types.is_single and graph.edge_type is not None and graph.edge_id is not None
    for t, name in enumerate(types.node_types):
        data[name].num_nodes = types.num_nodes(t)
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    for r, relation in enumerate(types.relations):
        mine = np.flatnonzero(graph.edge_type == r)
        mine = mine[np.argsort(graph.edge_id[mine])]
        ends = [a[mine] - types.offsets[t] for a, t in zip((graph.indices, rows), types.ends[r])]
        data[relation].edge_index = torch.from_numpy(np.stack(ends).astype(np.int64))
    return data


def check(batch: HeteroData, data: HeteroData) -> None:
    """Check PyG's promises for every minibatch."""
    assert batch.node_types == data.node_types and batch.edge_types == data.edge_types
    for t in data.node_types:
        store = batch[t]
        assert len(store.n_id) == store.num_nodes
        if "x" in data[t]:
            assert torch.equal(store.x, data[t].x[store.n_id])
    for relation in data.edge_types:
        store, (source, _, target) = batch[relation], relation
        ends = torch.stack([batch[t].n_id[side] for t, side in zip((source, target), store.edge_index)])
        assert torch.equal(ends, data[relation].edge_index[:, store.e_id])
        if "edge_attr" in data[relation]:
            assert torch.equal(store.edge_attr, data[relation].edge_attr[store.e_id])


def tree(
    data: HeteroData, root: tuple[str, int], hops: int, may: Any = lambda *_: True
) -> tuple[Counter[Any], list[set[Any]]]:
    """Edges of a seed's whole neighbourhood as (relation, column, hop), and the nodes of each hop: the definition."""
    edges, known, frontier, found = Counter[Any](), {root}, {root}, [{root}]
    for hop in range(hops):
        new = set()
        for relation in data.edge_types:
            for column, (u, v) in enumerate(data[relation].edge_index.T.tolist()):
                if (relation[2], v) in frontier and may(relation, column, u):
                    edges[relation, column, hop] += 1
                    new.add((relation[0], u))
        frontier = new - known
        known |= frontier
        found.append(frontier)
    return edges, found


@settings(max_examples=25)
@given(typed_graphs())
def test_whole_neighbourhoods_on_any_graph(graph: Graph) -> None:
    data = of_graph(graph)
    name = data.node_types[0]
    for node, batch in enumerate(NeighborLoader(data, [-1, -1], name)):
        check(batch, data)
        edges, nodes = tree(data, (name, node), 2)
        for t in data.node_types:
            store = batch[t]
            assert store.num_sampled_nodes == [sum(kind == t for kind, _ in hop) for hop in nodes]
            parts = torch.split(store.n_id, store.num_sampled_nodes)
            assert [part.tolist() for part in parts] == [sorted(v for kind, v in hop if kind == t) for hop in nodes]
        found = Counter()
        for relation in data.edge_types:
            store = batch[relation]
            steps = np.repeat([0, 1], store.num_sampled_edges)
            found.update((relation, e, int(hop)) for e, hop in zip(store.e_id.tolist(), steps))
            assert (store.edge_index[1].diff() >= 0).all()
        assert found == edges
        assert (batch[name].batch_size, batch[name].input_id.tolist(), batch.input_type) == (1, [node], name)


def test_input_nodes_in_every_form() -> None:
    data, mask = hetero(), torch.arange(40) % 3 == 0
    for given_, nodes, ids in (
        ("paper", range(40), range(40)),
        (("paper", None), range(40), range(40)),
        (("paper", mask), range(0, 40, 3), range(0, 40, 3)),
        (("author", torch.tensor([7, 7, 3])), (7, 7, 3), range(3)),
        (["author", [4, 2]], (4, 2), range(2)),
    ):
        (batch,) = NeighborLoader(data, [2], given_, batch_size=50)
        store = batch[batch.input_type]
        assert store.n_id[: store.batch_size].tolist() == list(nodes) and store.input_id.tolist() == list(ids)
        check(batch, data)


def test_fanouts_of_edge_types() -> None:
    data = hetero()
    given_: Any = {WRITES: [1, 2], ("paper", "cites", "paper"): [0, -1], BACK: [-1, 0], "chairs": [3, 3]}
    degree = {r: torch.bincount(data[r].edge_index[1], minlength=SIZES[r[2]]) for r in data.edge_types}
    for batch in NeighborLoader(data, given_, "paper", batch_size=10):
        check(batch, data)
        papers, authors = (torch.split(batch[t].n_id, batch[t].num_sampled_nodes) for t in ("paper", "author"))
        counts = {r: batch[r].num_sampled_edges for r in data.edge_types}
        assert counts[WRITES][0] == int(degree[WRITES][papers[0]].clamp(max=1).sum())
        assert counts[WRITES][1] == int(degree[WRITES][papers[1]].clamp(max=2).sum())
        assert counts[CITES] == [0, int(degree[CITES][papers[1]].sum())]
        assert counts[BACK] == [int(degree[BACK][authors[0]].sum()), 0] and counts[CHAIRS] == [0, 0]
    some = NumNeighbors({WRITES: [2, 1]}, default=[0, 0])
    assert all(
        b[CITES].num_edges == 0 < b[WRITES].num_edges for b in NeighborLoader(data, some, "paper", batch_size=20)
    )


def law(weights: list[float], most: int, replace: bool) -> dict[tuple[int, ...], float]:
    """Probability of each multiset of `most` draws by weight, without replacement or with it."""
    out, indices = Counter[tuple[int, ...]](), range(len(weights))
    orders = np.ndindex(*[len(weights)] * most) if replace else permutations(indices, most)
    for order in orders:
        left, p = sum(weights), 1.0
        for i in order:
            p *= weights[i] / left
            left -= 0 if replace else weights[i]
        out[tuple(sorted(order))] += p
    return {k: p for k, p in out.items() if p}


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"disjoint": True},
        {"weight_attr": "w"},
        {"time_attr": "at"},
        {"time_attr": "at", "temporal_strategy": "last"},
    ],
)
def test_each_relation_has_its_law_apart_from_the_others(options: dict[str, Any], replace: bool) -> None:
    """Each of 700 seeds has four in-edges of one relation, by weight if asked or the last two, and three of another,
    without weights and times: every joint outcome."""
    seeds, data = 700, HeteroData()
    data["a"].num_nodes, data["b"].num_nodes, data["c"].num_nodes = seeds, 4 * seeds, 3 * seeds
    data["a"].at, data["b"].at = torch.full((seeds,), 5), torch.full((4 * seeds,), 5)
    for name, n in (("b", 4), ("c", 3)):
        data[name, "to", "a"].edge_index = torch.stack([torch.arange(n * seeds), torch.arange(n * seeds) % seeds])
    weights = [1.0, 2.0, 3.0, 0.0]
    data["b", "to", "a"].w = torch.tensor(weights).repeat_interleave(seeds)
    fanout = {("b", "to", "a"): [2], ("c", "to", "a"): [1]}
    (batch,) = NeighborLoader(data, fanout, "a", batch_size=seeds, replace=replace, seed=1, **options)
    found = Counter()
    picks = [
        (batch[name, "to", "a"].e_id // seeds)[batch[name, "to", "a"].edge_index[1].argsort(stable=True)].view(seeds, n)
        for name, n in (("b", 2), ("c", 1))
    ]
    found.update((tuple(sorted(x)), y[0]) for x, y in zip(picks[0].tolist(), picks[1].tolist()))
    chances = weights if "weight_attr" in options else [0.0, 0, 1, 1] if "temporal_strategy" in options else [1.0] * 4
    of_b = law(chances, 2, replace)
    expected = {(x, y): p / 3 for x, p in of_b.items() for y in range(3)}
    assert set(found) <= set(expected)
    assert chisquare([found[k] for k in expected], [p * seeds for p in expected.values()]).pvalue > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True},
        {"disjoint": True},
        {"weight_attr": "w"},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
        {"time_attr": "at"},
    ],
)
def test_samples_follow_the_seed_not_bulks(options: dict[str, Any]) -> None:
    data, nodes = hetero(), torch.tensor([1, 2, 3, 4, 5, 5, 6, 7, 8, 1])

    def epochs(**more: Any) -> list[list[Any]]:
        loader = NeighborLoader(data, [3, 2], ("paper", nodes), batch_size=2, seed=1, shuffle=True, **more, **options)
        return [
            [(b["paper"].n_id.tolist(), b["author"].n_id.tolist(), b[CITES].edge_index.tolist()) for b in loader]
            for _ in range(2)
        ]

    first = epochs()
    assert first == epochs(bulk_size=1) == epochs(bulk_size=3, prefetch_bulks=2) and first[0] != first[1]


def test_seeds_that_repeat_draw_each_for_itself() -> None:
    data = hetero()
    (batch,) = NeighborLoader(data, [2], ("paper", [7, 3, 7]), batch_size=3, seed=0)
    check(batch, data)
    for relation in (WRITES, CITES):
        degree = torch.bincount(data[relation].edge_index[1], minlength=40)[[7, 3, 7]]
        assert torch.bincount(batch[relation].edge_index[1], minlength=3).tolist() == degree.clamp(max=2).tolist()
    assert batch["paper"].n_id[:3].tolist() == [7, 3, 7] and not (batch[CITES].edge_index[0] == 2).any()


@pytest.mark.parametrize(("attribute", "moment"), [("at", None), ("at", 2.5), ("since", 3)])
def test_trees_have_exactly_what_is_not_later_than_their_seed(attribute: str, moment: float | None) -> None:
    data, seeds = hetero(), torch.tensor([3, 3, 17, 20])
    times = None if moment is None else torch.full((4,), moment)
    loader = NeighborLoader(data, [-1, -1], ("paper", seeds), times, time_attr=attribute, batch_size=4)
    (batch,) = loader
    check(batch, data)
    for i, seed in enumerate(seeds.tolist()):
        until = int(data["paper"].at[seed]) if moment is None else moment

        def may(relation: Any, column: int, u: int, until: float = until) -> bool:
            store, at = (data[relation[0]], u) if attribute == "at" else (data[relation], column)
            return attribute not in store or bool(store[attribute][at] <= until)

        edges, nodes = tree(data, ("paper", seed), 2, may)
        for t in data.node_types:
            mine = batch[t].n_id[batch[t].batch == i].tolist()
            assert sorted(mine) == sorted(v for hop in nodes for kind, v in hop if kind == t)
        for relation in data.edge_types:
            inside = batch[relation[2]].batch[batch[relation].edge_index[1]] == i
            wanted = sorted(column for r, column, _ in edges.elements() if r == relation)
            assert sorted(batch[relation].e_id[inside].tolist()) == wanted
    assert ("seed_time" in batch["paper"]) == (moment is not None)


def test_the_last_edges_of_relations_with_times() -> None:
    data = hetero()
    moments = torch.full((40,), 4)
    options = {"time_attr": "since", "temporal_strategy": "last", "batch_size": 40}
    (batch,) = NeighborLoader(data, [2], "paper", moments, **options)
    for v in range(40):
        for relation in (WRITES, CITES):
            into = data[relation].since[(data[relation].edge_index[1] == v) & (data[relation].since <= 4)]
            mine = batch[relation].since[batch[relation].edge_index[1] == v]
            assert mine.sort().values.tolist() == into.sort().values[-2:].tolist()
    # Edges of a relation without times are drawn as ever.
    (batch,) = NeighborLoader(data, [2], "author", torch.zeros(25), **options)
    degree = torch.bincount(data[BACK].edge_index[1], minlength=25)
    assert torch.bincount(batch[BACK].edge_index[1], minlength=25)[:25].tolist() == degree.clamp(max=2).tolist()


def test_induced_and_bidirectional_subgraphs() -> None:
    data = hetero()
    plain, induced, both = (
        NeighborLoader(data, [2, 1], "paper", batch_size=10, seed=2, subgraph_type=kind)
        for kind in ("directional", "induced", "bidirectional")
    )
    for p, i, b in zip(plain, induced, both):
        check(i, data)
        for t in data.node_types:
            assert torch.equal(p[t].n_id, i[t].n_id) and torch.equal(p[t].n_id, b[t].n_id)
            assert "num_sampled_nodes" not in i[t] and "num_sampled_nodes" not in b[t]
        for r in data.edge_types:
            ends = zip((r[0], r[2]), data[r].edge_index)
            inside = torch.stack([torch.isin(side, p[t].n_id) for t, side in ends]).all(0).nonzero().flatten()
            assert i[r].e_id.sort().values.tolist() == inside.tolist()
        pairs = {r: set(map(tuple, b[r].edge_index.T.tolist())) for r in data.edge_types}
        sampled = {r: set(map(tuple, p[r].edge_index.T.tolist())) for r in data.edge_types}
        assert pairs[WRITES] == sampled[WRITES] | {(v, u) for u, v in sampled[BACK]} == {(v, u) for u, v in pairs[BACK]}
        assert pairs[CITES] == sampled[CITES] | {(v, u) for u, v in sampled[CITES]}
        assert "e_id" not in b[WRITES] and "edge_attr" not in b[WRITES]


def test_outputs_of_the_sampler_are_handed_to_the_user() -> None:
    data, seen = hetero(), []

    def change(out: Any) -> Any:
        assert isinstance(out, HeteroSamplerOutput)
        seen.append(out.metadata[0].tolist())
        return out

    batch = NeighborLoader(data, [2], "paper", transform_sampler_output=change, transform=lambda b: (b, 1))([3])
    assert seen == [[3]] and batch[1] == 1
    with pytest.raises(InputError, match="returned int; expected PyG's HeteroSamplerOutput"):
        NeighborLoader(data, [2], "paper", transform_sampler_output=lambda _: 3)([3])
    loader = NeighborLoader(data, [2], "paper", filter_per_worker=False)
    assert isinstance(loader.collate_fn([1]), HeteroSamplerOutput) and str(loader) == "NeighborLoader()"


def test_graphs_without_edges() -> None:
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 2
    for options in ({}, {"disjoint": True}, {"subgraph_type": "induced"}):
        batches = list(NeighborLoader(data, [2, 2], "a", **options))
        assert [b["a"].n_id.tolist() for b in batches] == [[0], [1]] and batches[0]["b"].num_nodes == 0
    assert [b["b"].n_id.tolist() for b in HGTLoader(data, [2], "b")] == [[0], [1]]


# --- PyG's modules
# -----------------------------------------------------------------------------------------------------------------


class Hetero(torch.nn.Module):
    """Two layers of `HeteroConv`."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({WRITES: SAGEConv(of, 8), CITES: GATConv(p, 8), BACK: SAGEConv((p, a), 8)}, aggr="sum")
            for of, p, a in (((3, 5), 5, 3), ((8, 8), 8, 8))
        )

    def forward(self, x: Any, edges: Any) -> Any:
        for conv in self.convs:
            x = {t: h.relu() for t, h in conv(x, edges).items()}
        return x


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 8)

    def forward(self, x: Any, edges: Any) -> Any:
        return self.two(self.one(x, edges).relu(), edges)


class Transformer(torch.nn.Module):
    def __init__(self, metadata: Any) -> None:
        super().__init__()
        self.one, self.two = HGTConv({"paper": 5, "author": 3}, 8, metadata, 2), HGTConv(8, 8, metadata, 2)

    def forward(self, x: Any, edges: Any) -> Any:
        return self.two(self.one(x, edges), edges)


@pytest.mark.parametrize("kind", ["HeteroConv", "to_hetero", "HGTConv"])
@pytest.mark.parametrize("loader", ["neighbor", "hgt"])
def test_pygs_modules_give_what_they_give_on_the_subgraph(kind: str, loader: str) -> None:
    """A sampled minibatch, against the same module on all nodes with the sampled edges only; and all in-edges, against
    the whole graph."""
    torch.manual_seed(0)
    data = hetero()
    del data["venue"], data[CHAIRS]
    metadata = data.metadata()
    made = {
        "HeteroConv": Hetero,
        "to_hetero": lambda: to_hetero(Plain(), metadata),
        "HGTConv": lambda: Transformer(metadata),
    }
    net = made[kind]().double()

    def outputs(x: Any, edges: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return net(x, edges)

    outputs(data.x_dict, data.edge_index_dict)
    if loader == "neighbor":
        sampled = NeighborLoader(data, [2, 2], "paper", batch_size=20, seed=0)
    else:
        sampled = HGTLoader(data, [6, 6], "paper", batch_size=20, seed=0)
    for batch in sampled:
        found = outputs(batch.x_dict, batch.edge_index_dict)
        edges = {r: data[r].edge_index[:, batch[r].e_id] for r in data.edge_types}
        wanted = outputs(data.x_dict, edges)
        for t in data.node_types:
            torch.testing.assert_close(found[t], wanted[t][batch[t].n_id], rtol=1e-10, atol=1e-10)
    whole = outputs(data.x_dict, data.edge_index_dict)["paper"]
    every = [-1, -1] if loader == "neighbor" else [100, 100]
    for batch in (NeighborLoader if loader == "neighbor" else HGTLoader)(data, every, "paper", batch_size=20):
        found = outputs(batch.x_dict, batch.edge_index_dict)["paper"][: batch["paper"].batch_size]
        torch.testing.assert_close(found, whole[batch["paper"].input_id], rtol=1e-10, atol=1e-10)


def test_trim_to_layer_gives_the_seeds_the_same_output() -> None:
    torch.manual_seed(0)
    data, net = hetero(), Hetero().double()
    del data["venue"], data[CHAIRS]
    for batch in NeighborLoader(data, [3, 2], "paper", batch_size=10):
        size, x, edges = batch["paper"].batch_size, batch.x_dict, batch.edge_index_dict
        wanted = net(x, edges)["paper"][:size]
        for i, conv in enumerate(net.convs):
            nodes, counts = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
            x, edges, _ = trim_to_layer(i, nodes, counts, x, edges)
            x = {t: h.relu() for t, h in conv(x, edges).items()}
        torch.testing.assert_close(x["paper"][:size], wanted)


# --- refusals
# -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"input_nodes": None}, "input_nodes is None; expected a node type"),
        ({"input_nodes": torch.arange(3)}, "input_nodes is Tensor; expected a node type"),
        ({"input_nodes": "papr"}, "there is no node type 'papr'.*did you mean 'paper'"),
        (
            {"input_nodes": ("paper", torch.ones(39) > 0)},
            r"input_nodes of 'paper' is a mask of shape \[39\]; expected \[40\]",
        ),
        ({"input_nodes": ("author", [25])}, r"input_nodes of 'author' lie in \[25, 25\]; expected \[0, 25\)"),
        ({"num_neighbors": {("paper", "cite", "paper"): [2]}}, "paper,cite,paper, which is not there.*did you mean"),
        ({"num_neighbors": {WRITES: [2]}}, "nothing for the edge type paper,cites,paper"),
        ({"num_neighbors": {WRITES: [2], CITES: [1, 2], BACK: [2], CHAIRS: [2]}}, "hops must be the same across all"),
        ({"num_neighbors": {WRITES: 2}}, "num_neighbors of author,writes,paper is 2; expected one number for each hop"),
        ({"num_neighbors": {WRITES: [-2], CITES: [1], BACK: [2], CHAIRS: [2]}}, "num_neighbors: .*holds -2"),
        ({"num_neighbors": {3: [2]}}, "num_neighbors is 3; expected an edge type"),
        ({"num_neighbors": [2, 0]}, "num_neighbors: .*holds 0"),
        ({"weight_attr": "ww"}, "weight_attr is 'ww'; expected the name of an attribute of an edge type"),
        ({"weight_attr": "sincs"}, "did you mean 'since'"),
        ({"weight_attr": "bad"}, r"data\['paper', 'cites', 'paper'\].bad holds negative"),
        ({"time_attr": "z"}, "time_attr is 'z'; expected the name of an attribute of a node type or an edge type"),
        ({"time_attr": "both"}, "time_attr is 'both', which both .* and .* have; expected times of nodes, or"),
        ({"time_attr": "since"}, "a time of edges; give the seeds theirs by input_time"),
        ({"time_attr": "at", "input_nodes": "venue"}, "time_attr is 'at', which 'venue' has not; give the seeds'"),
        ({"time_attr": "x"}, r"data\['paper'\].x has shape \[40, 5\]; expected \[40\]"),
        ({"time_attr": "at", "input_time": torch.ones(3)}, r"input_time has shape \[3\]; expected \[40\]"),
        ({"time_attr": "at", "weight_attr": "w"}, "both time_attr and weight_attr"),
        ({"input_id": [1]}, r"input_id has shape \[1\]; expected \[40\]"),
    ],
)
def test_bad_arguments_are_a_sentence(options: dict[str, Any], sentence: str) -> None:
    data = hetero()
    data[CITES].bad, data["paper"].both, data[CITES].both = torch.full((150,), -1.0), torch.ones(40), torch.ones(150)
    with pytest.raises(InputError, match=sentence):
        NeighborLoader(data, **{"num_neighbors": [2], "input_nodes": "paper", **options})


def broken(change: Any) -> HeteroData:
    data = hetero()
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda d: d["shop"].update({"name": "s"}),
            r"data\['shop'\] has neither x nor num_nodes; set data\['shop'\].num_nodes",
        ),
        (
            lambda d: d["paper", "in", "shop"].update({"edge_index": d[CITES].edge_index}),
            "node type 'shop', which is not",
        ),
        (
            lambda d: d[CITES].update({"edge_index": torch.full((2, 1), 40)}),
            r"sources of data\['paper', 'cites', 'paper'\] lie in",
        ),
        (lambda d: d[CITES].update({"edge_index": torch.zeros(4)}), r"edge_index has shape \[4\]; expected \[2, E\]"),
        (lambda d: d[CITES].update({"edge_index": torch.zeros(2, 4)}), "holds float32; expected integer node ids"),
        (lambda d: d[CITES].pop("edge_index"), "has no edge_index"),
    ],
)
def test_bad_data_is_a_sentence(change: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        NeighborLoader(broken(change), [2], "paper")


def test_data_without_types_is_refused() -> None:
    with pytest.raises(InputError, match="data has no node types"):
        NeighborLoader(HeteroData(), [2], "paper")
