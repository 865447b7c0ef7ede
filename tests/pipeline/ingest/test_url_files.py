"""Parquet in, and stores out and back, on a local S3 server."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.ingest import run, url_files
from millrace.pipeline.ingest.url_files import UPLOAD, UrlFile, holds_store, opened
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, RunError, StoreError
from millrace.storage.store.manifest import MANIFEST
from millrace.tests.contracts.s3_server import s3_server

BUCKET = "bucket"
OPTIONS = mr.ReadOptions(direction="undirected")


@pytest.fixture(scope="module")
def s3():
    with s3_server(BUCKET) as client:
        yield client
        url_files._location.cache_clear()


@pytest.fixture(scope="module")
def tables(s3, tmp_path_factory) -> Path:
    """Tables in a folder, and the same at s3://bucket/in/graph."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("tables") / "graph"
    folder.mkdir()
    for n in range(3):
        ends = rng.integers(0, 500, (2, 3000))
        pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), folder / f"edges-{n}.parquet", row_group_size=700)
    nodes = pa.table({"label": rng.integers(0, 3, 500), "features": rng.random((500, 4)).astype("f4").tolist()})
    pq.write_table(nodes, folder / "nodes.parquet", row_group_size=100)
    for file in folder.iterdir():
        s3.upload_file(str(file), BUCKET, f"in/graph/{file.name}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_in_out_and_back(tables, here, s3):
    """The bytes are those of the files in a folder, wherever they lie."""
    write_dataset(here / "want", mr.open_dataset(tables, options=OPTIONS))
    mr.convert(f"s3://{BUCKET}/in/graph", "got", options=OPTIONS, verbose=False)
    assert contents(here / "got") == contents(here / "want")
    out = f"s3://{BUCKET}/out/store"
    store = mr.convert(f"s3://{BUCKET}/in/graph", out, options=OPTIONS, features="npy", verbose=False)
    assert store.entries["indptr"]["shape"] == [501]
    assert holds_store(out)
    mr.convert(out, "back", verbose=False)
    write_dataset(here / "npy", mr.open_dataset(tables, options=OPTIONS), features_format="npy")
    assert contents(here / "back") == contents(here / "npy")
    assert sorted(p.name for p in here.iterdir() if p.suffix != ".jsonl") == ["back", "got", "npy", "want"]
    with pytest.raises(InputError, match="already exists"):
        mr.convert("sbm:nodes=100,classes=2", out, verbose=False)
    with pytest.raises(InputError, match=r"read in pieces only, but read\.components=largest needs the whole graph"):
        mr.convert(
            f"s3://{BUCKET}/in/graph",
            "x",
            verbose=False,
            options=mr.ReadOptions(components="largest", direction="directed"),
        )


def test_a_url_without_tables_or_access_is_a_sentence(here, tables, s3):
    with pytest.raises(
        InputError, match=r"in holds no edges\*\.parquet or edges\*\.csv or edges\*\.npy; expected edges"
    ):
        mr.convert(f"s3://{BUCKET}/in", "x", verbose=False)
    with pytest.raises(StoreError, match="cannot be used"):
        mr.convert("s3://nobody/graph", "x", verbose=False)
    with pytest.raises(InputError, match="holds credentials"):
        mr.convert(f"s3://key:secret@{BUCKET}/graph", "x", verbose=False)
    s3.put_object(Bucket=BUCKET, Key="bad/edges.parquet", Body=b"no parquet")
    s3.put_object(Bucket=BUCKET, Key="bad/nodes.parquet", Body=b"no parquet")
    with pytest.raises(InputError, match="cannot be read"):
        mr.convert(f"s3://{BUCKET}/bad", "x", verbose=False)
    assert not list(here.iterdir())


def test_tables_of_several_types(here, s3):
    found = {"edges-user-likes-item": {"src": [0, 1, 1], "dst": [1, 0, 1]}, "nodes-user": {"x0": [1.0, 2.0]}}
    found["nodes-item"] = {"label": [0, 1], "split": ["train", "test"]}
    (here / "typed").mkdir()
    for name, columns in found.items():
        pq.write_table(pa.table(columns), file := here / "typed" / f"{name}.parquet")
        s3.put_object(Bucket=BUCKET, Key=f"in/typed/{name}.parquet", Body=file.read_bytes())
    write_dataset(here / "want", mr.open_dataset(here / "typed"))
    mr.convert(f"s3://{BUCKET}/in/typed", here / "got", verbose=False)
    assert contents(here / "got") == contents(here / "want")
    s3.put_object(Bucket=BUCKET, Key="in/typed/nodes-3.parquet", Body=b"")
    with pytest.raises(InputError, match=r"there is nodes-3\.parquet among tables of several types"):
        mr.convert(f"s3://{BUCKET}/in/typed", "x", verbose=False)


def test_typed_tables_of_other_kinds_at_a_url(here, s3):
    """Only Parquet is read there, so these are no tables."""
    node, edge = "nodes-user", "edges-user-knows-user"
    for name in (f"csv/{node}.csv", f"csv/{edge}.csv", f"some/{node}.csv", f"some/{edge}.parquet"):
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"")
    for folder, stem in (("csv", "edges"), ("some", "nodes")):
        with pytest.raises(InputError, match=rf"{folder} holds no {stem}\*\.parquet"):
            mr.convert(f"s3://{BUCKET}/{folder}", "x", verbose=False)


def test_a_file_that_is_lost_on_the_way(here, tables, s3, monkeypatch):
    s3.put_object(Bucket=BUCKET, Key="lost/edges.parquet", Body=(tables / "edges-0.parquet").read_bytes())
    s3.put_object(Bucket=BUCKET, Key="lost/nodes.parquet", Body=(tables / "nodes.parquet").read_bytes())
    file = UrlFile(f"s3://{BUCKET}/lost/", "edges.parquet")
    assert str(file) == f"s3://{BUCKET}/lost/edges.parquet"
    assert opened(file).read(4) == b"PAR1" and opened(tables) is tables

    def losing(*arguments):
        s3.delete_object(Bucket=BUCKET, Key="lost/edges.parquet")
        return settle(*arguments)

    settle = run.settle_labels
    monkeypatch.setattr(run, "settle_labels", losing)
    with pytest.raises(RunError, match=r"lost/edges\.parquet is gone, or has changed"):
        mr.convert(f"s3://{BUCKET}/lost", "x", options=OPTIONS, verbose=False)
    assert [p.name for p in here.iterdir() if p.suffix != ".jsonl"] == [".ingest-x"]


def test_an_upload_that_fails_leaves_no_manifest(here, s3, monkeypatch):
    import obstore

    real, puts = obstore.put, []

    def put(*arguments, **options):
        puts.append(arguments[1])
        if len(puts) > 3:
            raise OSError("HTTP error: the line is cut")
        return real(*arguments, **options)

    monkeypatch.setattr(obstore, "put", put)
    with pytest.raises(RunError, match="does not answer"):
        mr.convert("sbm:nodes=100,classes=2", f"s3://{BUCKET}/cut", verbose=False)
    assert MANIFEST not in puts and not holds_store(f"s3://{BUCKET}/cut")
    assert not list(here.glob(f"{UPLOAD}*"))
    monkeypatch.setattr(obstore, "put", real)
    mr.convert("sbm:nodes=100,classes=2", f"s3://{BUCKET}/cut", verbose=False)
    assert holds_store(f"s3://{BUCKET}/cut")
