"""Whatever is wrong with a sampler's numbers, with seeds, weights, or a store of samples is told in a sentence, and
ends with code 2."""

import contextlib
import io
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline import cli

SBM = "sbm:nodes=60,classes=2,degree=4,features=3"
JOB = ("--epochs", "1", "--batch-size", "2", "--set", "threads=1", "--set", "queue.bulk_size=2")
FANOUT = ("--fanout", "3,2")
WEIGHTED = ("--set", "sampler.weighted=true")
LADIES = ("--set", "sampler.name=ladies")
GOOD = {
    "edge_index": np.array([[0, 1, 1, 2], [1, 0, 2, 1]]),
    "y": np.array([0, 1, 0]),
    "x": np.ones((3, 2), np.float32),
    "edge_weight": np.ones(4),
    "train_idx": np.array([0]),
    "val_idx": np.array([1]),
    "test_idx": np.array([2]),
}
BAD_DATA = {
    "negative": {"edge_weight": np.array([1.0, -2.0, -2.0, 1.0])},
    "nan": {"edge_weight": np.array([1.0, np.nan, 1.0, 1.0])},
    "infinite": {"edge_weight": np.array([1.0, np.inf, 1.0, 1.0])},
    "above": {"train_idx": np.array([0, 3])},
    "below": {"train_idx": np.array([-1, 0])},
}


def millrace(*words: str | Path) -> tuple[int, str]:
    """The command in this process: its exit code, and what it said on standard error."""
    err, before = io.StringIO(), sys.argv
    sys.argv = ["millrace", *map(str, words)]
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as left,
        ):
            cli.main()
    finally:
        sys.argv = before
    return int(left.value.code or 0), err.getvalue()


def refused(phrase: str, *words: str | Path) -> None:
    code, err = millrace(*words)
    assert code == 2, err
    assert re.search(phrase, err.splitlines()[-1]), err
    assert "Traceback" not in err


def shard(bulk: Path) -> Path:
    (file,) = [p for p in (bulk / "arrays" / "rows" / "c").rglob("*") if p.is_file()]
    return file


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    """A good store: three minibatches in two bulks."""
    folder = tmp_path_factory.mktemp("good") / "samples"
    code, err = millrace("sample", "--dataset", SBM, *JOB, *FANOUT, "--out", folder)
    assert code == 0, err
    assert {p.name for p in (folder / "epoch-0").iterdir()} == {"bulk-0", "bulk-1"}
    return folder


@pytest.mark.parametrize("command", ["run", "sample"])
@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (("--fanout", "3,0"), r"fanout \[3, 0\] holds 0; expected 1 to 65536, or -1"),
        (("--fanout", "3,-2"), r"fanout \[3, -2\] holds -2; expected 1 to 65536, or -1"),
        (("--fanout", "3,2", "--set", "model.layers=3"), r"layers is 3 but sampler.fanout \[3, 2\] has 2 numbers"),
        (("--fanout", "3,2,1", "--set", "model.layers=2"), r"layers is 2 but sampler.fanout \[3, 2, 1\] has 3 numbers"),
        ((*LADIES, "--set", "sampler.sizes=[5,0]"), r"sizes \[5, 0\] holds 0; expected 1 to"),
        ((*LADIES, "--set", "sampler.sizes=[-5]"), r"sizes \[-5\] holds -5; expected 1 to"),
        (
            (*LADIES, "--set", "sampler.sizes=[5]", "--set", "model.layers=2"),
            r"layers is 2 but sampler.sizes \[5\] has 1 numbers",
        ),
    ],
)
def test_numbers_of_a_sampler(tmp_path, command, words, phrase):
    refused(phrase, command, "--dataset", SBM, *JOB, *words, "--out", tmp_path / "new")


@pytest.mark.parametrize("command", ["run", "sample"])
@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("negative", r"2 edge weights are negative \(least: -2.0\)"),
        ("nan", "1 edge weight is NaN or infinite"),
        ("infinite", "1 edge weight is NaN or infinite"),
        ("above", r"train split holds ids in \[0, 3\], out of range: expected \[0, 3\)"),
        ("below", r"train split holds ids in \[-1, 0\], out of range: expected \[0, 3\)"),
    ],
)
def test_weights_and_seeds_of_a_file(tmp_path, command, name, phrase):
    path = tmp_path / f"{name}.npz"
    np.savez(path, **{**GOOD, **BAD_DATA[name]})
    refused(phrase, command, "--dataset", path, *JOB, *FANOUT, *WEIGHTED, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_weighted_sampler_without_weights(tmp_path):
    words = ("--dataset", SBM, *JOB, *FANOUT, *WEIGHTED)
    for command in ("sample", "run"):
        refused(
            "the sampler is weighted but the graph has no edge weights; give",
            command,
            *words,
            "--out",
            tmp_path / "new",
        )


@pytest.mark.parametrize(
    ("train", "phrase"),
    [([0, 60], r"outside \[0, 60\)"), ([-1, 0], r"outside \[0, 60\)"), ([1, 1], "not strictly ascending: it repeats")],
)
def test_seeds_of_a_dataset_made_in_python(tmp_path, train, phrase):
    dataset = mr.open_dataset(SBM)
    empty = np.empty(0, np.int64)
    bad = replace(dataset, split=mr.Split(np.array(train), empty, empty))
    with pytest.raises(mr.InputError, match=phrase):
        mr.run(bad, out=tmp_path / "run", epochs=1, fanout=(3, 2))
    assert not (tmp_path / "run").exists()


def damaged(samples: Path, folder: Path, how: str) -> Path:
    store = folder / "samples"
    shutil.copytree(samples, store)
    bulk = store / "epoch-0" / "bulk-0"
    file = shard(bulk)
    data = bytearray(file.read_bytes())
    if how == "a flipped bit":
        data[len(data) // 3] ^= 4
        file.write_bytes(data)
    elif how == "a truncated shard":
        file.write_bytes(data[: len(data) // 2])
    elif how == "an empty shard":
        file.write_bytes(b"")
    elif how == "a lost shard":
        file.unlink()
    elif how == "a bulk's lost manifest":
        (bulk / "manifest.json").unlink()
    elif how == "the store's lost manifest":
        (store / "manifest.json").unlink()
    elif how == "the store's truncated manifest":
        manifest = store / "manifest.json"
        manifest.write_text(manifest.read_text()[:40])
    return store


@pytest.mark.parametrize(
    ("how", "phrase"),
    [
        ("a flipped bit", "epoch-0/bulk-0: minibatch 0 is damaged .*; remove the folder and sample it again"),
        ("a truncated shard", "epoch-0/bulk-0.*(damaged|cannot be opened|the manifest says)"),
        ("an empty shard", "epoch-0/bulk-0.*(damaged|cannot be opened|the manifest says)"),
        ("a lost shard", "epoch-0/bulk-0: array 'rows' lacks 1 of its [0-9]+ files; make the store again"),
        ("a bulk's lost manifest", r"epoch-0/bulk-0 holds no manifest.json"),
        ("the store's lost manifest", r"samples holds (no manifest.json|none)"),
        ("the store's truncated manifest", r"manifest.json is damaged .*; make the store again"),
    ],
)
def test_damaged_samples(tmp_path, samples, how, phrase):
    store = damaged(samples, tmp_path, how)
    refused(phrase, "train", "--dataset", SBM, *JOB, *FANOUT, "--samples", store, "--out", tmp_path / "run")
    refused(phrase, "inspect", store, "--minibatch", "0,0")
    with pytest.raises(mr.StoreError, match=phrase):
        list(mr.open_queue(store))


@pytest.mark.parametrize("command", ["train", "sample"])
@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (("--dataset", f"{SBM},seed=1"), r"samples was made from something else; these differ: graph \("),
        (
            ("--dataset", SBM, "--set", "sampler.replace=true"),
            r"samples was made from something else; these differ: sampler \(",
        ),
        (("--dataset", SBM, "--split", "random:4,3"), r"samples was made from something else; these differ: seeds \("),
    ],
)
def test_samples_of_something_else(tmp_path, samples, command, words, phrase):
    into = ("--samples", samples, "--out", tmp_path / "run") if command == "train" else ("--out", samples)
    before = {p: p.stat().st_mtime_ns for p in samples.rglob("*") if p.is_file()}
    refused(phrase, command, *JOB, *FANOUT, *words, *into)
    assert {p: p.stat().st_mtime_ns for p in samples.rglob("*") if p.is_file()} == before
