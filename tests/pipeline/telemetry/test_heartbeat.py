"""A rank's pulse tells what it is doing while it does it."""

import threading
import time

import pytest

from millrace.pipeline.telemetry import heartbeat
from millrace.pipeline.telemetry.events import Note, StepDone
from millrace.pipeline.telemetry.heartbeat import STEADY_BEATS, Heartbeat
from millrace.pipeline.telemetry.timers import Clock
from millrace.storage.ledger import Ledger


def test_a_clock_shows_what_is_under_way():
    clock = Clock({"fetch": 2.0})
    with clock.measure("train"), clock.measure("fetch"):
        time.sleep(0.02)
        seconds, stage = clock.running_snapshot()
        assert stage == "fetch"
        assert seconds["fetch"] > 2.01 and seconds["train"] > 0.01 and seconds["total"] >= seconds["train"]
        assert "train" not in clock.snapshot(), "what is not over is in no checkpoint"
    assert clock.running_snapshot()[1] == ""
    assert clock.running_snapshot()[0]["fetch"] == clock.seconds["fetch"] >= seconds["fetch"]


def test_a_block_within_one_of_its_name_counts_once():
    clock = Clock()
    with clock.measure("evaluate"):
        with clock.measure("evaluate"):
            time.sleep(0.02)
        assert clock.running_snapshot()[1] == "evaluate"
    assert 0.02 <= clock.seconds["evaluate"] <= clock.running_snapshot()[0]["total"]


def test_a_clock_follows_the_seconds_of_others():
    clock, slept = Clock({"sample": 1.0}), [0.0]
    with clock.following(sample=lambda: slept[0]):
        slept[0] = 0.5
        assert clock.running_snapshot()[0]["sample"] == 1.5
        slept[0] = 0.75
    slept[0] = 9.0
    assert clock.seconds["sample"] == clock.running_snapshot()[0]["sample"] == 1.75


def test_a_clock_may_be_looked_at_all_the_time():
    clock, over, seen = Clock(), threading.Event(), []

    def watch():
        while not over.is_set():
            seen.append(clock.running_snapshot()[0])

    thread = threading.Thread(target=watch)
    thread.start()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        with clock.measure("a"), clock.measure("b"):
            pass
    over.set()
    thread.join()
    for name in ("a", "b", "total"):
        values = [s.get(name, 0.0) for s in seen]
        assert values == sorted(values), "seconds never run backwards"


def test_a_heart_passes_events_on_and_beats_first_and_last(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_S", 60.0)
    events, clock, ledger = [], Clock(), Ledger()
    with Heartbeat(3, clock, ledger, None, events.append) as heart:
        heart(Note("hello"))
        heart(StepDone(0, 0, 2, 0.5, 10, edges=7))
        heart(StepDone(0, 1, 2, 0.25, 0, edges=5))
        ledger.add("network", "gradients", 12)
        ledger.add("network", "features", 4, to=[4, 0])
    first, *others, last = events
    assert others[0] == Note("hello") and len(others) == 3
    assert (first.rank, first.steps, first.bytes) == (3, 0, {"network": {}, "store": {}, "evaluation": {}})
    assert (last.rank, last.epoch, last.step, last.steps, last.edges, last.stage) == (3, 0, 1, 2, 12, "")
    assert last.loss is None, "it had no seeds in the last step"
    assert last.bytes == {"network": {"gradients": 12, "features": 4}, "store": {}, "evaluation": {}}
    assert last.sent_to == {"network": {"features": [4, 0]}} and last.queue == {} and last.rss_bytes > 1 << 20


def test_a_heart_beats_on_where_its_rank_hangs_and_slower_after_a_while(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.001)
    events, clock = [], Clock()
    with Heartbeat(0, clock, Ledger(), None, events.append), clock.measure("reduce"):
        until = time.monotonic() + 120
        while len(events) <= STEADY_BEATS + 21 and time.monotonic() < until:
            time.sleep(0.01)
    stuck = [e for e in events[:-1] if e.stage == "reduce"]
    assert len(stuck) > STEADY_BEATS and stuck[-1].seconds["reduce"] > stuck[0].seconds["reduce"]
    at = [e.seconds["total"] for e in events[1:-1]]
    early, late = at[STEADY_BEATS - 1] - at[STEADY_BEATS - 21], at[STEADY_BEATS + 19] - at[STEADY_BEATS - 1]
    assert late > 20 * 0.002 * 0.9 and early > 20 * 0.001 * 0.9


def test_whoever_watches_a_pulse_sees_it_between_the_beats_that_are_kept(monkeypatch):
    monkeypatch.setattr(heartbeat, "SHOWN_S", 0.01)
    monkeypatch.setattr(heartbeat, "FIRST_S", 60.0)
    kept, shown = [], []
    with Heartbeat(0, Clock(), Ledger(), None, kept.append, shown.append):
        until = time.monotonic() + 120
        while len(shown) < 5 and time.monotonic() < until:
            time.sleep(0.01)
    assert len(kept) == 2, "the first and the last one"
    at = [p.seconds["total"] for p in (kept[0], *shown, kept[1])]
    assert len(shown) >= 5 and at == sorted(at)


def test_a_heart_stops_with_a_rank_that_fails(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.01)
    events = []
    with pytest.raises(KeyError), Heartbeat(0, Clock(), Ledger(), None, events.append):
        raise KeyError("x")
    count = len(events)
    time.sleep(0.05)
    assert len(events) == count >= 1
