"""Plain lists of edges in every layout, beside the pairs that they were written from."""

import bz2
import gzip

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.pipeline.datasets.readers.foreign.edge_lists import edge_list
from millrace.tests.contracts.edges_by_name import edges_of, names_of

PAIRS = [(3, 7), (7, 9), (9, 3), (12, 3), (3, 12)]
LINK = mr.ReadOptions(direction="directed", task="link")


def _text(rows, separator="\t", begin=""):
    return begin + "".join(separator.join(map(str, row)) + "\n" for row in rows)


def _opened(path, options=LINK):
    return mr.open_dataset(path, options=options, split="fraction:1,0")


LAYOUTS = {
    "snap.txt": _text(
        PAIRS, begin="# Directed graph (each unordered pair of nodes is saved once)\n# FromNodeId\tToNodeId\n"
    ),
    "percent.edges": _text(PAIRS, " ", "% a comment\n%% another\n"),
    "slashes.txt": _text(PAIRS, " ", "// made by hand\n\n"),
    "commas.el": _text(PAIRS, ","),
    "semicolons.txt": _text(PAIRS, ";", "source;target\n"),
    "bars.edgelist": _text(PAIRS, "|"),
    "blanks.txt": "".join(f"  {a}    {b}  \n" for a, b in PAIRS),
    "mixed.txt": "3\t7\n7 9\n9  3\n12 3\n3\t 12\n",
    "windows.txt": "".join(f"{a} {b}\r\n" for a, b in PAIRS),
    "middle.txt": "3 7\n# between\n7 9\n9 3\n12 3\n3 12",
    "mark.txt": "\ufeff" + _text(PAIRS),
    "out.konect": _text(PAIRS, " ", "% asym unweighted\n% 5 4 4\n"),
    "header.csv": _text(PAIRS, ",", "from,to\n"),
    "bare.csv": _text(PAIRS, ","),
    "semicolons.csv": _text(PAIRS, ";", "source;target\n"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path, name):
    (tmp_path / name).write_bytes(LAYOUTS[name].encode())
    dataset = _opened(tmp_path / name)
    assert edges_of(dataset) == sorted((str(a), str(b)) for a, b in PAIRS)
    assert names_of(dataset) == ["3", "7", "9", "12"]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_compressed(tmp_path, suffix):
    path, data = tmp_path / f"g.txt{suffix}", _text(PAIRS).encode()
    if suffix == ".zst":
        with pa.output_stream(str(path), compression="zstd") as out:
            out.write(data)
    else:
        path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}[suffix](data))
    assert len(edges_of(_opened(path))) == len(PAIRS)


def test_names(tmp_path):
    pairs = [("ann", "bob"), ("bob", "Meier, Eve"), ("Meier, Eve", "ann"), ("007", "ann")]
    (tmp_path / "g.txt").write_text(_text(pairs))
    assert edges_of(_opened(tmp_path / "g.txt")) == sorted(pairs)


def test_a_header_above_numbers(tmp_path):
    """As STRING writes it: names of columns, and numbers below one of them alone."""
    pairs = [("9.a", "9.b"), ("9.b", "9.c")]
    (tmp_path / "g.txt").write_text(_text([("protein1", "protein2", "score"), *((*pair, 490) for pair in pairs)]))
    assert edges_of(_opened(tmp_path / "g.txt")) == pairs


@pytest.mark.parametrize("missing", ["NA", "nan", "?", "-inf"])
def test_an_edge_whose_number_is_missing_is_no_header(tmp_path, missing):
    pairs = [("9.a", "9.b"), ("9.b", "9.c")]
    (tmp_path / "g.txt").write_text(_text([("9.c", "9.a", missing), *((*pair, 490) for pair in pairs)]))
    options = mr.ReadOptions(task="link", direction="directed", edge_weights="ignore")
    assert edges_of(_opened(tmp_path / "g.txt", options)) == [*pairs, ("9.c", "9.a")]


@pytest.mark.parametrize(
    ("third", "role"),
    [
        ([1, 3, 2, 1, 5], "weight"),
        ([0.5, 1.5, 2.0, 0.25, 1.0], "weight"),
        ([1082040961, 1082155839, 1082414391, 1082439619, 1082439756], "time"),
        ([1082040961000, 1082155839000, 1082414391000, 1082439619000, 1082439756000], "time"),
        ([0, 86400, 86500, 172800, 300000], "time"),
        (["likes", "knows", "likes", "knows", "likes"], None),
    ],
)
def test_third_column(tmp_path, third, role):
    (tmp_path / "g.txt").write_text(_text([(*pair, value) for pair, value in zip(PAIRS, third)]))
    dataset = _opened(tmp_path / "g.txt")
    assert any(f"have no names: src, dst, {role or 'column_3'}" in note for note in dataset.notes)
    assert (dataset.graph.edge_weight is not None) == (role == "weight")
    if role == "time":
        timed = _opened(tmp_path / "g.txt", mr.ReadOptions(direction="directed", task="link", edge_time="time"))
        assert sorted(np.asarray(timed.graph.edge_time).tolist()) == third


@pytest.mark.parametrize(("words", "direction"), [("Undirected graph", "undirected"), ("Directed graph", "directed")])
def test_direction_of_a_comment(tmp_path, words, direction):
    (tmp_path / "g.txt").write_text(_text([(0, 1), (1, 2)], begin=f"# {words}: g.txt\n"))
    dataset = _opened(tmp_path / "g.txt", mr.ReadOptions(task="link"))
    assert dataset.graph.num_edges == (4 if direction == "undirected" else 2)


def test_konect(tmp_path):
    rows = [(1, 2, 5, 1082040961), (2, 1, 2, 1082040962), (1, 3, 1, 1082040963)]
    (tmp_path / "out.g").write_text(_text(rows, " ", "% asym weighted\n"))
    options = mr.ReadOptions(task="link", edge_time="time")
    dataset = _opened(tmp_path / "out.g", options)
    assert sorted(np.asarray(dataset.graph.edge_weight).tolist()) == [1, 2, 5]
    assert sorted(np.asarray(dataset.graph.edge_time).tolist()) == [row[3] for row in rows]


def test_bipartite_konect_has_two_types(tmp_path):
    (tmp_path / "out.g").write_text(_text([(1, 1), (2, 1), (1, 2), (3, 2)], " ", "% bip unweighted\n% 4 3 2\n"))
    dataset = _opened(tmp_path / "out.g", mr.ReadOptions(task="link", relation="to"))
    types = dataset.graph.types
    assert types.node_types == ("left", "right") and dataset.num_nodes == 5
    assert types.relations == (("left", "to", "right"),) and dataset.graph.num_edges == 4


@pytest.mark.parametrize("data", [True, False, ["weight"]])
def test_networkx_writes(tmp_path, data):
    graph = nx.DiGraph([(a, b, {"weight": a / 2}) for a, b in PAIRS])
    nx.write_edgelist(graph, tmp_path / "g.edgelist", data=data)
    dataset = _opened(tmp_path / "g.edgelist")
    assert edges_of(dataset) == sorted((str(a), str(b)) for a, b in PAIRS)
    weight = dataset.graph.edge_weight
    assert (weight is None) == (data is False)
    assert weight is None or sorted(np.asarray(weight).tolist()) == sorted(a / 2 for a, _ in PAIRS)


def test_nodes_beside(tmp_path):
    (tmp_path / "g.txt").write_text(_text(PAIRS))
    (tmp_path / "nodes.csv").write_text(
        "id,label,age\n" + "".join(f"{v},{'ab'[v % 2]},{v}\n" for v in (12, 3, 7, 9, 99))
    )
    dataset = mr.open_dataset(tmp_path / "g.txt", options=mr.ReadOptions(direction="directed", missing_ids="compact"))
    assert names_of(dataset) == ["3", "7", "9", "12", "99"] and dataset.num_classes == 2


REFUSED = {
    "empty": ("", "has no edges; expected a line for each"),
    "comments": ("# nothing\n", "has no edges"),
    "one column": ("1\n2\n", "but not the line '1'"),
    "neighbours": ("0: 1 2\n1: 2 0\n2: 0 1\n", "but not the line '0: 1 2'"),
    "ragged": ("1 2\n3 4 5\n", "but not the line '3 4 5'"),
    "prose": ("It was a dark night.\nNobody was out.\n", "is read as a list of edges, but not the line"),
    "long": ("1 2\n" * 20_000 + "3\n", "expected the same 2 columns in every line"),
    "bytes": ("1 2\n\x00\xff\n", "is not text in UTF-8"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(tmp_path, kind):
    text, words = REFUSED[kind]
    (tmp_path / "g.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(mr.InputError, match=words):
        _opened(tmp_path / "g.txt")


def test_labels_are_missing(tmp_path):
    (tmp_path / "g.txt").write_text(_text(PAIRS))
    with pytest.raises(mr.InputError, match=r"labels of its nodes are missing.*task=link"):
        mr.open_dataset(tmp_path / "g.txt", options=mr.ReadOptions(direction="directed"))


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 50)), min_size=1, max_size=30),
    separator=st.sampled_from(["\t", " ", ",", ";", "|", "   "]),
    comment=st.sampled_from(["", "# x\n", "% y z\n"]),
)
def test_any_numbers(tmp_path_factory, pairs, separator, comment):
    path = tmp_path_factory.mktemp("g") / "g.txt"
    path.write_text(_text(pairs, separator, comment))
    (edges,) = edge_list(path).edges
    assert [tuple(row.values()) for row in edges.rows.to_pylist()] == pairs


@pytest.mark.parametrize("header", ["node_id node_id weight", "src dst dst"])
def test_a_header_that_calls_two_columns_alike_names_none(tmp_path, header):
    (tmp_path / "g.txt").write_text("\t".join(header.split()) + "\n7\t9\t2\n9\t11\t3\n")
    options = mr.ReadOptions(task="link", direction="directed")
    dataset = mr.open_dataset(tmp_path / "g.txt", options=options, split="fraction:1,0")
    assert dataset.num_nodes == 3 and dataset.graph.edge_weight.tolist() == [2, 3]
