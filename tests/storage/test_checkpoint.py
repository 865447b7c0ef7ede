"""Checkpoints: whole or absent, of this job or refused, and one damaged file is not the end."""

import errno
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch

from millrace.storage import checkpoint as module
from millrace.storage.checkpoint import CheckpointStore, Cursor
from millrace.storage.errors import InputError, RunError, StoreError

JOB = {"graph": "g", "seed": "0"}


def state(step):
    return {
        "model": {"w": torch.full((3,), float(step))},
        "step": step,
        "lr": 0.5,
        "name": "sage",
        "best": None,
        "done": False,
        "rows": [1, (2, 3)],
    }


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "c", JOB)


def names(store):
    return sorted(p.name for p in store.path.iterdir())


def test_none_at_all(store):
    assert store.latest() is None
    assert store.cursors() == []


def test_round_trip(store):
    store.save(Cursor(0, 7), state(7))
    cursor, loaded = CheckpointStore(store.path, JOB).latest()
    assert cursor == Cursor(0, 7)
    assert torch.equal(loaded["model"].pop("w"), torch.full((3,), 7.0))
    assert loaded == {**state(7), "model": {}}


def test_an_optimizer_and_a_model_go_through(store):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    store.save(
        Cursor(0, 1), {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    )
    _, loaded = store.latest()
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(loaded["model"])
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(loaded["optimizer"])
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_cursors_are_ordered_by_number_not_by_name(store):
    for cursor in [Cursor(0, 9), Cursor(0, 10), Cursor(1, 2)]:
        store.save(cursor, state(cursor.step))
        assert store.latest()[0] == cursor
    assert store.cursors() == [Cursor(0, 10), Cursor(1, 2)]


@pytest.mark.parametrize("keep", [1, 3])
def test_keeps_the_last_few(tmp_path, keep):
    store = CheckpointStore(tmp_path / "c", JOB, keep=keep)
    for step in range(5):
        store.save(Cursor(0, step), state(step))
    assert names(store) == [f"step-0-{s}" for s in range(5 - keep, 5)]


def test_the_same_cursor_may_be_saved_again(store):
    store.save(Cursor(0, 1), state(1))
    store.save(Cursor(0, 1), state(2))
    assert store.latest()[1]["step"] == 2
    assert names(store) == ["step-0-1"]


def break_file(folder):
    data = bytearray((folder / "state.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "state.pt").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_file, "does not match its checksum"),
        (lambda f: (f / "state.pt").write_bytes(b""), "does not match its checksum"),
        (lambda f: (f / "state.pt").unlink(), "missing"),
        (lambda f: (f / "manifest.json").unlink(), r"holds no manifest\.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "damaged"),
    ],
)
def test_a_damaged_newest_one_is_passed_over(store, damage, message):
    store.save(Cursor(0, 1), state(1))
    store.save(Cursor(0, 2), state(2))
    damage(store.path / "step-0-2")
    with pytest.warns(UserWarning, match=message):
        cursor, loaded = store.latest()
    assert (cursor, loaded["step"]) == (Cursor(0, 1), 1)
    store.save(Cursor(0, 1), state(1))
    assert names(store) == ["step-0-1"], "what lies beyond the line that goes on is dropped"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.latest()[0] == Cursor(0, 1)


def test_when_all_are_damaged_nothing_starts_over_silently(store):
    for step in (1, 2):
        store.save(Cursor(0, step), state(step))
        break_file(store.path / f"step-0-{step}")
    with (
        pytest.warns(UserWarning, match="skipped a checkpoint"),
        pytest.raises(StoreError, match=r"has 2 checkpoints, and none .*newest: .*step-0-2.*does not match"),
    ):
        store.latest()


def test_another_job_is_refused_by_its_keys(store):
    store.save(Cursor(0, 1), state(1))
    other = CheckpointStore(store.path, {"graph": "g", "seed": "1", "model": "m"})
    for act in (other.latest, lambda: other.save(Cursor(0, 2), state(2))):
        with pytest.raises(StoreError, match=r"differ: model .*seed \(store 0, wanted 1\)"):
            act()
    assert names(store) == ["step-0-1"]


def test_leftovers_are_removed_by_the_writer_only(store):
    store.save(Cursor(0, 1), state(1))
    left = store.path / ".writing-step-0-2-0badf00d"
    left.mkdir()
    reader = CheckpointStore(store.path, JOB, read_only=True)
    assert left.exists()
    assert reader.latest()[0] == Cursor(0, 1)
    with pytest.raises(AssertionError, match="to read"):
        reader.save(Cursor(0, 2), state(2))
    CheckpointStore(store.path, JOB)
    assert names(store) == ["step-0-1"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": {"b": [0, np.zeros(2)]}}, r"state\['a'\]\['b'\]\[1\] is a ndarray"),
        ({"a": np.float64(1)}, r"state\['a'\] is a float64"),
        ({"a": Cursor(0, 0)}, "is a Cursor"),
        ({(0, 1): 1}, r"has the key \(0, 1\); expected a str or an int"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(store, bad, message):
    with pytest.raises(InputError, match=message):
        store.save(Cursor(0, 0), bad)
    assert store.latest() is None


def test_what_is_let_through_loads_without_running_code(store):
    store.save(Cursor(0, 0), {"a": OrderedDict(b=torch.nn.Parameter(torch.ones(1))), 3: ()})
    assert set(store.latest()[1]) == {"a", 3}


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("PytorchStreamWriter failed")]
)
def test_a_full_disk_is_a_sentence_and_the_last_one_stays(store, monkeypatch, error):
    store.save(Cursor(0, 1), state(1))

    def full(*args):
        raise error

    monkeypatch.setattr(module.torch, "save", full)
    with pytest.raises(RunError, match=rf"cannot write the checkpoint .*{error}.*free space".replace("[", "\\[")):
        store.save(Cursor(0, 2), state(2))
    assert names(store) == ["step-0-1"]
    assert store.latest()[0] == Cursor(0, 1)


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        CheckpointStore(tmp_path / "file", JOB).save(Cursor(0, 0), state(0))


def test_keep_at_least_one(tmp_path):
    with pytest.raises(InputError, match="keep=0"):
        CheckpointStore(tmp_path, JOB, keep=0)


def test_a_reader_takes_over_from_a_writer_that_is_gone(store):
    store.save(Cursor(0, 1), state(1))
    left = store.path / ".writing-step-0-2-dead"
    left.mkdir()
    reader = CheckpointStore(store.path, JOB, keep=store.keep, read_only=True)
    assert left.exists()
    writer = reader.taken_over()
    assert not left.exists()
    writer.save(Cursor(0, 2), state(2))
    assert reader.latest()[0] == Cursor(0, 2)
    assert store.taken_over() is store
