"""Links of one relation of several: what is held out, ids and names within types, sources, and bad input."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.pipeline.datasets.cleaning.options import ReadOptions
from millrace.storage.dataset import SPLITS, Dataset, Split
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.lazy_dataset import open_lazily
from millrace.tests.contracts.typed import typed_graphs

BUYS, SEES = ("user", "buys", "item"), ("user", "sees", "item")
RNG = np.random.default_rng(0)
ENDS = {r: np.unique(np.stack([RNG.integers(0, 6, 40), RNG.integers(0, 9, 40)]), axis=1) for r in (BUYS, SEES)}
COUNTS = {"item": 9, "user": 6}


def shop(edges=ENDS, **more):
    return mr.from_relations(edges, num_nodes=COUNTS, **more)


def edges_of(graph, relation):
    """Edges of a relation by ids within the types, sorted."""
    r = graph.types.relation(",".join(relation))
    own, ends = graph.edge_type == r, graph.types.ends[r]
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    starts = [graph.types.offsets[t] for t in ends]
    return sorted(zip((graph.indices[own] - starts[0]).tolist(), (rows[own] - starts[1]).tolist()))


def pairs_of(data, name):
    return [tuple(p) for p in (data.labels[getattr(data.split, name), :2] - [9, 0]).tolist()]


@settings(max_examples=40)
@given(typed_graphs(linked=True), st.integers(0, 3))
def test_held_out_pairs_are_edges_of_neither_the_relation_nor_its_reverse(graph, seed):
    types, n = replace(graph.types, pair_relations=()), graph.num_nodes
    back = len(types.relations) - 1
    # The reverse has one edge more than the relation, which its name makes one.
    (b, _, a) = types.relations[-1]
    types = replace(types, relations=(*types.relations[:-1], (b, "rev_r0", a)))
    rows, none = ArrayFeatures(np.ones((n, 1), np.float32)), np.empty(0, np.int64)
    labels, split = np.full(n, -1), Split(none, none, none)
    data = Dataset("small", replace(graph, types=types), rows, labels, split, 0)
    ends = np.stack([graph.indices, np.repeat(np.arange(n), graph.in_degree)], 1).tolist()
    own = {tuple(e) for e, r in zip(ends, graph.edge_type) if r == 0 and e[0] != e[1]}
    symmetric = a == b and {(v, u) for u, v in own} == own
    named = {(min(e), max(e)) if symmetric else e for e in own}
    if len(named) < 4:
        return
    turned = {(v, u) for u, v in map(tuple, own)}
    assume(not any({tuple(e) for e, t in zip(ends, graph.edge_type) if t == r} == turned for r in range(1, back)))
    links = mr.link_dataset(data, relation="r0", split="fraction:0.4,0.3", seed=seed)
    assert links.graph.types.pair_relations == ((0, back),)
    sets = {name: [tuple(p) for p in links.labels[getattr(links.split, name), :2].tolist()] for name in SPLITS}
    assert sorted(p for pairs in sets.values() for p in pairs) == sorted(named)
    held = {*sets["val"], *sets["test"]}
    held |= {(v, u) for u, v in held} if symmetric else set()
    kept = [
        i
        for i, (e, r) in enumerate(zip(ends, graph.edge_type))
        if not ((r == 0 and tuple(e) in held) or (r == back and tuple(e[::-1]) in held))
    ]
    assert links.graph.edge_id.tolist() == graph.edge_id[kept].tolist()
    assert links.graph.edge_type.tolist() == graph.edge_type[kept].tolist()


def test_pairs_have_ids_within_their_types(tmp_path):
    (u, v), other = ENDS[BUYS][:, 3], ENDS[BUYS][:, 5]
    free = sorted({(a, b) for a in range(6) for b in range(9)} - set(zip(*ENDS[BUYS].tolist())))[:2]
    sets = {"val": [[u, v]], "test": other[None], "test_negatives": free}
    links = mr.link_dataset(shop(add_reverse=True), pairs=sets, relation=BUYS)
    assert links.graph.types.relations[links.graph.types.own_relations[1]] == ("item", "rev_buys", "user")
    assert pairs_of(links, "val") == [(u, v)] and pairs_of(links, "test") == [tuple(other)]
    assert (links.labels[links.labels[:, 2] == 3, :2] - [9, 0]).tolist() == [list(p) for p in free]
    assert (u, v) not in edges_of(links.graph, BUYS)
    assert (v, u) not in edges_of(links.graph, ("item", "rev_buys", "user"))
    assert edges_of(links.graph, SEES) == sorted(zip(*ENDS[SEES].tolist()))
    assert sorted(pairs_of(links, "train")) == edges_of(links.graph, BUYS)
    write_dataset(tmp_path / "store", links)
    for opened in (open_dataset_store(tmp_path / "store"), open_lazily(tmp_path / "store").read()):
        assert np.array_equal(opened.labels, links.labels) and opened.graph.types == links.graph.types
    data = links.to_pyg()
    assert data[BUYS].val_edge_label_index.T.tolist() == [[u, v]] and "train_mask" not in data["item"]
    for bad, sentence in (
        ({"val": [[6, 0]]}, r"the pair \(6, 0\) with an end that is no node; expected \[0, 6\) and \[0, 9\)"),
        ({"train": [[0, 1]], "val": [[0, 1]]}, r"the pair \(0, 1\) is in the train and the val set"),
    ):
        with pytest.raises(InputError, match=sentence):
            mr.link_dataset(shop(), pairs=bad, relation="buys")


def test_reverses_are_those_by_name_or_with_the_same_pairs():
    turned = {**ENDS, ("item", "bought_by", "user"): ENDS[BUYS][::-1], ("item", "seen_by", "user"): ENDS[SEES][::-1]}
    links = mr.link_dataset(shop(turned), relation="buys")
    assert links.graph.types.pair_relations == ((0, 2),)
    assert any("item,bought_by,user are treated as the reverses of buys, and held out" in note for note in links.notes)
    longer = np.hstack([ENDS[BUYS][::-1], ENDS[SEES][::-1]])
    links = mr.link_dataset(shop({**ENDS, ("item", "met", "user"): longer}), relation="buys")
    assert links.graph.types.pair_relations == ((0,),)
    assert any("item,met,user join 100% of the pairs of buys too, and stay" in note for note in links.notes)
    likes, knows = ("user", "likes", "user"), ("user", "knows", "user")
    links = mr.link_dataset(
        shop({likes: ([0, 1, 2], [1, 2, 3]), knows: ([1, 1, 4], [0, 2, 5])}), relation="likes", split="fraction:0.4,0.3"
    )
    assert links.graph.types.pair_relations == ((0,),)
    assert any("user,knows,user join 67% of the pairs of likes too" in note for note in links.notes)
    assert mr.link_dataset(shop(turned), relation="bought_by").graph.types.pair_relations == ((2, 0),)
    assert mr.link_dataset(shop(), relation="buys").graph.types.pair_relations == ((0,),)


def test_names_and_tables_of_pairs(tmp_path):
    lines = [f"u{u},{v}" for u, v in ENDS[BUYS].T.tolist()]
    for name, head, rows in (
        ("edges-user-buys-item", "src,dst", lines),
        ("nodes-user", "id,x0", [f"u{u},{u}" for u in range(6)]),
        ("nodes-item", "id", [str(v) for v in range(9)]),
    ):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *rows, ""]))
    u, v = ENDS[BUYS][:, 4].tolist()
    pairs = tmp_path.parent / f"{tmp_path.name}.csv"
    pairs.write_text(f"src,dst,split\nu{u},{v},test\n")
    options = ReadOptions(task="link", relation="buys", pairs=str(pairs), direction="undirected")
    links = mr.open_dataset(tmp_path, options=options)
    (test,) = links.labels[links.split.test, :2].tolist()
    starts = [links.graph.types.offsets[links.graph.types.node_type(t)] for t in ("user", "item")]
    assert test == [starts[0] + u, starts[1] + v] and len(links.graph.types.own_relations) == 2
    pairs.write_text(f"src,dst,split\nu{u},9,test\n")
    with pytest.raises(InputError, match=r"'9'.* no node's"):
        mr.open_dataset(tmp_path, options=options)


def test_sets_as_pyg_splits_them():
    transforms = pytest.importorskip("torch_geometric.transforms")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    data = shop(add_reverse=True).to_pyg()
    back = ("item", "rev_buys", "user")
    split = transforms.RandomLinkSplit(0.1, 0.2, edge_types=[BUYS], rev_edge_types=[back], neg_sampling_ratio=0.2)
    parts = dict(zip(SPLITS, split(data)))
    parts["val"][BUYS].edge_label.requires_grad_()  # as one on a GPU, it is no array until it is detached and copied
    plain = mr.from_pyg(parts["train"], options=ReadOptions(task="link"))
    links = mr.link_dataset(plain, pairs=parts, relation=BUYS)
    assert links.graph.num_edges == plain.graph.num_edges
    for kind, name in enumerate(SPLITS, 1):
        store = parts[name][BUYS]
        own = store.edge_label_index[:, store.edge_label > 0]
        assert links.to_pyg()[BUYS][f"{name}_edge_label_index"].tolist() == own.tolist()
        assert np.count_nonzero(links.labels[:, 2] == kind) == int((store.edge_label == 0).sum())
    with pytest.raises(InputError, match="for val at user,buys,item has no edge_label_index"):
        mr.link_dataset(plain, pairs={"val": data}, relation=BUYS)


def test_other_mistakes():
    links = mr.link_dataset(shop(), relation="buys")
    plain, typed = mr.open_dataset("sbm:nodes=50"), ReadOptions(relation="buys")
    for call, sentence in (
        (lambda: mr.link_dataset(shop()), "set relation, to user,buys,item or user,sees,item"),
        (lambda: mr.link_dataset(shop(), relation="bys"), "there is no relation 'bys'.*did you mean 'buys'"),
        (
            lambda: mr.link_dataset(shop(), relation=3),
            "relation is 3: there is no relation '3'; expected one of buys, sees",
        ),
        (lambda: mr.link_dataset(plain, relation="r"), "has one type of edges; leave it out"),
        (lambda: mr.link_dataset(links, relation="buys"), "split already; leave relation out"),
        (lambda: mr.open_dataset(shop(), options=typed), "relation is 'buys', but the task is not"),
        (lambda: shop(train=[0]), "labels, target and train, val, test, split go together"),
        (lambda: shop(split="random:1,1"), "labels, target and train, val, test, split go together"),
        (lambda: mr.run(shop(), model="rgcn", verbose=False), "the train split is empty"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
