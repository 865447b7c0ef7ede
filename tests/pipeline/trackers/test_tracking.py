"""Trackers receive the events of a run, and none of them can stop it."""

import json
import threading
import time

import pytest

import millrace as mr
from millrace.pipeline.telemetry.events import EpochDone, Logged, Note, Pulse, QueueLevel, StepDone
from millrace.pipeline.trackers import tracking
from millrace.pipeline.trackers.base import TRACKERS, Tracker
from millrace.pipeline.trackers.tracking import numbers_of
from millrace.storage.errors import InputError, MissingExtraError

JOB = {"fanout": [3, 2], "hidden": 8, "epochs": 3, "batch_size": 32, "threads": 1, "verbose": False}


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=200,classes=3,degree=6,features=4,train=0.4")


@pytest.fixture
def register(monkeypatch):
    """Register a class as a tracker of this test."""

    def add(kind):
        monkeypatch.setitem(TRACKERS._entries, kind.name, kind)
        return kind

    monkeypatch.setattr(TRACKERS, "_entries", dict(TRACKERS._entries))
    return add


def diary(register, name="diary"):
    """A tracker that writes down what it is told; its class has the list."""

    class Diary(Tracker):
        package, install = "json", "pip install nothing"
        told: list = []  # noqa: RUF012

        def start(self, run):
            self.told.append(("start", run.before, dict(run.config)))
            return run.before or f"{run.name}-1"

        def log(self, values, axis, at):
            self.told.append((axis, at, dict(values)))

        def note(self, text):
            self.told.append(("note", text))

        def end(self, status, files):
            self.told.append(("end", status, [f.name for f in files]))

    Diary.name = name
    return register(Diary)


def test_a_tracker_hears_the_whole_run(sbm, register, tmp_path):
    kind = diary(register)
    result = mr.run(sbm, out=tmp_path / "run", track="diary", metrics="macro_f1", **JOB)
    start, *middle, end = [entry for entry in kind.told if entry[0] != "note"]
    assert any(entry[0] == "note" and "Generated" in entry[1] for entry in kind.told)
    assert start[1] is None and start[2]["train.batch_size"] == 32 and start[2]["model.hidden"] == 8
    assert end == ("end", "done", ["job.toml", "result.json", "model.pt"])
    epochs = [values for axis, _, values in middle if axis == "epoch" and "train_loss" in values]
    assert [at for axis, at, values in middle if axis == "epoch" and "train_loss" in values] == [1, 2, 3]
    assert epochs[-1]["train_loss"] == result.train_loss
    assert max(e["val_accuracy"] for e in epochs) == result.val_accuracy
    assert {"epoch_seconds", "val_macro_f1"} <= epochs[0].keys()
    tested = middle[-1]
    assert tested == (
        "epoch",
        3,
        {"test_accuracy": result.test_accuracy, "test_macro_f1": result.test_metrics["macro_f1"]},
    )
    seconds = [values for axis, _, values in middle if axis == "second"]
    assert seconds[-1]["rank_0/rss_mib"] > 1
    assert json.loads((tmp_path / "run" / "trackers.json").read_text()) == {"diary": "run-1"}


def test_a_stopped_run_goes_on_under_the_same_name(sbm, register, tmp_path):
    kind = diary(register)
    asked = iter(range(100))
    mr.run(sbm, out=tmp_path / "run", track=["diary"], stop=lambda: next(asked) > 3, **JOB)
    assert kind.told[-1] == ("end", "stopped", ["job.toml", "result.json", "model.pt"])
    kind.told.clear()
    mr.run(sbm, out=tmp_path / "run", track=["diary"], resume=True, **JOB)
    assert kind.told[0][:2] == ("start", "run-1") and kind.told[-1][1] == "done"
    # A tracker may also be left out, or come later.
    kind.told.clear()
    mr.run(sbm, out=tmp_path / "run", resume=True, **{**JOB, "epochs": 4}, track=[])
    assert not kind.told


def test_a_failed_run_is_a_failed_one(sbm, register, tmp_path):
    kind = diary(register)

    class Broken(mr.Callback):
        def on_epoch(self, run):
            raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError, match="of the user's"):
        mr.run(sbm, out=tmp_path / "run", track="diary", callbacks=[Broken()], **JOB)
    assert kind.told[-1] == ("end", "failed", [])


@pytest.mark.parametrize("where", ["start", "log", "end"])
@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), SystemExit(1)])
def test_a_tracker_that_fails_is_a_note(sbm, register, tmp_path, where, error):
    kind = diary(register, "broken")

    def fail(*args):
        raise error

    setattr(kind, where, fail)
    notes = []
    result = mr.run(sbm, out=tmp_path / "run", track="broken", emit=notes.append, **JOB)
    plain = mr.run(sbm, out=tmp_path / "plain", **JOB)
    assert result.parameters_sha256 == plain.parameters_sha256 and result.status == "done"
    found = [e.text for e in notes if isinstance(e, Note) and "tracker" in e.text]
    assert len(found) == 1 and found[0].startswith("tracker 'broken' failed, and the run goes on without it")


def test_a_tracker_that_hangs_is_left_behind(sbm, register, tmp_path, monkeypatch):
    kind, go_on = diary(register, "hanging"), threading.Event()
    kind.log = lambda self, *args: go_on.wait(250)
    monkeypatch.setattr(tracking, "END_S", 0.3)
    monkeypatch.setattr(tracking, "MOST_WAITING", 2)
    notes, start = [], time.monotonic()
    result = mr.run(sbm, out=tmp_path / "run", track="hanging", emit=notes.append, **JOB)
    go_on.set()
    assert result.status == "done" and time.monotonic() - start < 200
    assert [e.text for e in notes if isinstance(e, Note) and "has not taken all within 0.3 s" in e.text]


def test_events_become_numbers():
    assert numbers_of(StepDone(1, 2, 10, 0.5, 8), 0.0) == ("step", 13, {"step_loss": 0.5})
    epoch = EpochDone(4, 9, float("nan"), None, 1.5, False, metrics={"loss": 0.25})
    assert numbers_of(epoch, 0.0) == ("epoch", 5, {"epoch_seconds": 1.5, "val_loss": 0.25})
    assert numbers_of(Logged(0, 3, {"gap": 1.0, "word": "x"}), 0.0) == ("epoch", 1, {"gap": 1.0})
    assert numbers_of(Note("text"), 0.0) == "text"
    assert numbers_of(QueueLevel(1, 2, 3, 4, 5.0), 0.0) is None
    pulse = Pulse(2, "", 0, 0, None, 1, 1, {}, {"network": {"features": 2**20, "gradients": 2**20}}, {}, 2**21, {}, {})
    axis, at, values = numbers_of(pulse, 7.9)
    assert (axis, at) == ("second", 7)
    assert values["rank_2/network_mib"] == 2 and values["rank_2/rss_mib"] == 2 and values["rank_2/store_mib"] == 0


def test_unknown_and_missing_trackers_are_refused_before_anything_is_written(sbm, register, tmp_path):
    with pytest.raises(InputError, match=r"track is 'tensorbord'; expected one of .*did you mean 'tensorboard'"):
        mr.run(sbm, out=tmp_path / "run", track="tensorbord", **JOB)
    kind = diary(register, "absent")
    kind.package, kind.install = "no_such_package", "pip install '.[absent]'"
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[absent\]'") as caught:
        mr.run(sbm, out=tmp_path / "run", track="absent", **JOB)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert {"tensorboard", "mlflow", "wandb"} <= set(TRACKERS)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[3]"])
def test_a_damaged_record_of_trackers_is_said_and_begins_another_run(sbm, register, tmp_path, text):
    kind = diary(register)
    mr.run(sbm, out=tmp_path / "run", track=["diary"], **JOB)
    (tmp_path / "run" / tracking.STATE).write_text(text)
    told = []
    mr.run(sbm, out=tmp_path / "run", track=["diary"], resume=True, emit=told.append, **{**JOB, "epochs": 4})
    assert [t[1] for t in kind.told if t[0] == "start"] == [None, None]
    assert any("trackers.json is damaged" in e.text for e in told if isinstance(e, Note))
