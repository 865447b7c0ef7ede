"""Text columns as features: one for each value, from memory, from files and after a conversion."""

import decimal
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.datasets.cleaning.class_names import one_hot_values, with_one_hot
from millrace.pipeline.ingest import convert
from millrace.tests.contracts.edges_by_name import rows_of
from millrace.tests.contracts.ingest import same

NODES = "id,age,city,job,label\na,1,york,9,x\nb,2,ulm,10,y\nc,3,,9,x\nd,4,ulm,9,y\n"
WANTED = {"a": [1, 0, 1, 1, 0], "b": [2, 1, 0, 0, 1], "c": [3, 0, 0, 1, 0], "d": [4, 1, 0, 1, 0]}


def _folder(tmp_path, nodes=NODES):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "nodes.csv").write_text(nodes)
    (tmp_path / "g" / "edges.csv").write_text("src,dst,kind\na,b,p\nb,c,q\nc,d,p\n")
    return tmp_path / "g"


def test_each_value_is_a_feature(tmp_path):
    options = mr.ReadOptions(direction="directed", feature_columns="age", one_hot="city,job")
    dataset = _in_pieces(_folder(tmp_path), tmp_path, options)
    assert rows_of(dataset) == WANTED
    assert any(
        "Column city of nodes is a feature for each value, all 0 where empty (one_hot): ulm, york." in note
        for note in dataset.notes
    )


def _in_pieces(folder, tmp_path, options):
    """The dataset of a folder, in memory and in pieces."""
    assert convert._why_in_memory(folder, options) is None
    return same(folder, tmp_path, options)


def test_files_that_differ(tmp_path):
    """Values are those of all files, in the type that all have; a file without the column has none."""
    folder = _folder(tmp_path)
    (folder / "nodes.csv").unlink()
    for k, column in enumerate(({"job": ["9", "10 "]}, {"job": [None, "7"]}, {})):
        ids = [f"{'abcdef'[2 * k + i]}" for i in range(2)]
        pq.write_table(pa.table({"id": ids, "label": [0, 1], **column}), folder / f"nodes-{k}.parquet")
    options = mr.ReadOptions(direction="directed", one_hot="job,kind", nan_features="zero")
    dataset = _in_pieces(folder, tmp_path, options)
    assert rows_of(dataset) == {
        v: [float(job == value) for value in (7, 9, 10)] for v, job in zip("abcdef", (9, 10, None, 7, None, None))
    }


def test_of_edges(tmp_path):
    options = mr.ReadOptions(direction="directed", one_hot="kind")
    dataset = _in_pieces(_folder(tmp_path), tmp_path, options)
    kinds = np.asarray(dataset.graph.edge_features.gather(np.arange(3)))
    assert kinds.tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"one_hot": "town"}, "no table has the column 'town' that read.one_hot names"),
        (
            {"feature_columns": "city"},
            r"nodes\.city is string; expected numbers, not '\w+': one_hot=city makes .* --set read\.one_hot=city",
        ),
        ({"one_hot": 3}, "one_hot is 3; expected names of columns"),
    ],
)
def test_refused(tmp_path, options, words):
    with pytest.raises(mr.InputError, match=words.replace("read.", "(read.)?").replace("read\\.", "(read\\.)?")):
        mr.open_dataset(_folder(tmp_path), options=mr.ReadOptions(direction="directed", **options))


def test_limits():
    table = pa.table({"a": [f"{i}" for i in range(1001)], "b": [[1]] * 1001})
    with pytest.raises(mr.InputError, match=r"nodes\.a has more than 1,000 values"):
        with_one_hot(table, one_hot_values(table, ["a"], "nodes"), "nodes")
    with pytest.raises(mr.InputError, match=r"nodes\.b is list<item: int64>; expected text or numbers"):
        one_hot_values(table, ["b"], "nodes")
    empty = pa.table({"a": pa.array([None, ""])})
    empty = with_one_hot(empty, one_hot_values(empty, ["a"], "nodes"), "nodes")
    assert empty["a"].to_pylist() == [[0], [0]]


def test_of_a_type_and_a_column_with_dots(tmp_path):
    table = pa.table({"a.b": ["x", "y"]})
    numbers = with_one_hot(pa.table({"a": ["1.0", "A", "1"]}), {"a": ["1.0", "A"]}, "nodes")  # of an earlier version
    assert numbers["a"].to_pylist() == [[1, 0], [0, 1], [1, 0]]
    assert one_hot_values(pa.table({"a": [0.0, -0.0, 1.0]}), ["a"], "nodes") == {"a": ("0", "1")}
    assert with_one_hot(table, one_hot_values(table, ["a.b"], "nodes-c.d"), "nodes-c.d")["a.b"].to_pylist() == [
        [1, 0],
        [0, 1],
    ]
    pq.write_table(pa.table({"id": ["a", "b", "c"], "job": [7, 9, 7], "y": [0, 1, 0]}), tmp_path / "n.parquet")
    pq.write_table(pa.table({"s": ["a", "b", "c"], "d": ["b", "c", "a"]}), tmp_path / "e.parquet")
    of = {"format": {"name": "parquet"}}
    nodes = {"node_type": "my.person", "node_id_col": "id", "files": ["n.parquet"], **of}
    nodes |= {"labels": [{"label_col": "y", "task_type": "classification"}]}
    edges = {"source_id_col": "s", "dest_id_col": "d", "files": ["e.parquet"], **of}
    both = [edges | {"relation": ["my.person", name, "my.person"]} for name in ("knows", "likes")]
    (tmp_path / "graph.json").write_text(json.dumps({"nodes": [nodes], "edges": both}))
    dataset = mr.open_dataset(tmp_path / "graph.json", options=mr.ReadOptions(one_hot="job"))
    assert rows_of(dataset) == {"a": [1, 0], "b": [0, 1], "c": [1, 0]}


def test_decimals_and_lists_of_nan(tmp_path):
    folder = _folder(tmp_path)
    (folder / "nodes.csv").unlink()
    amounts = pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.25"), None, decimal.Decimal("4")])
    lists = pa.array([[1.0, 2.0], [math.nan] * 2, [3.0, 4.0], [5.0, 6.0]])
    pq.write_table(
        pa.table({"id": list("abcd"), "label": [0, 1, 0, 1], "amount": amounts, "lists": lists}),
        folder / "nodes.parquet",
    )
    options = mr.ReadOptions(direction="directed", feature_columns="amount,lists", nan_features="zero")
    dataset = mr.open_dataset(folder, options=options)
    assert rows_of(dataset) == {"a": [1.5, 1, 2], "b": [2.25, 0, 0], "c": [0, 3, 4], "d": [4, 5, 6]}


def test_dates_with_an_offset_are_shown(tmp_path):
    folder = _folder(tmp_path, "id,label,when\na,0,2024-05-01T10:00:00+02:00\nb,1,later\nc,0,now\nd,1,now\n")
    with pytest.raises(mr.InputError, match=r"nodes\.when is string \(first: '2024-05-01T10:00:00\+02:00'\)"):
        mr.open_dataset(folder, options=mr.ReadOptions(direction="directed", node_time="when"))


def test_a_url_is_told_the_way():
    with pytest.raises(mr.InputError, match=r"is a URL; copy it once, `millrace convert s3://b/graph --out STORE`"):
        mr.open_dataset("s3://b/graph")


def test_codes_with_zeros_before_them_are_values_of_their_own_everywhere(tmp_path):
    """In memory, in pieces and in other data, whatever else the column holds; numbers are one value however written."""
    nodes = "id,age,code,label\na,0,01,x\nb,1,1,y\nc,2,1.0,x\nd,3,,y\n"
    options = mr.ReadOptions(direction="directed", feature_columns="age", one_hot="code")
    dataset = _in_pieces(folder := _folder(tmp_path, nodes), tmp_path, options)
    wanted = {"a": [0, 1, 0], "b": [1, 0, 1], "c": [2, 0, 1], "d": [3, 0, 0]}
    found = rows_of(dataset)
    order = [1, 0] if found["a"][1] == 0 else [0, 1]  # of 01 and 1
    assert {v: [row[0], *(row[1:][k] for k in order)] for v, row in found.items()} == wanted
    run = mr.run(
        folder, read=options.given, out=tmp_path / "run", epochs=1, fanout=[2], verbose=False,
        model=mr.GraphSAGE(hidden=4, layers=1),
    )  # fmt: skip
    (tmp_path / "more").mkdir()
    other = _folder(tmp_path / "more", nodes + "e,9,A,x\n")
    with pytest.warns(mr.DataWarning, match=r"has 1 value that the run does not know \(A\), in 1 row"):
        rows = rows_of(mr.load(run).open_dataset(other, labelled=False))
    assert {v: row for v, row in rows.items() if v != "e"} == found and rows["e"] == [9, 0, 0]
