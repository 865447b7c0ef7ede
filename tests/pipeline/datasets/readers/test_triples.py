"""Folders of triples: links of all relations, learnt and predicted by the command line; and bad files."""

import json

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

TRAIN = [
    ("ann", "knows", "bob"), ("bob", "knows", "cem"), ("cem", "/works./at", "acme"), ("ann", "/works./at", "acme"),
    ("acme", "lies in", "ulm"), ("ann", "knows", "bob"),
]  # fmt: skip
VAL = [("ann", "knows", "cem"), ("bob", "/works./at", "acme")]
TEST = [("zoe", "lies in", "ulm")]


def written(folder, train=TRAIN, val=VAL, test=TEST, names=("train.txt", "valid.txt", "test.txt")):
    folder.mkdir(exist_ok=True)
    for name, rows in zip(names, (train, val, test)):
        (folder / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


def test_a_folder_is_the_links_of_all_relations(tmp_path):
    data = mr.open_dataset(written(tmp_path / "people"))
    names, types = data.node_names, data.graph.types
    assert (
        data.task == "link"
        and data.name == "people"
        and names.tolist() == sorted(["ann", "bob", "cem", "acme", "ulm", "zoe"])
    )
    own = ["/works./at", "knows", "lies in"]
    assert [r[1] for r in types.relations] == own + [f"rev_{name}" for name in own]
    assert types.pair_relations == ((0, 3), (1, 4), (2, 5))
    for split, rows in (("train", TRAIN[:5]), ("val", VAL), ("test", TEST)):
        table = data.labels[getattr(data.split, split)]
        assert {(names[h], own[r], names[t]) for h, t, _, r in table.tolist()} == {*rows}
    graph, dst = data.graph, np.repeat(np.arange(6), data.graph.in_degree)
    found = [(names[u], types.relations[r][1], names[v]) for u, r, v in zip(graph.indices, graph.edge_type, dst)]
    assert sorted(found) == sorted([*TRAIN, *((t, f"rev_{r}", h) for h, r, t in TRAIN)])
    assert any("1 repeated pair of train was dropped" in note for note in data.notes)


def test_the_command_line_learns_them(tmp_path):
    rng = np.random.default_rng(0)
    every = np.unique(
        np.stack([rng.integers(0, 30, 300), rng.integers(0, 3, 300), rng.integers(0, 30, 300)], 1), axis=0
    )
    rng.shuffle(every)
    texts = [(f"e{h}", f"r{r}", f"e{t}") for h, r, t in every.tolist()]
    folder = written(tmp_path / "kg", texts[:200], texts[200:220], texts[220:240])
    job = ["--model", "rgcn", "--layers", 2, "--hidden", 8, "--fanout", "3,3", "--epochs", 2, "--set", "learned=8"]
    code, _, error = command("run", "--dataset", folder, *job, "--set", "decoder=distmult", "--out", tmp_path / "run")
    assert code == 0, error
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(record["per_relation"]) <= {f"entity,r{r},entity" for r in range(3)}
    (tmp_path / "ask.csv").write_text("src,relation,dst\ne1,r0,e2\ne2,r2,e5\n")
    ask = ["--pairs", tmp_path / "ask.csv", "--out", tmp_path / "scores.csv"]
    assert command("predict", tmp_path / "run", *ask)[0] == 0
    assert (tmp_path / "scores.csv").read_text().splitlines()[1].startswith('"e1","e2","r0",')
    best = ["--top", 2, "--relation", "r1", "--nodes", "e3", "--out", tmp_path / "best.csv"]
    assert command("predict", tmp_path / "run", *best)[0] == 0
    assert (tmp_path / "best.csv").read_text().splitlines()[1].startswith('"e3","e')
    code, out, _ = command("inspect", folder)
    assert code == 0 and "entity r0 entity, reversed by entity rev_r0 entity" in " ".join(out.split())


def test_bad_files_are_named(tmp_path):
    written(tmp_path / "two", [("a", "b")], [], [])
    with pytest.raises(InputError, match=r"train.txt cannot be read .*; expected three columns between"):
        mr.open_dataset(tmp_path / "two")
    written(tmp_path / "empty", [], [], [])
    with pytest.raises(InputError, match="the train set of empty has no triples"):
        mr.open_dataset(tmp_path / "empty")
    folder = written(tmp_path / "fine")
    for options, split, said in (
        (mr.ReadOptions(relation="knows"), None, "the task is not link; set task=link, or leave relation out"),
        (mr.ReadOptions(task="link"), "fraction:0.5,0.2", "are split already"),
    ):
        with pytest.raises(InputError, match=said):
            mr.open_dataset(folder, options=options, split=split)


def people(rows=40):
    """Triples of two relations among as many people."""
    return [(f"x{i}", ("likes", "fears")[i % 3 == 0], f"x{(5 * i + 1) % rows}") for i in range(rows)]


def test_blanks_and_a_header_are_no_names(tmp_path):
    rows = people()
    plain = mr.open_dataset(written(tmp_path / "plain", rows[:30], rows[30:35], rows[35:]))
    blank = [(f"{h} " if i % 4 == 0 else h, r, f" {t}" if i % 5 == 0 else t) for i, (h, r, t) in enumerate(rows)]
    turned = [(t, h, r) for h, r, t in blank]
    head = [("Object", "Subject", "Predicate")]
    sets = head + turned[:30], head + turned[30:35], turned[35:]
    data = mr.open_dataset(written(tmp_path / "turned", *sets))
    assert data.node_names.tolist() == plain.node_names.tolist() and (data.labels == plain.labels).all()
    notes = " ".join(data.notes)
    assert "Blanks around 18 fields of the triples were stripped." in notes
    assert "The first row of train.txt is its header: Object, Subject, Predicate." in notes


def test_columns_in_another_order_are_refused_or_read_by_the_key(tmp_path):
    rows = people()
    folder = written(tmp_path / "turned", *([(h, t, r) for h, r, t in part] for part in (rows[:30], rows[30:], [])))
    with pytest.raises(InputError, match="set triples=head,tail,relation, or triples=head,relation,tail if"):
        mr.open_dataset(folder)
    data = mr.open_dataset(folder, options=mr.ReadOptions(triples="head,tail,relation"))
    assert [r[1] for r in data.graph.types.relations[:2]] == ["fears", "likes"] and data.num_nodes == 40
    numbers = [(str(i), str((3 * i + 1) % 50), str(i % 4)) for i in range(50)]
    with pytest.raises(InputError, match="has 50 names in its second column and 4 in its third"):
        mr.open_dataset(written(tmp_path / "numbers", numbers, [], []))
    with pytest.raises(InputError, match="triples is 'head,tail'; expected an order such as"):
        mr.ReadOptions(triples="head,tail")
    for source in ("sbm:nodes=100,classes=2", mr.from_triples(rows)):
        with pytest.raises(InputError, match=r"holds none; leave triples out|takes no reading options"):
            mr.open_dataset(source, options=mr.ReadOptions(triples="head,tail,relation"))


def test_a_first_row_that_has_no_name_of_others_is_asked_about(tmp_path):
    rows = [("Gen", "Wirkung", "Protein"), *people()]
    folder = written(tmp_path / "odd", rows, [], [])
    with pytest.raises(InputError, match="begins with 'Gen', 'Wirkung', 'Protein', of which no other row"):
        mr.open_dataset(folder)
    data = mr.open_dataset(folder, options=mr.ReadOptions(triples="head,relation,tail"))
    assert data.num_nodes == 42


def test_overlaps_are_settled_by_the_key(tmp_path):
    rows = people()
    folder = written(tmp_path / "leak", rows[:30], rows[28:33], rows[32:])
    with pytest.raises(InputError, match=r"'x28', 'x21'\) of entity,likes,entity .* set overlapping_splits=first"):
        mr.open_dataset(folder)
    code, out, error = command("inspect", folder, "--set", "read.overlapping_splits=first")
    assert code == 0 and "2 pairs of val were in an earlier set too and stayed there" in " ".join(out.split()), error
