"""Nodes that only edges name, and pairs, in pieces: the store, and the sentences, of the way through memory."""

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.pipeline.ingest import convert
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import Killed, contents, cut_small, killed, parquet, same

V, E = 60, 300


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


def write(folder, ids="gaps", dangling=(), **of_edges):
    rng = np.random.default_rng(len(ids) + len(of_edges))
    known = {"rows": np.arange(V), "gaps": rng.choice(900, V, replace=False)}.get(ids)
    known = np.array([f"n{i:03d}" for i in rng.permutation(V)], object) if known is None else known
    ends = {end: pa.array(rng.choice([*known, *dangling], E)) for end in ("src", "dst")}
    parquet(folder, "edges", pa.table({**ends, **of_edges}))
    x = rng.normal(size=(V, 3)).tolist()
    nodes = {"label": rng.integers(0, 3, V), "features": x, "city": np.array(["ulm", "rome"])[rng.integers(0, 2, V)]}
    parquet(folder, "nodes", pa.table(nodes if ids == "rows" else {"id": known, **nodes}))
    return folder


@pytest.mark.parametrize(
    ("ids", "dangling"),
    [
        ("gaps", (-7, 2000, 2001)),
        ("text", ("ghost", "ghost 2")),
        ("rows", (V, V + 1)),
        ("rows", (-3, 500)),
        ("gaps", ()),
    ],
)
def test_nodes_that_only_edges_name_are_added(tmp_path, ids, dangling):
    given = {"dangling_edges": "add", "nan_features": "mean", "missing_ids": "compact", "direction": "directed"}
    options = mr.ReadOptions(**given, one_hot="city")
    folder = write(tmp_path / "g", ids, dangling)
    assert convert._why_in_memory(folder, options) is None
    data = same(folder, tmp_path, options, split="fraction:0.5,0.2")
    assert data.num_nodes == V + len(dangling) and (data.labels < 0).sum() == len(dangling)
    assert any("that only edges name" in note for note in data.notes) == bool(dangling)
    if dangling == (-3, 500):
        refused = mr.ReadOptions(**{**given, "missing_ids": "error"})
        for read in (mr.open_dataset, lambda path, options: mr.convert(path, tmp_path / "out", options=options)):
            with pytest.raises(InputError, match=r"column nodes\.id has gaps: 62 ids between -3 and 500"):
                read(folder, options=refused)


def test_nodes_of_several_types_are_added(tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "g"
    (folder).mkdir()
    (folder / "nodes-user.csv").write_text("id,label,age\n" + "".join(f"{i},{i % 2},{i}\n" for i in range(0, 80, 2)))
    (folder / "nodes-item.csv").write_text("id,age\n" + "".join(f"i{i},{i}\n" for i in range(20)))
    rows = "".join(f"{rng.integers(0, 90)},i{rng.integers(0, 30)}\n" for _ in range(200))
    (folder / "edges-user-buys-item.csv").write_text("src,dst\n" + rows)
    given = {"feature_columns": "age", "nan_features": "zero", "missing_ids": "compact"}
    data = same(folder, tmp_path, mr.ReadOptions(dangling_edges="add", **given), split="fraction:0.5,0.2")
    assert sum("that only edges name" in note for note in data.notes) == 2


def test_a_type_that_no_table_of_edges_names(tmp_path):
    folder = tmp_path / "g"
    folder.mkdir()
    (folder / "nodes-user.csv").write_text("id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(4)))
    (folder / "nodes-item.csv").write_text("id\nx\ny\n")
    (folder / "edges-user-knows-user.csv").write_text("src,dst\n0,1\n1,2\n2,3\n")
    data = same(folder, tmp_path, mr.ReadOptions(dangling_edges="add"), split="fraction:0.5,0.25")
    assert data.num_nodes == 6


@pytest.mark.parametrize("given", [{"id": "none"}, {"label_columns": ("id",)}])
def test_a_column_called_id_that_is_no_id(tmp_path, given):
    folder = tmp_path / "g"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,label,age\n" + "".join(f"{9 - i},{i % 2},{i}\n" for i in range(4)))
    (folder / "edges.csv").write_text("src,dst\n0,1\n1,2\n2,4\n")
    given = {
        "dangling_edges": "add",
        "direction": "directed",
        "nan_features": "zero",
        "feature_columns": "age",
        **given,
    }
    data = same(folder, tmp_path, mr.ReadOptions(**given), split="fraction:0.5,0.25")
    assert data.num_nodes == 5


LINKS = {"task": "link", "missing_ids": "compact", "direction": "directed"}


@pytest.mark.parametrize("ids", ["rows", "gaps", "text"])
@pytest.mark.parametrize(
    ("given", "split"),
    [
        ({}, None),
        ({"direction": "undirected"}, "fraction:0.6,0.2"),
        ({"edge_time": "at"}, "time:0.6,0.2"),
        ({"nan_features": "indicator", "normalize_features": "standard"}, "fraction:0.9,0.1"),
    ],
)
def test_links(tmp_path, ids, given, split):
    folder = write(tmp_path / "g", ids, at=np.arange(E), weight=np.random.default_rng(0).random(E))
    options = mr.ReadOptions(**{**LINKS, **given})
    assert convert._why_in_memory(folder, options) is None
    data = same(folder, tmp_path, options, **({} if split is None else {"split": split}))
    assert data.task == "link" and data.num_features == 3


def test_links_of_a_file_of_pairs_in_the_folder(tmp_path):
    folder = write(tmp_path / "g", "text", split=np.array(["train", "val", "test"])[np.arange(E) % 3])
    refused, pairs = mr.ReadOptions(**LINKS), folder / "edges-pairs.csv"
    for read in (mr.open_dataset, lambda path, options: mr.convert(path, tmp_path / "out", options=options)):
        with pytest.raises(InputError, match="links are not divided by it"):
            read(folder, options=refused)
    pairs.write_text("src,dst,split\nn001,n002,train\nn003,n004,val\nn005,n006,test\n")
    data = same(folder, tmp_path, mr.ReadOptions(**LINKS, pairs=str(pairs)))
    assert [len(part) for part in (data.split.train, data.split.val, data.split.test)] == [1, 1, 1]


@pytest.mark.parametrize("labelled", ["seen", "hidden"])
@pytest.mark.parametrize("relation", [False, True])
def test_labels_of_edges(tmp_path, labelled, relation):
    more = {"amount": np.arange(E) / E, "label": np.arange(E) % 3, "at": np.arange(E)}
    folder = write(tmp_path / "g", "gaps", **more)
    if relation:
        for file in [*folder.iterdir()]:
            kind, number = file.stem.split("-")
            file.rename(folder / f"{kind}-{'user' if kind == 'nodes' else 'user-pays-user'}-{number}.parquet")
    given = {
        "labels_of": "edges",
        "labelled_edges": labelled,
        "edge_feature_columns": "amount",
        "missing_ids": "compact",
    }
    given |= {"edge_time": "at"} | ({} if relation else {"direction": "directed"})
    options = mr.ReadOptions(**given)
    assert convert._why_in_memory(folder, options) is None
    data = same(folder, tmp_path, options, split="time:0.5,0.2")
    assert data.has_edge_labels and data.num_classes == 3 and len(data.pairs) == E


@pytest.mark.parametrize(
    ("given", "split", "told"),
    [
        ({"relation": "buys"}, None, "relation is 'buys', but g has one type of edges; leave it out"),
        ({}, "fraction:0.999,0.0009", "leave none for val; raise its share"),
        ({"direction": None}, None, "direction is not known"),
        ({"pairs": "nothing.csv"}, None, "nothing.csv is no file of pairs"),
        ({"labels_of": "edges"}, None, "task is 'link', which has no labels, but labels_of is 'edges'"),
    ],
)
def test_pairs_that_are_refused(tmp_path, given, split, told):
    folder, options = write(tmp_path / "g"), mr.ReadOptions(**{**LINKS, **given})
    with pytest.raises(InputError, match=told) as want:
        mr.open_dataset(folder, options=options, split=split)
    with pytest.raises(InputError, match=told) as got:
        mr.convert(folder, tmp_path / "out", options=options, split=split, verbose=False)
    assert str(got.value).replace("read.", "") == str(want.value).replace("read.", "")
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


@pytest.mark.parametrize("stage", ["ends-nodes", "sort", "arrays"])
def test_links_of_an_ingest_that_is_killed(tmp_path, monkeypatch, stage):
    folder = write(tmp_path / "g", "text", ["ghost"])
    options = mr.ReadOptions(**LINKS, dangling_edges="add", nan_features="zero")
    mr.convert(folder, tmp_path / "want", options=options, verbose=False)
    with monkeypatch.context() as patch:
        patch.setattr(convert, "inline", killed(stage, before=False))
        with pytest.raises(Killed):
            mr.convert(folder, tmp_path / "got", options=options, verbose=False)
    assert not (tmp_path / "got").exists()
    mr.convert(folder, tmp_path / "got", options=options, verbose=False)
    assert contents(tmp_path / "got") == contents(tmp_path / "want")


@pytest.mark.parametrize("kind", ["Directed", "undirected"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_direction_that_a_column_says(tmp_path, kind, weighted):
    """Gephi writes it beside each edge."""
    rng, folder = np.random.default_rng(0), tmp_path / "g"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,label\n" + "".join(f"{v},{v % 3}\n" for v in range(V)))
    head = "Source,Target,Type" + ",Weight" * weighted
    rows = (f"{rng.integers(0, V)},{rng.integers(0, V)},{kind}" + f",{rng.random()}" * weighted for _ in range(E))
    (folder / "edges.csv").write_text("\n".join((head, *rows)))
    data = same(folder, tmp_path, mr.ReadOptions(), split="fraction:0.5,0.2")
    assert any(f"direction={kind.lower()} because its column Type says" in note for note in data.notes)
    (folder / "edges.csv").write_text("Source,Target,Type\n0,1,directed\n1,0,directed\n")
    assert any(
        "symmetric as stored" in n for n in same(folder, tmp_path, mr.ReadOptions(), split="fraction:0.5,0.2").notes
    )
