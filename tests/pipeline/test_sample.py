"""`mr.sample`: what the command makes, of data in memory too, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.telemetry.events import Note
from millrace.stages.partition.given import Given
from millrace.storage.errors import InputError, StoreError
from millrace.tests.contracts.command import command
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.pipeline.test_packing import JOB, trained

FLAGS = ["--fanout", "4,3", "--batch-size", "16", "--epochs", "2", "--set", "queue.bulk_size=3"]
OPTIONS: dict[str, Any] = {"fanout": [4, 3], "batch_size": 16, "epochs": 2, "queue": {"bulk_size": 3}}


def drawn(store: Path) -> list[Any]:
    return [(m.epoch, m.index, minibatch_digest(m)) for m in mr.open_queue(store)]


@pytest.mark.parametrize("given", ["name", "in memory", "store", "config", "system"])
def test_samples_are_those_of_the_command(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = command("sample", "--dataset", JOB["dataset"], *FLAGS, "--features", "--out", "told")
    assert code == 0, err
    data: Any = JOB["dataset"]
    if given in ("in memory", "store"):
        data = mr.open_dataset(data)
    if given == "store":
        mr.write_dataset(tmp_path / "data", data)
        data = "data"
    options = OPTIONS
    if given == "config":
        data, options = None, {"config": JOB | {"model": {"name": "gat", "hidden": 16}}}
    if given == "system":
        options = {**OPTIONS, "system": mr.bulk(mr.NeighborSampler((4, 3))), "model": mr.GraphSAGE(hidden=8, layers=2)}
        del options["fanout"]
    notes = list[str]()
    made = mr.sample(
        data,
        out="samples",
        features="own",
        emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None,
        **options,
    )
    assert drawn(tmp_path / "samples") == drawn(tmp_path / "told")
    assert made["minibatches"] == 2 * 8 and made["features"] == "float32" and made["packed_bytes"] > 0
    assert any("beside the samples" in text for text in notes)
    # The same call goes on: all is there.
    again = mr.sample(data, out="samples", features="own", verbose=False, **options)
    assert again["edges"] == again["packed_bytes"] == 0
    live = trained(tmp_path / "live")
    assert trained(tmp_path / "run", {k: v for k, v in JOB.items() if k != "dataset"}, samples="samples") == live


def test_what_would_not_be_used_is_refused(tmp_path: Path) -> None:
    for unused, why in (
        ({"partition": {"owners": "nofile.npy"}}, "partition.owners is"),
        ({"reuse": "cycle"}, "reuse"),
    ):
        with pytest.raises(InputError, match=f"{why}.* leave it out"):
            mr.run(JOB["dataset"], out=tmp_path / "r", verbose=False, **unused)
    code, _, err = command("run", "--dataset", JOB["dataset"], "--set", "partition.passes=3", "--out", tmp_path / "r")
    assert code == 2 and "partition.passes is set, but nothing is cut" in err and not (tmp_path / "r").exists()
    with pytest.raises(InputError, match=r"partition.method is set, but nothing"):
        mr.sample(JOB["dataset"], out=tmp_path / "s", verbose=False, partition={"method": "leiden"})
    with pytest.raises(InputError, match="features is 'int4'; expected one of"):
        mr.sample(JOB["dataset"], out=tmp_path / "s", features="int4", verbose=False)
    with pytest.raises(InputError, match="system 'sar' does not sample minibatches"):
        mr.sample(JOB["dataset"], out=tmp_path / "s", system="sar", verbose=False)
    assert not (tmp_path / "s").exists()
    mr.sample(JOB["dataset"], out=tmp_path / "s", verbose=False, **OPTIONS)
    with pytest.raises(StoreError, match="seed"):
        mr.sample(JOB["dataset"], out=tmp_path / "s", verbose=False, seed=3, **OPTIONS)


def test_options_are_those_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What concerns training is left to it, in code too; a cut that would be lost is refused."""
    mr.sample(JOB["dataset"], out=tmp_path / "s", verbose=False, loss=len, optimizer=len, metrics=[len], **OPTIONS)
    plain = mr.sample(JOB["dataset"], out=tmp_path / "s", verbose=False, **OPTIONS)
    assert plain["edges"] == 0
    cut = mr.bulk(mr.NeighborSampler((4, 3)), topology="partitioned", partitioner=Given(np.zeros(300, np.int32)))
    with pytest.raises(InputError, match=r"samples take the owners of nodes from a file: set partition\.owners"):
        mr.sample(JOB["dataset"], out=tmp_path / "t", verbose=False, system=cut)
    # A folder that is called as the dataset in memory is not read.
    data = replace(mr.open_dataset(JOB["dataset"]), name="data", notes=("A note.",))
    monkeypatch.chdir(tmp_path)
    mr.write_dataset("data", mr.open_dataset("sbm:nodes=300,classes=3,train=0.4,features=8", seed=5))
    notes = list[str]()
    mr.sample(data, out="u", emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None, **OPTIONS)
    assert "A note." in notes and drawn(tmp_path / "u") == drawn(tmp_path / "s")
