"""DGL's CSVDataset and GraphStorm's construction JSON."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.tests.contracts.edges_by_name import edges_of, names_of, rows_of

DGL = {
    "meta.yaml": """
dataset_name: shop
edge_data:
- {file_name: follows.csv, etype: [user, follows, user]}
- {file_name: buys.csv, etype: [user, buys, item], src_id_field: who, dst_id_field: what}
node_data:
- {file_name: users.csv, ntype: user}
- {file_name: items.csv, ntype: item, node_id_field: sku}
""",
    "follows.csv": "src_id,dst_id\n0,1\n1,2\n",
    "buys.csv": "who,what,since\n0,b,1\n2,a,2\n",
    "users.csv": "node_id,label,train_mask,val_mask,test_mask,feat\n"
    '0,1,1,0,0,"0.5,1"\n2,1,0,0,1,"2.5,3"\n1,0,0,1,0,"1.5,2"\n',
    "items.csv": "sku\na\nb\n",
    "other.csv": "x\n1\n",
}


def _written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_dgl(tmp_path):
    dataset = mr.open_dataset(_written(tmp_path, DGL), options=mr.ReadOptions(target="user", feature_columns="feat"))
    assert sorted(dataset.graph.types.relations) == [("user", "buys", "item"), ("user", "follows", "user")]
    assert np.asarray(dataset.features.gather(np.arange(3)))[:, :2].tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]
    assert [np.asarray(part).tolist() for part in (dataset.split.train, dataset.split.val, dataset.split.test)] == [
        [0],
        [1],
        [2],
    ]
    assert any(r"other.csv was left out: meta.yaml does not name it" in note for note in dataset.notes)


def test_dgl_of_one_type(tmp_path):
    files = {
        "meta.yaml": "separator: ;\nedge_data: [{file_name: e.csv}]\nnode_data: [{file_name: n.csv}]\n",
        "e.csv": "src_id;dst_id\nb;a\n",
        "n.csv": "node_id;label;feat\na;0;1,2\nb;1;3,4\n",
    }
    options = mr.ReadOptions(direction="directed", feature_columns="feat")
    dataset = mr.open_dataset(_written(tmp_path, files), options=options)
    assert edges_of(dataset) == [("b", "a")] and rows_of(dataset) == {"a": [1, 2], "b": [3, 4]}


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ("edge_data: [", "meta.yaml cannot be read"),
        ("node_data: []", "names no edge_data"),
        ("edge_data: 3", "edge_data is no list of objects"),
        ("edge_data: [{}]", "file_name is 'None'; expected a name"),
        ("edge_data: [{file_name: e.csv}]\ngraph_data: {file_name: g.csv}", "describes many graphs"),
        ("edge_data: [{file_name: no.csv}]", "no.csv cannot be read as CSV"),
        (
            "edge_data: [{file_name: follows.csv, etype: [a, b]}]",
            "is no list of source type, name and destination type",
        ),
        ("!!python/object/apply:os.system ['touch ran']", "meta.yaml cannot be read"),
    ],
)
def test_damaged_dgl(tmp_path, meta, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mr.InputError) as seen:
        mr.open_dataset(_written(tmp_path, {**DGL, "meta.yaml": meta}), options=mr.ReadOptions(task="link"))
    assert words in str(seen.value) and not (tmp_path / "ran").exists()


def _graphstorm(folder, change=lambda record: None):
    (folder / "nodes").mkdir(exist_ok=True)
    (folder / "edges").mkdir(exist_ok=True)
    for k, rows in enumerate(([("u1", 3, "x"), ("u2", 1, "y")], [("u3", 2, "x")])):
        names = ("uid", "age", "kind")
        pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows))))), folder / f"nodes/user-{k}.parquet")
    (folder / "nodes/film.csv").write_text("film_id,year\nf1,1979\nf2,1986\n")
    (folder / "edges/saw.csv").write_text("who,what,stars\nu1,f2,5\nu3,f1,4\n")
    record = {
        "nodes": [
            {
                "node_type": "user", "node_id_col": "uid", "format": {"name": "parquet"},
                "files": "nodes/user-*.parquet",
                "features": [{"feature_col": "age", "transform": {"name": "max_min_norm"}}],
                "labels": [{"label_col": "kind", "task_type": "classification", "split_pct": [0.8, 0.1, 0.1]}],
            },
            {
                "node_type": "film", "node_id_col": "film_id", "format": {"name": "csv", "separator": ","},
                "files": ["nodes/film.csv"],
            },
        ],
        "edges": [
            {
                "relation": ["user", "saw", "film"], "source_id_col": "who", "dest_id_col": "what",
                "format": {"name": "csv"}, "files": "edges/saw.csv",
            },
        ],
    }  # fmt: skip
    change(record)
    (folder / "config.json").write_text(json.dumps(record))
    return folder / "config.json"


def _expect(dataset):
    assert dataset.graph.types.relations == (("user", "saw", "film"),) and dataset.num_nodes == 5
    assert names_of(dataset)[:3] == ["u1", "u2", "u3"] and dataset.class_names == ("x", "y")
    assert np.asarray(dataset.features.gather(np.arange(3)))[:, 0].tolist() == [3, 1, 2]
    assert dataset.graph.num_edges == 2


def test_graphstorm(tmp_path):
    dataset = mr.open_dataset(_graphstorm(tmp_path), options=mr.ReadOptions())
    _expect(dataset)
    told = " ".join(dataset.notes)
    assert "nodes-user.age: transform of config.json was not followed" in told
    assert "nodes-user.kind is to be split by [0.8, 0.1, 0.1]: set split=fraction:0.8,0.1" in told


def test_graphstorm_processing(tmp_path):
    path = _graphstorm(tmp_path)
    ours = {
        "version": "gsprocessing-v1.0",
        "graph": {
            "nodes": [
                {
                    "data": {"format": "parquet", "files": ["nodes/user-0.parquet", "nodes/user-1.parquet"]},
                    "type": "user", "column": "uid", "features": [{"column": "age"}],
                    "labels": [{"column": "kind", "type": "classification"}],
                },
                {
                    "data": {"format": "csv", "files": ["nodes/film.csv"], "separator": ","}, "type": "film",
                    "column": "film_id",
                },
            ],
            "edges": [
                {
                    "data": {"format": "csv", "files": ["edges/saw.csv"]}, "source": {"column": "who", "type": "user"},
                    "relation": {"type": "saw"}, "dest": {"column": "what", "type": "film"},
                },
            ],
        },
    }  # fmt: skip
    path.write_text(json.dumps(ours))
    _expect(mr.open_dataset(path))


def test_a_type_without_nodes_is_that_of_ends(tmp_path):
    path = _graphstorm(tmp_path, lambda record: record["nodes"].pop())
    dataset = mr.open_dataset(path)
    assert names_of(dataset)[3:] == ["f1", "f2"]
    assert any("2 nodes of type 'film' were taken from the ends of the edges" in note for note in dataset.notes)


CHANGES = {
    "hdf5": (lambda r: r["nodes"][0]["format"].update(name="hdf5"), "format is 'hdf5'; expected parquet or csv"),
    "twice": (lambda r: r["nodes"].append(r["nodes"][0]), "describes nodes-user more than once"),
    "no file": (lambda r: r["nodes"][0].update(files="gone/*"), "no file is at gone/*"),
    "no files": (lambda r: r["nodes"][0].update(files=[]), "names no files"),
    "no id": (lambda r: r["nodes"][0].pop("node_id_col"), "node_id_col is ''; expected a name"),
    "relation": (lambda r: r["edges"][0].update(relation="saw"), "the relation saw is no list"),
    "features": (lambda r: r["nodes"][0].update(features=3), "features is no list of objects"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_refused_graphstorm(tmp_path, change):
    apply, words = CHANGES[change]
    with pytest.raises(mr.InputError) as seen:
        mr.open_dataset(_graphstorm(tmp_path, apply))
    assert words in str(seen.value)


def test_text_of_nodes_is_a_feature_where_another_type_has_no_table(tmp_path):
    (tmp_path / "n.csv").write_text("nid,work,y\n" + "".join(f"{i},{'ab'[i % 2]},{i % 2}\n" for i in range(6)))
    (tmp_path / "e.csv").write_text("s,d\n" + "".join(f"{i},x{i % 3}\n" for i in range(6)))
    csv = {"name": "csv"}
    described = {
        "nodes": [{"node_type": "user", "node_id_col": "nid", "format": csv, "files": "n.csv",
                   "labels": [{"label_col": "y"}], "features": [{"feature_col": "work"}]}],
        "edges": [{"relation": ["user", "has", "thing"], "source_id_col": "s", "dest_id_col": "d", "format": csv,
                   "files": "e.csv"}],
    }  # fmt: skip
    (tmp_path / "g.json").write_text(json.dumps(described))
    data = mr.open_dataset(tmp_path / "g.json", options=mr.ReadOptions(one_hot="work"))
    assert data.features.widths == (2, 0) and data.num_nodes == 9
