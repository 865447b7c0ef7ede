"""Folders of Neo4j's and Neptune's CSV."""

import numpy as np
import pytest

import millrace as mr
from millrace.tests.contracts.edges_by_name import edges_of, names_of, rows_of

NEO4J = {
    "persons.csv": "personId:ID(Person),name,age:int,langs:string[],:LABEL\n"
    "7,ann,31,de;en,Person;Boss\n9,bob,25,,Person\n",
    "movies.csv": "movieId:ID(Movie)|title|released:date|:LABEL\n7|Alien|1979-05-25|Movie\n",
    "acted.csv": ":START_ID(Person),:END_ID(Movie),role,:TYPE\n7,7,Ripley,ACTED_IN\n9,7,,LIKED\n",
    "knows-header.csv": ":START_ID(Person),:END_ID(Person),:TYPE,since:int,x:IGNORE\n",
    "knows-1.csv": "7,9,KNOWS,2001,a\n",
    "knows-2.csv": "9,7,KNOWS,2002,b\n",
    "notes.csv": "a,b\n1,2\n",
}
NEPTUNE = {
    "vertices.csv": "~id,~label,age:Int,name:String\na,user,1,x\nb,user,2,NA\nc,item,,z\n",
    "edges.csv": "~id,~from,~to,~label,w:Double\ne1,a,b,knows,0.5\ne2,b,c,buys,1.5\n",
}


def _written(folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_neo4j(tmp_path):
    options = mr.ReadOptions(target="Person", label_columns="name", feature_columns="age")
    dataset = mr.open_dataset(_written(tmp_path, NEO4J), options=options)
    types = dataset.graph.types
    assert types.node_types == ("Person", "Movie")
    assert sorted(types.relations) == [
        ("Person", "ACTED_IN", "Movie"), ("Person", "KNOWS", "Person"), ("Person", "LIKED", "Movie"),
    ]  # fmt: skip
    assert dataset.graph.num_edges == 4 and dataset.class_names == ("ann", "bob")
    assert [row[0] for row in np.asarray(dataset.features.gather(np.arange(2))).tolist()] == [31, 25]
    assert any("notes.csv was left out: its header has no :ID or ~id" in note for note in dataset.notes)


def test_neptune(tmp_path):
    options = mr.ReadOptions(target="user", label_columns="name")
    dataset = mr.open_dataset(_written(tmp_path, NEPTUNE), options=options)
    assert sorted(dataset.graph.types.relations) == [("user", "buys", "item"), ("user", "knows", "user")]
    assert dataset.class_names == ("NA", "x")  # text, no missing value


def test_types_are_no_classes(tmp_path):
    with pytest.raises(mr.InputError, match="no nodes-TYPE has the column label; set label_columns=COLUMN and target="):
        mr.open_dataset(_written(tmp_path, NEPTUNE))


@pytest.mark.parametrize("numbers", [True, False])
def test_one_label_and_type_are_a_plain_graph(tmp_path, numbers):
    a, b = ("10", "20") if numbers else ("ann", "bob")
    files = {
        "n.csv": f":ID,age:int,kind,:LABEL\n{a},31,red,Person\n{b},25,blue,Person\n",
        "e.csv": f":START_ID,:END_ID,:TYPE\n{a},{b},KNOWS\n",
    }
    options = mr.ReadOptions(feature_columns="age", label_columns="kind", direction="directed")
    dataset = mr.open_dataset(_written(tmp_path, files), options=options)
    assert edges_of(dataset) == [(a, b)] and rows_of(dataset) == {a: [31], b: [25]}


def test_labels_can_be_predicted(tmp_path):
    files = {name: text.replace("knows", "to").replace("buys", "to") for name, text in NEPTUNE.items()}
    options = mr.ReadOptions(label_columns="~label", direction="directed")
    dataset = mr.open_dataset(_written(tmp_path, files), options=options)
    assert names_of(dataset) == ["a", "b", "c"] and dataset.class_names == ("item", "user")
    assert edges_of(dataset) == [("a", "b"), ("b", "c")]


def test_ends_that_are_no_nodes(tmp_path):
    files = {**NEPTUNE, "more.csv": "~from,~to,~label\na,zoe,knows\n"}
    with pytest.raises(mr.InputError, match=r"1 edge begin or end at an id of no node.*read\.dangling_edges=drop"):
        mr.open_dataset(_written(tmp_path, files), options=mr.ReadOptions(target="user", label_columns="name"))
    options = mr.ReadOptions(target="user", label_columns="name", dangling_edges="drop")
    dataset = mr.open_dataset(tmp_path, options=options)
    assert dataset.graph.num_edges == 2 and any("1 edge at unknown nodes was dropped" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("vertices.csv", "~id,~label,age:Int\na,user,old\n", "values are of the types in its header"),
        ("vertices.csv", "~id,~label\n,user\n", "1 row without ~id; expected an id in every row"),
        ("edges.csv", "~from,~to\na\n", "values are of the types in its header"),
    ],
)
def test_damaged(tmp_path, name, text, words):
    with pytest.raises(mr.InputError, match=words):
        mr.open_dataset(_written(tmp_path, {**NEPTUNE, name: text}), options=mr.ReadOptions(task="link"))


def test_types_without_nodes(tmp_path):
    files = {"edges.csv": NEPTUNE["edges.csv"]}
    with pytest.raises(mr.InputError, match="set relation, to node,buys,node or node,knows,node"):
        mr.open_dataset(_written(tmp_path, files), options=mr.ReadOptions(task="link"))


def test_nodes_alone(tmp_path):
    files = {"vertices.csv": NEPTUNE["vertices.csv"]}
    with pytest.raises(mr.InputError, match="has no file of edges; expected a header with :START_ID and :END_ID"):
        mr.open_dataset(_written(tmp_path, files), options=mr.ReadOptions(task="link"))


NAMES = "abcdefghij"


def test_nodes_are_the_ends_of_edges_where_no_file_has_them(tmp_path):
    (tmp_path / "g").mkdir()
    (tmp_path / "g/relationships.csv").write_text(
        ":START_ID,:END_ID,:TYPE\na,c,LIKES\n" + "".join(f"{a},{b},KNOWS\n" for a in NAMES for b in NAMES if a < b)
    )
    d = mr.open_dataset(tmp_path / "g", options=mr.ReadOptions(task="link", relation="node,KNOWS,node"))
    assert sorted(d.node_names) == sorted(NAMES)
    assert [r for r in d.graph.types.relations if not r[1].startswith("rev_")] == [
        ("node", "KNOWS", "node"), ("node", "LIKES", "node")
    ]  # fmt: skip
    assert any("10 nodes of type 'node' were taken from the ends of the edges" in note for note in d.notes)
