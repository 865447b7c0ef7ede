"""Weights & Biases without a network: an offline run in the run's folder."""

import json
import time
from importlib.util import find_spec

import pytest

import millrace as mr

# Looked up, not imported: every test process collects this file.
pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: pip install '.[wandb]'")
BLOCK = 1 << 15
"""Bytes of a block of LevelDB's log."""
HEADER = 7
"""Bytes in front of each record (checksum, length, kind), and in front of the file."""
JOB = {"fanout": [3, 2], "hidden": 8, "epochs": 3, "batch_size": 32, "threads": 1, "verbose": False}


def records(log: bytes) -> bytes:
    """The records of a run's log one after the other, those that go on in the next block joined."""
    found, at = b"", HEADER
    while at < len(log):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length = int.from_bytes(log[at + 4 : at + 6], "little")
        found += log[at + HEADER : at + HEADER + length]
        at += HEADER + length
    return found


def test_an_offline_run_is_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "own")
    notes = []
    spec = "sbm:nodes=200,classes=3,degree=6,features=4,train=0.4"
    result = mr.run(spec, out=tmp_path / "run", track="wandb", emit=lambda e: notes.append(str(e)), **JOB)
    assert not [n for n in notes if "tracker" in n]
    # Strings lie in the records as they are.
    logged = {"train_loss", "test_accuracy", "train.batch_size", "own"}
    logged |= {json.dumps(result.train_loss), json.dumps(result.test_accuracy)}
    [path] = (tmp_path / "run").rglob("*.wandb")
    # The process that writes the log ends it after finish() has returned.
    until = time.monotonic() + 60
    while missing := {text for text in logged if text.encode() not in records(path.read_bytes())}:
        assert time.monotonic() < until, missing
        time.sleep(0.1)
    assert {p.name for p in path.parent.rglob("*") if p.is_file()} >= {"job.toml", "result.json", "model.pt"}
    assert json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"] in path.name
