"""Files of graphs that NetworkX writes, and node-link JSON of several programs, beside NetworkX."""

import builtins
import json
import re

import networkx as nx
import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import MissingExtraError
from millrace.tests.contracts.edges_by_name import edges_of, names_of, rows_of

OPTIONS = mr.ReadOptions(feature_columns="age,height", label_columns="kind")


def _graph(kind=nx.DiGraph, numbers=False):
    graph = kind()
    for i in range(9):
        name = 10 * i + 1 if numbers else f"p{i}"
        graph.add_node(name, age=20 + i, height=1.5 + i / 8, kind="red" if i % 2 else "blue")
    names = list(graph)
    graph.add_edges_from((names[i], names[(i * 2 + 1) % 9], {"weight": i + 1.5}) for i in range(9))
    return graph


def _expected(graph):
    pairs = {(str(u), str(v)) for u, v in graph.edges()}
    return sorted(pairs if graph.is_directed() else pairs | {(v, u) for u, v in pairs})


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("suffix", ["gml", "graphml", "gexf", "graphml.gz", "xml"])
def test_attributes(tmp_path, kind, numbers, suffix):
    graph, path = _graph(kind, numbers), tmp_path / f"g.{suffix}"
    write = {"xml": "graphml"}.get(suffix.removesuffix(".gz"), suffix.removesuffix(".gz"))
    getattr(nx, f"write_{write}")(graph, path)
    dataset = mr.open_dataset(path, options=OPTIONS)
    assert edges_of(dataset) == _expected(graph)
    assert rows_of(dataset) == {str(v): [graph.nodes[v]["age"], graph.nodes[v]["height"]] for v in graph}
    kinds = {name: dataset.class_names[y] for name, y in zip(names_of(dataset), dataset.labels)}
    assert kinds == {str(v): graph.nodes[v]["kind"] for v in graph}
    assert set(np.asarray(dataset.graph.edge_weight)) == {w for *_, w in graph.edges(data="weight")}


@pytest.mark.parametrize("space", ["http://www.gephi.org/gexf", "http://gexf.net/1.3", "http://www.gexf.net/1.1draft"])
def test_versions_of_gexf(tmp_path, space):
    nx.write_gexf(_graph(), tmp_path / "g.gexf")
    text = (tmp_path / "g.gexf").read_text().replace("http://www.gexf.net/1.2draft", space)
    (tmp_path / "g.gexf").write_text(text.replace("attvalue for=", "attvalue id="))
    dataset = mr.open_dataset(tmp_path / "g.gexf", options=OPTIONS)
    assert edges_of(dataset) == _expected(_graph()) and len(rows_of(dataset)) == 9


@pytest.mark.parametrize("suffix", ["net", "adjlist", "g6"])
def test_structure(tmp_path, suffix):
    graph = nx.convert_node_labels_to_integers(_graph(nx.Graph, numbers=True))
    edges = [(u, v) for u, v in graph.edges() if u != v]
    graph = nx.Graph()
    graph.add_nodes_from(range(9))
    graph.add_edges_from(edges)
    write = {"net": nx.write_pajek, "adjlist": nx.write_adjlist, "g6": nx.write_graph6}[suffix]
    write(graph, tmp_path / f"g.{suffix}")
    options = mr.ReadOptions(task="link", direction="undirected")
    dataset = mr.open_dataset(tmp_path / f"g.{suffix}", options=options, split="fraction:1,0")
    assert edges_of(dataset) == _expected(graph)


@pytest.mark.parametrize(
    "more", ["*Edges\n1 3\n", "  *edges\n1 3\n", "*Partition p\n1 2\n", "*Edgeslist\n1 2 3\n", "*Arcs :2\n1 3\n"]
)
def test_sections_of_pajek(tmp_path, more):
    """Lines of further sections are not taken for arcs."""
    text = '*Vertices 3\n1 "a"\n2 "b"\n3 "c"\n*arcs\n1 2\n2 3\n'
    (tmp_path / "g.net").write_text(text)
    dataset = mr.open_dataset(tmp_path / "g.net", options=mr.ReadOptions(task="link"), split="fraction:1,0")
    assert edges_of(dataset) == [("a", "b"), ("b", "c")]
    (tmp_path / "g.net").write_text(text + more)
    with pytest.raises(mr.InputError, match=r"it has \*arcs, \*\w+( :2)?; expected \*Arcs alone: Pajek's Transform"):
        mr.open_dataset(tmp_path / "g.net", options=mr.ReadOptions(task="link"))


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_sections_of_pajek_without_lines_are_none(tmp_path, ends):
    """Programs write the headings of all."""
    text = '*Vertices 3\n1 "a"\n2 "b"\n3 "c"\n*Arcs\n\n*Edges :1 "of a name"\n1 2\n2 3\n*Partition p\n'
    options = mr.ReadOptions(task="link", direction=None)
    for each in (text, text.rstrip()):
        (tmp_path / "g.net").write_text(each.replace("\n", ends), newline="")
        dataset = mr.open_dataset(tmp_path / "g.net", options=options, split="fraction:1,0")
        assert edges_of(dataset) == sorted([("a", "b"), ("b", "c"), ("b", "a"), ("c", "b")])
    (tmp_path / "g.net").write_text(text.replace("Vertices 3", "Vertices 3 1"))
    with pytest.raises(mr.InputError, match=r"are of two kinds; expected one: take the second number of"):
        mr.open_dataset(tmp_path / "g.net", options=options)


def test_times_of_gexf_have_a_format(tmp_path):
    nx.write_gexf(_graph(), tmp_path / "g.gexf")
    text = (tmp_path / "g.gexf").read_text()
    (tmp_path / "g.gexf").write_text(
        re.sub(' mode="[a-z]*"| timeformat="[a-z]*"', "", text).replace("<node ", '<node start="1" ')
    )
    assert edges_of(mr.open_dataset(tmp_path / "g.gexf", options=OPTIONS)) == _expected(_graph())


MULTILINE = nx.write_multiline_adjlist


@pytest.mark.parametrize(
    ("write", "suffix"),
    [(nx.write_adjlist, "adjlist"), (MULTILINE, "multiline_adjlist"), (MULTILINE, "adjlist")],
)
def test_adjacency_lists_tell_no_direction(tmp_path, write, suffix):
    graph = nx.gn_graph(30, seed=3).reverse()
    graph.add_node(30)
    path = tmp_path / f"g.{suffix}"
    write(graph, path)
    with pytest.raises(mr.InputError, match="their direction is not known"):
        mr.open_dataset(path, options=mr.ReadOptions(task="link"))
    options = mr.ReadOptions(task="link", direction="directed")
    dataset = mr.open_dataset(path, options=options, split="fraction:1,0")
    assert edges_of(dataset) == _expected(graph) and dataset.num_nodes == 31


@pytest.mark.parametrize("distinct", [True, False])
def test_labels_of_gml_are_names(tmp_path, distinct):
    texts = [f'node [ id {i} label "{"ann" if not distinct else "abc"[i]}" age {i} ]' for i in range(3)]
    (tmp_path / "g.gml").write_text(
        f"graph [ {' '.join(texts)} edge [ source 0 target 1 ] edge [ source 1 target 2 ] ]"
    )
    dataset = mr.open_dataset(tmp_path / "g.gml", options=mr.ReadOptions(task="link"), split="fraction:1,0")
    assert names_of(dataset) == (["a", "b", "c"] if distinct else ["0", "1", "2"])


@pytest.mark.parametrize("is_directed", [True, False])
def test_edges_of_gml_may_repeat_without_a_word_on_it(tmp_path, is_directed):
    nodes = " ".join(f'node [ id {i} label "{"abc"[i]}" ]' for i in range(3))
    edges = " ".join(f"edge [ source {a} target {b} ]" for a, b in ((0, 1), (1, 2), (0, 1)))
    (tmp_path / "g.gml").write_text(f'Creator "graph [ x"\ngraph\n[\n directed {int(is_directed)} {nodes} {edges} ]')
    options = mr.ReadOptions(task="link")
    dataset = mr.open_dataset(tmp_path / "g.gml", options=options, split="fraction:1,0")
    back = [] if is_directed else [("b", "a"), ("c", "b")]
    assert edges_of(dataset) == sorted([("a", "b"), ("b", "c"), *back])
    assert "1 duplicate edge was merged." in dataset.notes


def test_labels_of_gexf_are_no_classes(tmp_path):
    graph = nx.path_graph(12)
    nx.set_node_attributes(graph, {v: "xy"[v % 2] for v in graph}, "label")
    nx.write_gexf(graph, tmp_path / "g.gexf")
    with pytest.raises(mr.InputError, match=r"nodes has no column 'label'; it holds id: set read\.label_columns"):
        mr.open_dataset(tmp_path / "g.gexf")
    named = mr.open_dataset(tmp_path / "g.gexf", options=mr.ReadOptions(label_columns="label"))
    assert named.class_names == ("x", "y")


JSON = {
    "networkx": nx.node_link_data(_graph(), edges="links"),
    "edges": nx.node_link_data(_graph(), edges="edges"),
    "adjacency": nx.adjacency_data(_graph()),
    "places": {
        "directed": True,
        "nodes": [{"name": v, **of} for v, of in _graph().nodes(data=True)],
        "links": [{"source": int(u[1:]), "target": int(v[1:])} for u, v in _graph().edges()],
    },
    "cytoscape": {
        "directed": True,
        "elements": {
            "nodes": [{"data": {"id": v, **of}} for v, of in _graph().nodes(data=True)],
            "edges": [{"data": {"id": f"{u}{v}", "source": u, "target": v}} for u, v in _graph().edges()],
        },
    },
    "graphology": {
        "directed": True,
        "nodes": [{"key": v, "attributes": of} for v, of in _graph().nodes(data=True)],
        "edges": [{"source": u, "target": v} for u, v in _graph().edges()],
    },
    "json graph": {
        "graph": {
            "directed": True,
            "nodes": {v: {"label": v, "metadata": of} for v, of in _graph().nodes(data=True)},
            "edges": [{"source": u, "target": v} for u, v in _graph().edges()],
        }
    },
}


@pytest.mark.parametrize("form", JSON)
def test_json(tmp_path, form):
    (tmp_path / "g.json").write_text(json.dumps(JSON[form]))
    dataset = mr.open_dataset(tmp_path / "g.json", options=OPTIONS)
    graph = _graph()
    if form == "places":
        graph = nx.relabel_nodes(graph, {v: v[1:] for v in graph})
    assert edges_of(dataset) == _expected(graph)
    assert rows_of(dataset) == {v: [of["age"], of["height"]] for v, of in graph.nodes(data=True)}


BAD = {
    "no json": ("{", "is no JSON"),
    "list": ("[1]", "is no graph: expected an object with lists of nodes and links, as objects; it holds a list"),
    "other": ('{"a": 1}', "it holds a"),
    "no ids": ('{"nodes": [{}, {}], "links": [{"source": "a", "target": "b"}]}', "nodes have no id"),
    "twice": ('{"nodes": [{"id": 1}, {"id": 1}], "links": []}', "two nodes are called '?1"),
    "no end": ('{"nodes": [{"id": 1}], "links": [{"source": 1}]}', "a link has target None; expected the id of a node"),
    "unknown": ('{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}', "not the id of any node"),
    "texts": ('{"nodes": ["a"], "links": []}', "as objects"),
    "neighbours": ('{"nodes": [{"id": 1}], "adjacency": []}', "expected as many lists of neighbours as nodes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_refused_json(tmp_path, kind):
    text, words = BAD[kind]
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(mr.InputError, match=words):
        mr.open_dataset(tmp_path / "g.json", options=mr.ReadOptions(task="link", direction="directed"))


@pytest.mark.parametrize("suffix", ["gml", "graphml", "gexf", "net", "g6"])
def test_damaged(tmp_path, suffix):
    (tmp_path / f"g.{suffix}").write_text("<x")
    with pytest.raises(mr.InputError, match=r"cannot be read by networkx\.read_|has no edges"):
        mr.open_dataset(tmp_path / f"g.{suffix}", options=mr.ReadOptions(task="link"))


def test_networkx_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "g.gml").write_text("graph [ ]")
    found = builtins.__import__

    def without(name, *rest):
        if name == "networkx":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"which is not installed: pip install '\.\[networkx\]'"):
        mr.open_dataset(tmp_path / "g.gml")
