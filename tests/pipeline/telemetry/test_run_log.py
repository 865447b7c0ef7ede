"""The log of a run, from events as they are written and as they are damaged."""

import json
import math

import pytest

from millrace.pipeline.telemetry.run_log import STAGES, RankLog, RunLog, Series, read_events

PULSE = {
    "rank": 0, "stage": "fetch", "epoch": 0, "step": 0, "loss": 0.5, "steps": 1, "edges": 9, "rss_bytes": 100,
    "queue": {"bulks": 1, "bytes": 30, "bound": 90}, "hot": {}, "sent_to": {}, "bytes": {"network": {"control": 7}},
    "seconds": {"total": 1.0, "fetch": 0.5},
}  # fmt: skip
EPOCH = {"epoch": 0, "epochs": 9, "train_loss": 0.5, "val_accuracy": 0.7, "seconds": 2.0, "best": True, "metrics": {}}


def test_a_series_without_a_limit_keeps_every_row():
    series = Series(["a"])
    for i in range(1000):
        series.add(float(i), {"a": i})
    assert len(series) == 1000 and series["a"][-1] == 999 and not series.recent and series.ends(10.0) is None


def test_lives_of_a_rank_are_told_apart_and_counted_together():
    log = RankLog()
    for steps, total, sent in ((1, 1.0, 7), (5, 3.0, 70), (0, 2.0, 0), (2, 4.0, 60)):
        pulse = {"steps": steps, "seconds": {"total": total}, "bytes": {"network": {"control": sent}}}
        log.add(total, {**PULSE, **pulse, "edges": 10 * steps})
    assert [life["steps"] for life in log.lives] == [5, 2]
    assert (log.in_all("steps"), log.in_all("edges"), log.most_bytes("network", "control")) == (7, 70, 70)
    log.add(5.0, {**PULSE, "steps": 2, "seconds": {"total": 5.0}}, is_new_life=True)
    assert len(log.lives) == 3 and len(log.beats) == 5 == len(log.queue)
    log.add(6.0, {**PULSE, "steps": 3, "seconds": {"total": 6.0}, "sent_to": {"network": {"features": (0, 4)}}})
    assert log.lives[-1]["sent_to"] == {"network": {"features": [0, 4]}}, "on Dask's way lists become tuples"


@pytest.mark.parametrize("loss", [math.nan, math.inf, None, "x"])
def test_a_loss_that_is_no_number_is_none(loss):
    log = RankLog()
    log.add(1.0, {**PULSE, "loss": loss})
    assert log.lives[-1]["loss"] is None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Pulse", {"rank": -1}), ("Pulse", {"rank": 1 << 40}), ("Pulse", {"steps": 0.5}), ("Pulse", {"seconds": {}}),
        ("Pulse", {"queue": {"bulks": 1}}), ("Pulse", {"bytes": []}), ("EpochDone", {"seconds": math.nan}),
        ("EpochDone", {"epoch": None}), ("EpochDone", {"train_loss": "x"}), ("StepDone", {}), ("Note", {}),
    ],
)  # fmt: skip
def test_a_damaged_event_is_refused_and_leaves_no_rank(kind, changes):
    log = RunLog()
    with pytest.raises((KeyError, TypeError, ValueError)):
        log.take(kind, 1.0, {**(PULSE if kind == "Pulse" else EPOCH if kind == "EpochDone" else {}), **changes})
    assert not log.ranks and not log.epochs and log.first is None


def test_stages_last_from_begin_to_end_or_as_long_as_their_end_says():
    log = RunLog()
    log.take("StageAdvanced", 1.0, {"stage": "evaluate", "done": 1, "total": 4})
    log.take("StageStarted", 2.0, {"stage": "train", "text": "training", "total": 3})
    assert log.doing == "training"
    log.take("StageEnded", 5.0, {"stage": "train", "seconds": 3.0, "text": "over"})
    log.take("StageEnded", 6.0, {"stage": "evaluate", "seconds": 0.5, "text": ""})
    log.take("StageEnded", 7.0, {"stage": "partition", "seconds": 2.0, "text": ""})
    found = [(s.stage, s.text, s.begin, s.end, s.total) for s in log.spans]
    assert found == [
        ("evaluate", "evaluate", 5.5, 6.0, 4),
        ("train", "training", 2.0, 5.0, 3),
        ("partition", "partition", 5.0, 7.0, None),
    ]
    assert log.doing == ""


def test_a_bounded_log_has_one_span_of_each_stage():
    log = RunLog(10)
    for number in range(3 * STAGES):
        log.take("StageStarted", float(number), {"stage": f"s{number % (2 * STAGES)}", "text": "x"})
    assert [s.stage for s in log.spans] == [f"s{n}" for n in range(STAGES)] and log.spans[0].begin == 2 * STAGES


def test_bulks_count_on_when_sampling_begins_again():
    log = RunLog()
    for sampled in (2, 5, 1, 3):
        log.take("QueueLevel", 1.0, {"bulks": 1, "bytes": 2, "bound": 9, "sampled": sampled, "seconds": sampled / 2})
    assert log.sampled == {"bulks": 8, "seconds": 4.0} and log.level["sampled"] == 3


def test_a_file_is_read_past_lines_that_are_no_events(tmp_path):
    path = tmp_path / "metrics.jsonl"
    events = [
        ("StageAdvanced", {"stage": "evaluate", "done": 1, "total": 4}),
        ("StageStarted", {"stage": "train", "text": "training"}), ("Pulse", PULSE), ("EpochDone", EPOCH),
        ("EpochDone", {**EPOCH, "epoch": 1, "val_accuracy": None, "metrics": {"auc": 0.9}, "lr": 0.01, "best": False}),
    ]  # fmt: skip
    lines = [json.dumps({"event": kind, "time": 100.0 + i, **fields}) for i, (kind, fields) in enumerate(events)]
    path.write_text("\n".join([*lines[:3], "[]", '{"event": "Pulse"', *lines[3:]]) + "\n")
    log = read_events(path)
    assert log.unreadable == 2 and (log.first, log.last) == (100.0, 104.0)
    assert [(s.stage, s.begin, s.end) for s in log.spans] == [("train", 101.0, 104.0)], "its end is the last event"
    assert log.best["epoch"] == 0 and log.latest["epoch"] == 1
    assert log.columns() == {
        "epoch": [1, 2], "train_loss": [0.5, 0.5], "val_accuracy": [0.7, None], "val_auc": [None, 0.9],
        "seconds": [2.0, 2.0], "lr": [None, 0.01], "best": [True, False],
    }  # fmt: skip
    assert read_events(tmp_path / "none").columns() == {"epoch": [], "train_loss": [], "seconds": [], "best": []}
