"""Citation graphs of .content and .cites, and OpenKE's triples."""

import numpy as np
import pytest

import millrace as mr
from millrace.tests.contracts.edges_by_name import edges_of, names_of, rows_of

CONTENT = "31336\t0\t1\t0.5\tNeural\n100\t1\t0\t0\tTheory\nabc\t0\t0\t1\tNeural\n"
CITES = "100\t31336\nabc\t100\n"


def _citations(folder, content=CONTENT, cites=CITES):
    (folder / "cora.content").write_text(content)
    (folder / "cora.cites").write_text(cites)
    (folder / "README").write_text("about")
    return folder


def test_citations(tmp_path):
    dataset = mr.open_dataset(_citations(tmp_path), options=mr.ReadOptions(direction="directed"))
    assert edges_of(dataset) == [("100", "abc"), ("31336", "100")]  # who cites, whom
    assert rows_of(dataset) == {"31336": [0, 1, 0.5], "100": [1, 0, 0], "abc": [0, 0, 1]}
    assert [dataset.class_names[y] for y in dataset.labels] == ["Neural", "Theory", "Neural"]
    assert names_of(dataset) == ["31336", "100", "abc"]


def test_unknown_papers(tmp_path):
    _citations(tmp_path, cites=CITES + "zoe\tabc\n")
    with pytest.raises(mr.InputError, match=r"not the id of any node.*dangling_edges=drop"):
        mr.open_dataset(tmp_path, options=mr.ReadOptions(direction="directed"))
    dataset = mr.open_dataset(tmp_path, options=mr.ReadOptions(direction="directed", dangling_edges="drop"))
    assert dataset.graph.num_edges == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"content": "1\n"}, "cora.content has 1 columns; expected id, features, class"),
        ({"cites": "1\t2\t3\n"}, "cora.cites has 3 columns; expected 2"),
        ({"content": "1\tx\ta\n2\ty\tb\n"}, "numbers between id and class"),
        ({"content": ""}, "cora.content cannot be read"),
        ({"content": "1\t2\ta\n2\tb\n"}, "cora.content cannot be read"),
    ],
)
def test_damaged_citations(tmp_path, given, words):
    with pytest.raises(mr.InputError, match=words.replace(".", r"\.")):
        mr.open_dataset(_citations(tmp_path, **given), options=mr.ReadOptions(direction="directed"))


def test_two_citation_graphs(tmp_path):
    (_citations(tmp_path) / "citeseer.cites").write_text(CITES)
    with pytest.raises(mr.InputError, match=r"holds citeseer\.cites, cora\.cites; expected one graph"):
        mr.open_dataset(tmp_path)


OPENKE = {
    "entity2id.txt": "4\nann\t0\nbob lee\t1\ncat\t3\ndan\t2\n",
    "relation2id.txt": "2\nlikes\t0\nknows\t1\n",
    "train2id.txt": "5\n0 1 0\n1 2 1\n2 3 0\n3 0 0\n0 2 1\n",
    "valid2id.txt": "1\n1\t3\t1\n",
    "test2id.txt": "1\n2 0 1\n",
}


def _openke(folder, **given):
    for name, text in {**OPENKE, **{f"{name}2id.txt": text for name, text in given.items()}}.items():
        (folder / name).write_text(text)
    return folder


def test_openke(tmp_path):
    dataset = mr.open_dataset(_openke(tmp_path))
    plain = mr.from_triples(
        [("ann", "likes", "bob lee"), ("bob lee", "knows", "dan"), ("dan", "likes", "cat"), ("cat", "likes", "ann"),
         ("ann", "knows", "dan")],
        val=[("bob lee", "knows", "cat")],
        test=[("dan", "knows", "ann")],
    )  # fmt: skip
    assert names_of(dataset) == names_of(plain) and dataset.graph.types.relations == plain.graph.types.relations
    np.testing.assert_array_equal(dataset.graph.indices, plain.graph.indices)
    for part in ("train", "val", "test"):
        np.testing.assert_array_equal(getattr(dataset.split, part), getattr(plain.split, part))
    np.testing.assert_array_equal(dataset.pair_table, plain.pair_table)


def test_a_pair_of_openke_in_two_sets_is_left_in_the_first_where_that_is_asked(tmp_path):
    folder = _openke(tmp_path, test="2\n2 0 1\n1 3 1\n")
    with pytest.raises(mr.InputError, match="set overlapping_splits=first"):
        mr.open_dataset(folder)
    dataset = mr.open_dataset(folder, options=mr.ReadOptions(overlapping_splits="first"))
    assert (len(dataset.split.val), len(dataset.split.test)) == (1, 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train": "9\n0 1 0\n"}, "has 1 triples, and its first line says 9; copy it again"),
        ({"train": "1\n0 0 1 0\n"}, "train2id.txt cannot be read"),
        (
            {"train": "2\n0 1 2\n1 0 3\n"},
            "has the relation 3, and relation2id.txt names 2; expected a count, then head, tail",
        ),
        ({"train": "1\n0 7 1\n"}, "has the entity 7"),
        ({"entity": "4\nann\t0\n"}, "entity2id.txt cannot be read (the numbers are not 0 to 3)"),
        ({"relation": "no\n"}, "relation2id.txt cannot be read"),
    ],
)
def test_damaged_openke(tmp_path, given, words):
    with pytest.raises(mr.InputError) as seen:
        mr.open_dataset(_openke(tmp_path, **given))
    assert words in str(seen.value)
