"""Tables in Feather, JSON lines and ORC, compressed CSV, and folders of parts, beside the same tables as plain CSV."""

import gzip
import json
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.datasets.readers.foreign import table_files
from millrace.pipeline.datasets.readers.graph import schema_at
from millrace.pipeline.datasets.schema.source import Request
from millrace.pipeline.ingest import convert
from millrace.pipeline.ingest.source import find_source
from millrace.tests.contracts.edges_by_name import edges_of, names_of, rows_of
from millrace.tests.contracts.ingest import cut_small, same

pytestmark = pytest.mark.usefixtures("small_pieces")
OPTIONS = mr.ReadOptions(direction="directed", feature_columns="age", label_columns="kind")
N = 30
TABLES = {
    "nodes": pa.table(
        {"id": [f"p{i:02d}" for i in range(N)], "age": list(range(N)), "kind": ["xyz"[i % 3] for i in range(N)]}
    ),
    "edges": pa.table({"src": [f"p{i:02d}" for i in range(N)], "dst": [f"p{i * 7 % N:02d}" for i in range(N)]}),
}


@pytest.fixture
def small_pieces(monkeypatch):
    cut_small(monkeypatch)


def _stream(table, path):
    with pa.ipc.new_stream(str(path), table.schema) as out:
        out.write_table(table)


def _lines(table, path):
    data = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    with pa.output_stream(str(path), compression="detect") as out:
        out.write(data)


def _csv(table, path):
    with pa.output_stream(str(path), compression="detect") as out:
        pyarrow.csv.write_csv(table, out)


def _tabs(table, path):
    with pa.output_stream(str(path), compression="detect") as out:
        pyarrow.csv.write_csv(table, out, pyarrow.csv.WriteOptions(delimiter="\t"))


WRITERS = {
    ".feather": pyarrow.feather.write_feather,
    ".arrow": _stream,
    ".orc": pyarrow.orc.write_table,
    ".jsonl": _lines,
    ".ndjson.gz": _lines,
    ".jsonl.zst": _lines,
    ".csv.zst": _csv,
    ".csv.bz2": _csv,
    ".tsv.zst": _tabs,
}


def _expect(dataset):
    assert edges_of(dataset) == sorted(tuple(row.values()) for row in TABLES["edges"].to_pylist())
    nodes = TABLES["nodes"].to_pylist()
    assert rows_of(dataset) == {row["id"]: [row["age"]] for row in nodes}
    assert {v: dataset.class_names[y] for v, y in zip(names_of(dataset), dataset.labels)} == {
        r["id"]: r["kind"] for r in nodes
    }


def _agree(path, out, options=OPTIONS):
    """Open a source, and convert it in pieces into a store of the same bytes."""
    (out.parent / "aside").mkdir()
    assert convert._why_in_memory(path, options) is None
    return same(path, out.parent / "aside", options)


@pytest.mark.parametrize("suffix", WRITERS)
def test_kinds(tmp_path, suffix):
    (tmp_path / "g").mkdir()
    for stem, table in TABLES.items():
        WRITERS[suffix](table, tmp_path / "g" / f"{stem}{suffix}")
    _expect(_agree(tmp_path / "g", tmp_path / "store"))


@pytest.mark.parametrize("suffix", [".feather", ".jsonl", ".orc", ".jsonl.zst"])
def test_damaged(tmp_path, suffix):
    (tmp_path / f"edges{suffix}").write_bytes(b"\x00hello")
    with pytest.raises(mr.InputError, match=f"edges{suffix} cannot be read"):
        mr.open_dataset(tmp_path / f"edges{suffix}", options=mr.ReadOptions(task="link"))


@pytest.mark.parametrize("never", [5, 7])
def test_lines_of_which_blocks_have_other_types(tmp_path, monkeypatch, never):
    """A column is of the type that all of its values have, and null where a line lacks it; also if two columns have
    another from the same block on."""
    monkeypatch.setattr(table_files, "LINES_BYTES", 64)
    rows = [{"src": i, "dst": (i + 1) % 9, "w": i if i < 5 else i / 2} for i in range(9)]
    rows[1]["on"], rows[never]["on"], rows[8]["more"] = "2024-01-31 10:00:00", "never", [1.5]
    path = tmp_path / "edges.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    schema, batches = table_files.table_batches(path)
    found = pa.Table.from_batches(list(batches), schema).to_pylist()
    assert found == [dict.fromkeys(schema.names) | row | {"w": float(row["w"])} for row in rows]
    (tmp_path / "empty.jsonl").write_text(" \n")
    with pytest.raises(mr.InputError, match="Empty JSON file"):
        table_files.table_batches(tmp_path / "empty.jsonl")


def test_a_line_without_an_end(tmp_path, monkeypatch):
    """It is refused when a block is read, not when all of the file is in memory."""
    monkeypatch.setattr(table_files, "LINES_BYTES", 64)
    (tmp_path / "edges.jsonl").write_text('{"src": 1, "dst": 2}\n' + '{"src": 1, "dst": 2}' * 50)
    blocks = table_files._lines(tmp_path / "edges.jsonl")
    assert next(blocks).size() == 21
    with pytest.raises(mr.InputError, match="a line is longer than 64 bytes"):
        mr.open_dataset(tmp_path / "edges.jsonl", options=mr.ReadOptions(task="link"))


def test_text_in_another_encoding(tmp_path):
    (tmp_path / "edges.jsonl").write_bytes('{"src": "grün", "dst": "b"}\n'.encode("latin-1"))
    with pytest.raises(mr.InputError, match=r"edges\.jsonl cannot be read .*UTF8"):
        mr.open_dataset(tmp_path / "edges.jsonl", options=mr.ReadOptions(task="link"))


@pytest.mark.parametrize("named", [".parquet", ""])
@pytest.mark.parametrize("of", ["part-{:05d}-abc.c000.snappy.parquet", "part.{}.parquet", "part-{}.csv"])
def test_folders_of_parts(tmp_path, named, of):
    if named and of.endswith("csv"):
        named = ".csv"
    for stem, table in TABLES.items():
        folder = tmp_path / "g" / f"{stem}{named}"
        folder.mkdir(parents=True)
        for k in range(12):  # 10 comes after 2
            write = pyarrow.csv.write_csv if of.endswith("csv") else pq.write_table
            write(table.slice(k * N // 12, (k + 1) * N // 12 - k * N // 12), folder / of.format(k))
        for other in ("_SUCCESS", "_metadata", ".part-0.crc"):
            (folder / other).write_bytes(b"")
    _expect(_agree(tmp_path / "g", tmp_path / "store"))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "jsonl"])
def test_columns_in_names_of_folders(tmp_path, suffix):
    nodes = TABLES["nodes"]
    for kind in "xyz":
        part = nodes.filter(pa.array([k == kind for k in nodes["kind"].to_pylist()])).drop_columns(["kind"])
        (folder := tmp_path / "g" / f"nodes.{suffix}" / f"kind={kind}").mkdir(parents=True)
        if suffix == "parquet":
            pq.write_table(part, folder / "part-0.parquet")
        elif suffix == "jsonl":
            (folder / "part-0.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part.to_pylist()))
        else:
            to = pyarrow.csv.WriteOptions(delimiter="\t" if suffix == "tsv" else ",")
            pyarrow.csv.write_csv(part, folder / f"part-0.{suffix}", to)
    pq.write_table(TABLES["edges"], tmp_path / "g" / "edges.parquet")
    _expect(_agree(tmp_path / "g", tmp_path / "store"))


IDS = [[f"{i:03d}" for i in range(N)], [str(i) for i in range(N)], [f"a b/{i}%" for i in range(N)]]


@pytest.mark.parametrize("ids", IDS, ids=["zeros", "numbers", "quoted"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_ids_in_names_of_folders(tmp_path, suffix, ids):
    """Numbers in names of folders are text, as in CSV: 007 is no 7, and 7 is the node 7 and the node '7'."""
    g, write = tmp_path / "g", pyarrow.csv.write_csv if suffix == "csv" else pq.write_table
    for i, id_ in enumerate(ids):
        rest = pa.table({"dst": [ids[i * 7 % N]]})
        (folder := g / f"edges.{suffix}" / f"src={quote(id_, safe='')}").mkdir(parents=True)
        write(rest, folder / f"part-0.{suffix}")
    nodes = TABLES["nodes"].set_column(0, "id", pa.array(ids))
    of_kind = {k: nodes.filter(pa.array([n == k for n in nodes["kind"].to_pylist()])) for k in "xyz"}
    for code, part in zip(("01", "1", "__HIVE_DEFAULT_PARTITION__"), of_kind.values()):
        (folder := g / "nodes.parquet" / f"kind={code}").mkdir(parents=True)
        pq.write_table(part.drop_columns(["kind"]), folder / "a.parquet")
    dataset = _agree(g, tmp_path / "store")
    names = [str(v) for v in (dataset.node_names if dataset.node_names is not None else range(N))]
    assert sorted(names) == sorted(ids)
    assert edges_of(dataset) == sorted((ids[i], ids[i * 7 % N]) for i in range(N))
    assert dataset.class_names == ("01", "1")
    assert sorted(names[v] for v in range(N) if dataset.labels[v] < 0) == sorted(of_kind["z"]["id"].to_pylist())


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_days_and_types_in_names_of_folders(tmp_path, suffix):
    """Days are times; where a file has the column itself, its values count."""
    g, write = tmp_path / "g", pyarrow.csv.write_csv if suffix == "csv" else pq.write_table
    write(TABLES["nodes"], (tmp_path / "g").mkdir() or g / f"nodes.{suffix}")
    for k in range(3):
        (folder := g / "edges" / f"on=2024-01-0{k + 1}" / "dst=nobody").mkdir(parents=True)
        write(TABLES["edges"].slice(10 * k, 10), folder / f"part-{k}.{suffix}")
    dataset = _agree(g, tmp_path / "store", mr.ReadOptions(**OPTIONS.given, edge_time="on"))
    _expect(dataset)
    assert np.bincount(dataset.graph.edge_time - dataset.graph.edge_time.min()).tolist() == [10, 10, 10]


def test_columns_in_names_of_folders_whose_files_differ(tmp_path):
    """A column is read that only later files have, in the type that all values have."""
    nodes = TABLES["nodes"]
    for k, kind in enumerate("12z"):
        part = nodes.slice(10 * k, 10).drop_columns(["kind"])
        if k:
            part = part.set_column(1, "age", pa.array([age + 0.5 for age in part["age"].to_pylist()]))
            part = part.append_column("more", pa.array([7] * 10))
        (folder := tmp_path / "g" / "nodes.parquet" / f"kind={kind}").mkdir(parents=True)
        pq.write_table(part, folder / "part-0.parquet")
    pq.write_table(TABLES["edges"], tmp_path / "g" / "edges.parquet")
    options = mr.ReadOptions(
        direction="directed", feature_columns="age,more", label_columns="kind", nan_features="zero"
    )
    assert "label kind" in str(schema_at(find_source(tmp_path / "g", Request(options=options)), options).notes)
    dataset = _agree(tmp_path / "g", tmp_path / "store", options)
    assert dataset.class_names == ("1", "2", "z")
    ages = nodes["age"].to_pylist()
    assert rows_of(dataset) == {
        id_: [age + 0.5 * (age >= 10), 7.0 * (age >= 10)] for id_, age in zip(nodes["id"].to_pylist(), ages)
    }


DAYS = [f"2024-01-{1 + i % 28:02d}" for i in range(N)]
MOMENTS = [f"{day} 10:00:00" for day in DAYS]
TIMES = [
    (".feather", pa.array(MOMENTS).cast(pa.timestamp("s")), "s"),
    (".feather", pa.array(DAYS).cast(pa.date32()).cast(pa.date64()), "ms"),
    (".orc", pa.array(MOMENTS).cast(pa.timestamp("s")), "ns"),
    (".orc", pa.array(DAYS).cast(pa.date32()), "D"),
    (".jsonl", pa.array(MOMENTS), "s"),
    (".csv.bz2", pa.array(MOMENTS), "s"),
    (".csv.bz2", pa.array(DAYS), "D"),
]


@pytest.mark.parametrize(("suffix", "times", "unit"), TIMES)
def test_times_count_their_own_unit(tmp_path, suffix, times, unit):
    """Parquet, which files are imported as, knows neither seconds nor milliseconds of days."""
    (tmp_path / "g").mkdir()
    WRITERS[suffix](TABLES["nodes"], tmp_path / "g" / f"nodes{suffix}")
    WRITERS[suffix](TABLES["edges"].append_column("on", times), tmp_path / "g" / f"edges{suffix}")
    dataset = _agree(tmp_path / "g", tmp_path / "store", mr.ReadOptions(**OPTIONS.given, edge_time="on"))
    assert dataset.graph.time_unit == unit


def test_columns_that_parquet_has_not(tmp_path):
    """They are imported all the same, and noted as not read."""
    (tmp_path / "g").mkdir()
    pq.write_table(TABLES["nodes"], tmp_path / "g" / "nodes.parquet")
    rows = [
        {**row, "none": {}, "deep": {"a": [{}]}, "some": {"a": i}} for i, row in enumerate(TABLES["edges"].to_pylist())
    ]
    (tmp_path / "g" / "edges.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = _agree(tmp_path / "g", tmp_path / "store")
    _expect(dataset)
    assert "Columns of edges were not read: none, deep, some." in dataset.notes


def test_text_that_arrow_keeps_as_views(tmp_path):
    """As Polars writes it."""
    views = {c: TABLES["edges"][c].cast(pa.string_view()) for c in ("src", "dst")}
    views["how"] = pa.array(["ab"[i % 2] for i in range(N)]).cast(pa.string_view())
    (tmp_path / "g").mkdir()
    pyarrow.feather.write_feather(TABLES["nodes"], tmp_path / "g" / "nodes.feather")
    _stream(pa.table(views), tmp_path / "g" / "edges.arrow")
    options = mr.ReadOptions(feature_columns="age", label_columns="kind", relation_column="how")
    dataset = _agree(tmp_path / "g", tmp_path / "store", options)
    assert dataset.graph.types.relations == (("node", "a", "node"), ("node", "b", "node"))


def test_folders_that_are_not_clear(tmp_path):
    (tmp_path / "edges").mkdir()
    pq.write_table(TABLES["edges"], tmp_path / "edges" / "part-0.parquet")
    pq.write_table(TABLES["edges"], tmp_path / "edges.parquet")
    with pytest.raises(mr.InputError, match=r"edges/ and edges\.parquet are both the same table"):
        mr.open_dataset(tmp_path)
    (tmp_path / "edges.parquet").unlink()
    (tmp_path / "edges" / "part-1.csv").write_text("src,dst\na,b\n")
    with pytest.raises(mr.InputError, match=r"holds files of several kinds \(\.csv, \.parquet\)"):
        mr.open_dataset(tmp_path)


@pytest.mark.parametrize("separator", [";", "|", "\t"])
@pytest.mark.parametrize("packed", [False, True])
def test_other_separators(tmp_path, separator, packed):
    (tmp_path / "g").mkdir()
    for stem, table in TABLES.items():
        text = "\n".join(
            separator.join(map(str, row)) for row in (table.column_names, *zip(*table.to_pydict().values()))
        )
        path = tmp_path / "g" / f"{stem}.csv{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    _expect(_agree(tmp_path / "g", tmp_path / "store"))


def test_edges_without_a_header(tmp_path):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "edges.csv").write_text("0,1,5\n1,2,7\n")
    (tmp_path / "g" / "nodes.csv").write_text("id,age,kind\n0,1,x\n1,2,y\n2,3,x\n")
    dataset = _agree(tmp_path / "g", tmp_path / "store")
    assert edges_of(dataset) == [("0", "1"), ("1", "2")]
    assert any("column_3" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("words", "count"), [(("Undirected",) * 2, 4), (("Directed",) * 2, 2), (("Directed", "Undirected"), None)]
)
def test_gephi_says_the_direction(tmp_path, words, count):
    rows = "".join(f"{a},{b},{word}\n" for (a, b), word in zip((("a", "b"), ("b", "c")), words))
    (tmp_path / "edges.csv").write_text(f"Source,Target,Type\n{rows}")
    (tmp_path / "nodes.csv").write_text("Id,Label,kind,age\na,A,x,1\nb,B,y,2\nc,C,x,3\n")
    options = mr.ReadOptions(feature_columns="age", label_columns="kind")
    if count is None:
        with pytest.raises(mr.InputError, match="column Type says Directed and Undirected"):
            mr.open_dataset(tmp_path, options=replace(options, direction="directed"))
    else:
        assert mr.open_dataset(tmp_path, options=options).graph.num_edges == count
