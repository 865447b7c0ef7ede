"""The record of `millrace predict` for each kind of run, and the checks that come before it computes anything."""

import json

import pytest

import millrace as mr
from millrace.pipeline.inference.files import FileRequest
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

JOB = {"epochs": 1, "seed": 3, "threads": 1, "fanout": [2], "layers": 1, "batch_size": 64, "verbose": False}
DATA = {
    "nodes": ("sbm:nodes=60,classes=3,degree=4,features=4", {}),
    "links": ("sbm:nodes=60,classes=3,degree=4,features=4", {"task": "link", "link": {"width": 4}}),
    "edges": ("payments:accounts=60,degree=5", {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, (dataset, keys) in DATA.items():
        mr.run(dataset, out=folder / name, **JOB, **keys)
    return folder


@pytest.mark.parametrize(
    ("run", "flags", "counts", "said"),
    [
        ("nodes", [], {"nodes": 60}, "60 nodes of sbm"),
        ("nodes", ["--nodes", "3,1"], {"nodes": 2}, "2 nodes of sbm"),
        ("links", ["--embeddings", "--nodes", "0"], {"nodes": 1}, "1 node of sbm"),
        ("links", ["--pairs"], {"pairs": 2}, "2 pairs of sbm"),
        ("links", ["--top", 2, "--nodes", "5,6"], {"top": 2, "sources": 2, "pairs": 4}, "4 pairs of 2 sources of sbm"),
        ("edges", [], {"edges": 300}, "300 edges of payments"),
    ],
)
def test_the_record_has_the_run_the_file_and_the_counts(runs, tmp_path, run, flags, counts, said):
    pairs, out = tmp_path / "pairs.csv", tmp_path / "out.parquet"
    pairs.write_text("src,dst\n0,1\n2,3\n")
    words = [*flags, pairs] if flags == ["--pairs"] else flags
    code, printed, error = command("predict", runs / run, "--out", out, *words, "--json")
    assert code == 0, error
    record, name = json.loads(printed), DATA[run][0]
    scale = {"scale": record["scale"]} if "pairs" in counts else {}  # of links' scores
    assert list(record) == ["run", "model", "dataset", *counts, *scale, "out", "seconds"]
    known = {"run": str(runs / run), "model": record["model"], "dataset": record["dataset"], **counts, "out": str(out)}
    known |= scale
    assert {**record, "seconds": 0} == {**known, "seconds": 0} and record["dataset"] == name
    out.unlink()
    code, printed, _ = command("predict", runs / run, "--out", out, *words)
    assert code == 0 and printed.startswith(said) and f"by {record['model']} in {out}" in printed


@pytest.mark.parametrize("flags", [[], ["--pairs", "pairs.csv"], ["--top", 1], ["--embeddings"]])
def test_a_file_that_exists_is_refused_before_the_run_is_opened(tmp_path, flags):
    (out := tmp_path / "out.npy").write_text("kept")
    code, _, error = command("predict", tmp_path / "no_run", "--out", out, *flags)
    assert code == 2 and f"{out} already exists" in error and out.read_text() == "kept"


def test_embeddings_need_a_kind_of_file_that_holds_rows(tmp_path):
    request = FileRequest(tmp_path / "no_run", tmp_path / "out.csv")
    with pytest.raises(InputError, match=r"out\.csv"):
        request.write(lambda trained: {}, embeddings=True)
    with pytest.raises(InputError, match="no_run"):
        request.write(lambda trained: {})
