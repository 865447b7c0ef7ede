"""Links of several relations: their pairs, held-out edges, given sets, times, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import millrace as mr
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError
from millrace.storage.links.pairs import KIND_OF

KG = "kg:people=60,companies=12,cities=5"
NAMES = ["lives_in", "works_at"]


@pytest.fixture(scope="module")
def kg():
    return mr.open_dataset(KG)


def edges_of(data, name):
    """Edges of a relation, as pairs of ids of the whole graph."""
    graph = data.graph
    own = graph.edge_type == graph.types.relation(name)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    return {*zip(graph.indices[own].tolist(), dst[own].tolist())}


def pairs_of(data, name, split):
    rows = data.labels[getattr(data.split, split)]
    return {tuple(row) for row in rows[rows[:, 3] == data.graph.types.relation(name), :2].tolist()}


@pytest.mark.parametrize("relation", ["all", NAMES, "lives_in;works_at", tuple(NAMES)])
def test_edges_of_all_are_divided_together(kg, relation):
    links = mr.link_dataset(kg, relation=relation, split="fraction:0.6,0.2", seed=1).check()
    types = links.graph.types
    several = ["knows", "works_at", "located_in", "lives_in"] if relation == "all" else NAMES
    assert [types.relations[r][1] for r in types.predicted] == several and links.labels.shape[1] == 4
    sizes = links.split_sizes
    assert abs(sizes["val"] - 0.2 * sum(sizes.values())) <= 1 and (links.labels[:, 2] == 0).all()
    for name in several:
        train, val, test = (pairs_of(links, name, split) for split in ("train", "val", "test"))
        both = {p[::-1] for p in train | val | test} if name == "knows" else set()
        assert train | val | test | both == edges_of(kg, name) and not (train & val or train & test or val & test)
        held = val | test
        held |= {p[::-1] for p in held} if name == "knows" else set()
        assert edges_of(links, name) == edges_of(kg, name) - held
    # Reverses go with them, and other relations stay.
    for name, inverse in (("lives_in", "home_of"), ("works_at", "employs")):
        assert edges_of(links, inverse) == {p[::-1] for p in edges_of(links, name)}
    if relation != "all":
        assert edges_of(links, "knows") == edges_of(kg, "knows")
        assert edges_of(links, "seat_of") == edges_of(kg, "seat_of")


def test_a_store_keeps_them(kg, tmp_path):
    links = mr.link_dataset(kg, relation=NAMES)
    write_dataset(tmp_path / "store", links)
    again = mr.open_dataset(tmp_path / "store")
    assert again.graph.types == links.graph.types and np.array_equal(again.labels, links.labels)
    assert again.task == "link" and mr.link_dataset(again) is again


def test_given_sets_are_by_relation(kg, tmp_path):
    given = {
        "val": {"lives_in": [[0, 1], [2, 3]], ("person", "works_at", "company"): [[5, 4]]},
        "test": {"works_at": [[7, 2]]},
        "test_negatives": {"works_at": [[7, 3], [8, 1]]},
    }
    links = mr.link_dataset(kg, relation=NAMES, pairs=given)
    company, city = links.graph.types.offsets[1:3]
    lives, works = (links.graph.types.relation(name) for name in NAMES)
    wanted = [[0, city + 1, 0, lives], [2, city + 3, 0, lives], [5, company + 4, 0, works]]
    assert links.labels[links.split.val].tolist() == wanted
    assert links.labels[links.split.test].tolist() == [[7, company + 2, 0, works]]
    kind = KIND_OF["test"]
    assert links.labels[-2:].tolist() == [[7, company + 3, kind, works], [8, company + 1, kind, works]]
    # The other edges train.
    assert pairs_of(links, "lives_in", "train") == edges_of(kg, "lives_in") - {(0, city + 1), (2, city + 3)}
    rows = [
        ("lives_in", 0, 1, "val", 1), ("works_at", 5, 4, "val", 1), ("works_at", 7, 2, "test", 1),
        ("lives_in", 2, 3, "val", 1), ("works_at", 7, 3, "test", 0), ("person,works_at,company", 8, 1, "test", 0),
    ]  # fmt: skip
    lines = ["relation,src,dst,split,label", *(",".join(map(str, ('"' + r + '"', *rest))) for r, *rest in rows)]
    (tmp_path / "pairs.csv").write_text("\n".join(lines) + "\n")
    read = mr.link_dataset(kg, relation=NAMES, pairs=tmp_path / "pairs.csv")
    assert np.array_equal(read.labels, links.labels)


def shop(**options):
    rng = np.random.default_rng(0)
    edges = {("user", name, "item"): np.divmod(rng.permutation(300)[:80], 15) for name in ("buys", "views")}
    if "times" in options:  # some pairs several times
        edges = {r: tuple(np.concatenate([e, e[:20]]) for e in ends) for r, ends in edges.items()}
    if "times" in options:
        options = {"edge_times": {r: rng.integers(0, 50, len(e[0])) for r, e in edges.items()}}
    return edges, options, mr.from_relations(edges, features={"user": np.eye(20), "item": np.eye(15)}, **options)


def test_sets_of_pyg_have_them_at_their_edge_types():
    pytest.importorskip("torch_geometric")
    from torch_geometric.transforms import RandomLinkSplit

    edges, _, data = shop()
    split = RandomLinkSplit(0.2, 0.1, edge_types=[*edges], add_negative_train_samples=False)
    sets = dict(zip(("train", "val", "test"), split(data.to_pyg())))
    plain = mr.from_pyg(sets["train"], options=mr.ReadOptions(task="link"))
    back = mr.link_dataset(plain, relation="all", pairs=sets).to_pyg()
    for r in edges:
        for name, own in sets.items():
            wanted = own[r].edge_label_index[:, own[r].edge_label != 0].T.tolist()
            assert {*map(tuple, back[r][f"{name}_edge_label_index"].T.tolist())} == {*map(tuple, wanted)}


def test_times_divide_the_pairs_of_all():
    edges, options, data = shop(times=True)
    links = mr.link_dataset(data, relation="all", split="time:0.7,0.1")
    assert links.graph.num_edges == data.graph.num_edges and links.pair_time is not None
    early, late = (links.pair_time[getattr(links.split, name)] for name in ("train", "test"))
    assert early.max() <= late.min()
    types = links.graph.types
    for relation, (u, v) in edges.items():
        first: dict[tuple[int, int], int] = {}
        for a, b, t in zip(u.tolist(), v.tolist(), options["edge_times"][relation].tolist()):
            first[a, b] = min(t, first.get((a, b), t))
        number = types.relation(relation[1])
        rows = links.labels[:, 3] == number
        begin = np.array(types.offsets)[types.ends[number]]
        found = dict(zip(map(tuple, (links.labels[rows, :2] - begin).tolist()), links.pair_time[rows].tolist()))
        assert found == first


def test_reverses_are_found_whatever_their_number(kg):
    links = mr.link_dataset(kg, relation="all")
    assert sorted(links.graph.types.own_relations) == [*range(7)]
    notes = [note for note in links.notes if "relations" in note or "reverses" in note]
    assert notes[0] == "Pairs are of 4 relations." and "city,home_of,person" in notes[1]


@pytest.mark.parametrize(
    ("relation", "pairs", "said"),
    [
        (["lives_in", "home_of"], None, "city,home_of,person has the edges of person,lives_in,city reversed"),
        ("lives_in; lives_in", None, "person,lives_in,city is named twice; leave one out"),
        (["lives_in", "nowhere"], None, "there is no relation 'nowhere'"),
        ([], None, "which names none; expected person,knows,person or"),
        ([None, "lives_in"], None, "expected its name, or"),
        (NAMES, {"val": [[0, 1]]}, "val is a list, but pairs are of several relations; expected a mapping"),
        (NAMES, {"val": {"knows": [[0, 1]]}}, "is 'knows', whose pairs are not predicted; expected one of lives_in"),
        (NAMES, {"val": {3: [[0, 1]]}}, "there is no relation '3'"),
        (NAMES, {"val": {None: [[0, 1]]}}, "relation is None; expected its name, or"),
        (
            NAMES,
            {"val": {"lives_in": [[0, 1]], ("person", "lives_in", "city"): [[0, 2]]}},
            "val has lives_in twice; expected each relation once",
        ),
        (NAMES, {"val": {"lives_in": [[0, 9]]}}, r"the pair \(0, 9\) with an end that is no node"),
        (
            NAMES,
            {n: {"lives_in": [[0, 1]]} for n in ("val", "test")},
            r"\(0, 1\) of person,lives_in,city is in",
        ),
        (NAMES, {n: {"lives_in": [[0, 1]]} for n in ("val", "val_negatives")}, r"\(0, 1\) of person,lives_in,city is"),
        (NAMES, {"train": {"lives_in": np.empty((0, 2), int)}}, "the train set has no pairs"),
        (NAMES, {"train": {"lives_in": np.empty((2, 0), int)}}, "the train set has no pairs"),
    ],
)
def test_what_does_not_go_together_is_refused(kg, relation, pairs, said):
    with pytest.raises(InputError, match=said):
        mr.link_dataset(kg, relation=relation, pairs=pairs)


def test_files_name_the_relation_of_each_pair(kg, tmp_path):
    (tmp_path / "no.csv").write_text("src,dst,split\n0,1,val\n")
    with pytest.raises(InputError, match="has no column 'relation', and pairs are of several relations"):
        mr.link_dataset(kg, relation=NAMES, pairs=tmp_path / "no.csv")
    (tmp_path / "other.csv").write_text("src,dst,split,relation\n0,1,val,knows\n")
    with pytest.raises(InputError, match=r"other.csv: relation is 'knows', whose pairs are not predicted"):
        mr.link_dataset(kg, relation=NAMES, pairs=tmp_path / "other.csv")
    (tmp_path / "null.csv").write_text("src,dst,split,relation\n0,1,val,lives_in\n0,1,val,\n")
    with pytest.raises(InputError, match=r"null.csv: column relation has rows without one"):
        mr.link_dataset(kg, relation=NAMES, pairs=tmp_path / "null.csv")
    np.savez(tmp_path / "sets.npz", val=[[0, 1]])
    with pytest.raises(InputError, match="names no relations, but pairs are of several; expected a table"):
        mr.link_dataset(kg, relation=NAMES, pairs=tmp_path / "sets.npz")


def test_labels_of_edges_are_of_one(kg):
    with pytest.raises(InputError, match=r"\['lives_in', 'works_at'\], 2 relations; expected one"):
        mr.edge_dataset(kg, [[0, 1]], [1], relation=NAMES)


def test_a_table_of_other_relations_is_refused(kg):
    links = mr.link_dataset(kg, relation=NAMES)
    labels = links.labels.copy()
    labels[0, 3] = links.graph.types.relation("knows")
    with pytest.raises(InputError, match=r"pairs have the relation 0; expected one of \[5, 1\]"):
        replace(links, labels=labels).check()
    with pytest.raises(InputError, match=r"expected int64 \[N, 4\]: source, destination, kind, relation"):
        replace(links, labels=labels[:, :3].copy()).check()
    labels = links.labels.copy()
    labels[0, 1] = 0
    with pytest.raises(InputError, match="destinations of pairs lie in"):
        replace(links, labels=labels).check()


def test_a_name_with_a_semicolon_is_one():
    edges = {("a", "r;s", "b"): ([0, 1, 2], [0, 1, 2]), ("a", "r", "b"): ([0, 1], [1, 0])}
    data = mr.from_relations(edges, features={"a": np.eye(3), "b": np.eye(3)})
    for name in ("r;s", "a,r;s,b"):
        types = mr.link_dataset(data, relation=name, split="fraction:1,0").graph.types
        assert types.predicted == (types.relations.index(("a", "r;s", "b")),)
