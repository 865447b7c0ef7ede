"""The dashboard's memory of runs, and the records computed from it, without a cluster."""

import json
import math
import re

import pytest
from dask.utils import key_split
from distributed.diagnostics.progress_stream import color_of

from millrace.pipeline.dashboard.history import POINTS, RUNS, History
from millrace.pipeline.dashboard.page import body
from millrace.pipeline.dashboard.snapshot import SILENT_S, SPENT, WINDOW_S, record, spent
from millrace.pipeline.telemetry.run_log import NOTES, RECENT_S, STAGES, Series

HEARTBEAT_S = 0.5


class Cluster:
    """Says what workers and drivers would."""

    def __init__(self):
        self.at = 1000.0
        self.history = History(lambda: self.at)

    def about(self, run="a", **more):
        told = {
            "client": "c",
            "out": "/runs/x",
            "system": "bulk",
            "exchanges": "background",
            "model": "sage",
            "dataset": "d",
            "ranks": 2,
            "epochs": 9,
            "producers": 2,
        }
        self.history.record_driver({"run": run, "about": {**told, **more}})

    def said(self, event, run="a", **fields):
        self.history.record_driver({"run": run, "said": {"event": event, **fields}})

    def pulse(self, rank, run="a", generation=0, ended="", **fields):
        pulse = {
            "rank": rank, "stage": "reduce", "epoch": 0, "step": 0, "loss": 0.5, "steps": 0, "edges": 0,
            "seconds": {"total": self.at},
            "bytes": {}, "sent_to": {}, "rss_bytes": 1 << 20, "queue": {}, "hot": {}, **fields,
        }  # fmt: skip
        record = {
            "run": run,
            "rank": rank,
            "generation": generation,
            "ended": ended,
            "pulse": pulse if fields != {"none": True} else {},
        }
        self.history.record_worker(f"w{rank}", [record])

    def tick(self, seconds=HEARTBEAT_S):
        self.history.tick()
        self.at += seconds

    @property
    def run(self):
        return record(self.history)["runs"][0]

    def page(self, **query):
        """The changing part of the page, without spaces that do not show."""
        return re.sub(r"\s+", " ", body(self.history, "secret", **query))


@pytest.fixture
def cluster():
    return Cluster()


def test_tasks_of_a_stage_are_one_group_of_one_colour():
    # Eight hexadecimal digits may all be letters, or all be figures.
    for run in ("0123abcd", "abcdefab", "01234567"):
        keys = [(f"partition-{run}", 3), (f"sample-{run}", 0, 2, 1), (f"train-{run}", 0, 1)]
        assert [key_split(key) for key in keys] == ["partition", "sample", "train"]
    assert len({color_of(name) for name in ("partition", "sample", "train")}) == 3


def test_a_curve_spans_the_life_of_a_run_with_so_many_points_at_most():
    curve = Series(["value"], 100)
    for i in range(100_000):
        curve.add(i * 0.5, {"value": i})
        assert len(curve) <= 101
    times = list(curve["time"])
    assert list(curve["value"]) == [2 * t for t in times]
    assert curve.recent[-1] == {"time": 49_999.5, "value": 99_999} and curve.ends(4.0)[0]["value"] == 99_991
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert times[0] == 0 and times[-1] > 0.98 * 50_000 and len(times) > 45
    assert max(gaps) <= 2.5 * min(gaps)


def test_the_history_is_bounded(cluster):
    for number in range(2 * RUNS):
        name = f"run{number}"
        cluster.about(name)
        for i in range(POINTS + 400):
            cluster.pulse(0, name, steps=i, edges=i, seconds={"total": cluster.at})
            cluster.said("EpochDone", name, epoch=i, epochs=9, train_loss=0.5, val_accuracy=0.5, seconds=1.0, best=True)
            cluster.said("Note", name, text="x")
            cluster.said("QueueLevel", name, bulks=3, bytes=600, bound=1000, sampled=i, seconds=i * 0.25)
            cluster.said("StepDone", name, epoch=i, step=0, steps_per_epoch=1, loss=0.5)
            cluster.tick()
    assert list(cluster.history.runs) == [f"run{n}" for n in range(RUNS, 2 * RUNS)]
    for run in cluster.history.runs.values():
        log, beats = run.log, run.ranks[0].log.beats
        assert len(run.sums) <= POINTS + 1 and len(beats) <= POINTS + 1 and len(log.levels) <= POINTS + 1
        assert POINTS / 2 < len(log.epochs) <= POINTS and min(log.epochs) == 0 and max(log.epochs) > POINTS
        assert len(run.sums.recent) <= RECENT_S / HEARTBEAT_S + 2 and len(beats.recent) <= RECENT_S / HEARTBEAT_S + 2
        assert len(log.notes) == NOTES and not log.steps and not log.unreadable
    assert len(json.dumps(record(cluster.history))) < RUNS * 300_000


def test_an_ended_run_is_forgotten_before_one_that_goes_on(cluster):
    for number in range(RUNS):
        cluster.about(f"run{number}")
    cluster.history.record_driver({"run": "run2", "ended": "done"})
    cluster.about("new")
    assert "run2" not in cluster.history.runs and "run0" in cluster.history.runs


def test_rates_and_shares_are_of_the_last_while(cluster):
    cluster.about()
    for i in range(200):
        # Twice as fast in the second half.
        steps = i if i < 100 else 100 + 2 * (i - 100)
        for rank, reduce in ((0, 0.1), (1, 0.3)):
            seconds = {"total": i * 0.5, "forward_backward": i * 0.2, "reduce": i * reduce / 2, "queue_wait": i * 0.05}
            cluster.pulse(
                rank, steps=steps, edges=10 * steps, seconds=seconds, bytes={"network": {"gradients": 1000 * steps}}
            )
        cluster.said("QueueLevel", bulks=3, bytes=600, bound=1000, sampled=i // 4, seconds=i * 0.25)
        cluster.tick()
    run = cluster.run
    rates = run["rates"]
    assert rates["over_s"] == pytest.approx(WINDOW_S)
    assert rates["steps"] == pytest.approx(4.0) and rates["edges"] == pytest.approx(2 * 40.0)
    assert rates["bulks"] == pytest.approx(0.5) and rates["bytes"] == {"network": {"gradients": pytest.approx(8000)}}
    assert run["steps"] == 298 and run["edges"] == 2 * 2980 and run["bulks_sampled"] == 49
    assert run["queue"] == {"bulks": 3, "bytes": 600, "bound": 1000, "filled_by": "tasks"}
    shares = [r["share"]["recent"] for r in run["ranks"]]
    assert all(sum(s.values()) == pytest.approx(1) for s in shares)
    assert [s["reduce"] for s in shares] == pytest.approx([0.1, 0.3])
    stages = run["stages"]
    assert stages["train"]["waits"] == pytest.approx(0.2 + 0.1)
    assert stages["train"]["for"] == {"queue_wait": pytest.approx(0.1), "exchange": 0.0, "reduce": pytest.approx(0.2)}
    assert stages["sample"]["waits"] == pytest.approx(1 - 0.5 / 2), (
        "two tasks at a time, half a second of work in each second"
    )
    page = cluster.page()
    assert "ranks waited 30 % of their time" in page and "for the slowest rank" in page
    boxes = re.findall(r'class="box"> <b>(\w+)</b> <span class="why">([^<]*)', page)
    assert boxes == [("sample", "2 tasks at a time"), ("queue", "3 bulks"), ("train", "2 ranks")]
    assert "600 bytes of 1,000 bytes" in page and "width: 60.0%" in page and "4 steps/s, 80 edges/s" in page


@pytest.mark.parametrize(
    ("exchanges", "exchange", "trains"), [("within", 2.0, 3.0), ("beside", 2.0, 5.0), ("background", 0.0, 5.0)]
)
def test_what_a_rank_spends_adds_up_to_its_life(exchanges, exchange, trains):
    parts = spent(
        {"forward_backward": 5.0, "exchange": 2.0, "reduce": 1.0, "sample": 7.0, "train": 9.0, "total": 12.0}, exchanges
    )
    assert (parts["exchange"], parts["forward_backward"]) == (exchange, trains)
    assert set(parts) == set(SPENT) and sum(parts.values()) == 12.0


def test_a_restart_counts_on_and_makes_no_peak(cluster):
    cluster.about()
    for i in range(20):
        cluster.pulse(0, steps=i, edges=i, bytes={"network": {"control": 100 * i}}, seconds={"total": float(i)})
        cluster.tick()
    cluster.pulse(
        0, steps=19, edges=19, ended="killed by signal 9", bytes={"network": {"control": 1900}}, seconds={"total": 19.0}
    )
    assert cluster.run["ranks"][0]["state"] == "killed by signal 9" and "rank 0: killed by signal 9" in cluster.page()
    cluster.tick()
    cluster.pulse(0, generation=1, none=True)
    cluster.pulse(0, ended="killed by signal 9", steps=19, bytes={"network": {"control": 1900}})  # said late
    assert cluster.run["ranks"][0]["state"] == "starting" and cluster.run["steps"] == 19
    cluster.tick()
    # It knows nothing of its earlier life until it has read the checkpoint.
    for i, sent in enumerate([0, 1500, 1600, 1700, 1800, 1900, 2000]):
        cluster.pulse(
            0, generation=1, steps=i, edges=i, bytes={"network": {"control": sent}}, seconds={"total": 15.0 + i}
        )
        cluster.tick(2.0)
    run = cluster.run
    assert (run["steps"], run["edges"], run["bytes"]) == (19 + 6, 19 + 6, {"network": {"control": 2000}})
    assert max(run["curves"]["rates"]["network control"]) <= 200 and min(run["curves"]["rates"]["steps"]) >= 0
    assert "have started again 1 time" in cluster.page()


def test_a_silent_rank_and_one_whose_worker_is_gone_are_named(cluster):
    cluster.about()
    for i in range(int(SILENT_S / HEARTBEAT_S) + 4):
        cluster.pulse(0, seconds={"total": float(i)})
        cluster.pulse(1, seconds={"total": 1.0})
        cluster.pulse(2, none=True)
        cluster.tick()
    assert [r["state"] for r in cluster.run["ranks"]] == ["running", "silent", "starting"]
    assert "rank 1 has been silent for" in cluster.page()
    cluster.history.end_worker("w1")
    assert cluster.run["ranks"][1]["state"] == "its worker is gone"
    assert "rank 1: its worker is gone" in cluster.page()


def test_workers_that_leave_before_the_driver_says_that_all_is_done_are_no_loss(cluster):
    cluster.about()
    for rank in range(2):
        cluster.pulse(rank)
    cluster.tick()
    cluster.history.end_worker("w1")
    cluster.history.record_driver({"run": "a", "ended": "done"})
    assert [r["state"] for r in cluster.run["ranks"]] == ["done", "done"]
    assert "gone" not in cluster.page()


def test_a_run_ends_once(cluster):
    cluster.about()
    cluster.pulse(0, loss=math.nan)
    cluster.tick()
    assert cluster.run["state"] == "running"
    cluster.history.end_client("another")
    assert cluster.run["state"] == "running"
    cluster.history.end_client("c")
    cluster.history.record_driver({"run": "a", "ended": "done"})
    assert cluster.run["state"] == "its driver is gone"
    assert cluster.run["ranks"][0]["loss"] is None
    json.dumps(record(cluster.history), allow_nan=False)
    elapsed = cluster.run["elapsed_s"]
    cluster.at += 100
    assert cluster.run["elapsed_s"] == elapsed


def test_what_a_run_is_in_the_middle_of_is_said(cluster):
    cluster.about(epochs=3)
    cluster.said("StageStarted", stage="partition", text="cutting d into 4 parts", total=4)
    assert cluster.run["state"] == "starting" and "cutting d into 4 parts" in cluster.page()
    cluster.said("StageEnded", stage="partition", seconds=1.0, text="")
    assert cluster.run["doing"] == "" and cluster.run["epochs"] == 3
    cluster.said("EpochDone", epoch=0, epochs=9, train_loss=0.5, val_accuracy=None, seconds=1.0, best=False)
    assert cluster.run["epochs"] == 9, "three phases of three"


def test_the_heading_says_who_is_missing_and_how_long_it_will_take(cluster):
    cluster.about(epochs=4)
    assert "waiting for ranks: 0 of 2 there" in cluster.page() and cluster.run["left_s"] is None
    cluster.pulse(0, epoch=-1, step=-1)
    assert "waiting for ranks: 1 of 2 there" in cluster.page()
    cluster.said("StepDone", epoch=0, step=0, steps_per_epoch=10, loss=1.0, seeds=1)
    for steps in range(1, 17):
        for rank in (0, 1):
            cluster.pulse(rank, epoch=(steps - 1) // 10, step=(steps - 1) % 10, steps=steps)
        cluster.tick(0.5)
    assert cluster.run["left_s"] == pytest.approx((40 - 16) * 0.5, rel=0.1)
    assert "waiting for" not in cluster.page() and "about 13 s left" in cluster.page()
    cluster.history.record_driver({"run": "a", "ended": "done"})
    assert cluster.run["left_s"] is None and "left" not in cluster.page()


@pytest.mark.parametrize(("every", "title"), [(3, "fills after epoch 3"), (None, None)])
def test_the_box_of_validations_says_when_it_fills(cluster, every, title):
    cluster.about(evaluate_every=every)
    assert ("Validation accuracy" in cluster.page()) == bool(title) and (title or "fills") in cluster.page() + "fills"
    cluster.said("EpochDone", epoch=2, epochs=9, train_loss=0.5, val_accuracy=0.5, seconds=1.0, best=True)
    assert "Validation accuracy" in cluster.page() and "fills" not in cluster.page()


def test_a_command_is_shown_by_its_stages(cluster):
    cluster.history.record_driver(
        {"run": "a", "about": {"client": "c", "command": "convert", "dataset": "<t>", "out": "store"}}
    )
    cluster.said("StageStarted", stage="spill", text="reading edges", total=8)
    cluster.tick(2.0)
    cluster.said("StageAdvanced", stage="spill", done=6, total=8)
    run = cluster.run
    assert (run["command"], run["state"], run["doing"]) == ("convert", "running", "reading edges")
    assert run["progress"] == [
        {"stage": "spill", "text": "reading edges", "done": 6, "total": 8, "seconds": 2.0, "state": "running"}
    ]
    page = cluster.page()
    assert "convert of &lt;t&gt; into store" in page and "6 of 8 (75 %)" in page
    assert "<h2>Stages" in page and not {'class="box"', "<figure", 'class="ranks"'} & set(
        re.findall(r'<figure|class="\w+"', page)
    )
    cluster.said("StageEnded", stage="spill", seconds=2.0, text="")
    cluster.said("StageEnded", stage="convert", seconds=2.0, text="")
    for number in range(2 * STAGES):
        cluster.said("StageAdvanced", stage=f"s{number}", done=1, total=None)
    cluster.tick()
    cluster.history.record_driver({"run": "a", "ended": "failed: the disk is full"})
    states = {s["stage"]: (s["state"], s["seconds"]) for s in cluster.run["progress"]}
    assert states["spill"] == states["convert"] == ("done", 2.0) and len(states) == STAGES
    assert states["s0"][0] == "stopped"
    assert cluster.run["state"] == "failed: the disk is full"
    # A run after it has ranks to show.
    cluster.about("b")
    assert 'class="box"' in cluster.page() and "<figure" in cluster.page() and "<h2>Stages" not in cluster.page()


def test_a_report_that_is_not_one_is_counted_and_said(cluster):
    cluster.about()
    cluster.said("EpochDone", epoch="x")
    cluster.pulse(0, steps=-1)
    assert "2 reports could not be read" in cluster.page() and cluster.run["ranks"][0]["state"] == "starting"


def test_hot_rows_and_queues_that_ranks_fill_are_summed(cluster):
    cluster.about()
    for rank in range(2):
        hot = {"rows": 5, "asked": 100, "hits": 25 + 50 * rank, "saved_bytes": 0}
        cluster.pulse(
            rank, hot=hot, queue={"bulks": 2, "bytes": 30, "bound": 100}, seconds={"total": 2.0, "sample": 1.0}
        )
    run = cluster.run
    assert run["hot"] == {"rows": 10, "asked": 200, "hits": 100, "rate": 0.5}
    assert run["queue"] == {"bulks": 4, "bytes": 60, "bound": 200, "filled_by": "ranks"}
    assert run["stages"]["sample"]["by"] == "ranks"
    assert "50 % of 200" in cluster.page() and "hits of 10 hot rows" in cluster.page()


def test_names_that_users_choose_are_escaped(cluster):
    escapes = "\x1b]8;;x\x07\u202e"
    cluster.about(dataset=f"<script>x</script>{escapes}", model=f"<b>{escapes}", out=f"/runs/<i>{escapes}")
    cluster.said("Note", text=f"<script>y</script>{escapes}")
    cluster.history.record_driver({"run": "a", "ended": f"failed: <script>z</script>{escapes}"})
    page = cluster.page()
    assert not {"\x1b", "\x07", "\u202e"} & set(page)
    assert "<script>" not in page and "<b> with" not in page
    assert all(f"&lt;script&gt;{letter}" in page for letter in "xyz")


def test_a_page_shows_the_newest_run_until_another_is_chosen(cluster):
    assert "No Millrace run has reported yet" in cluster.page()
    for name, model in (("a&b", "sage"), ("b", "gat")):
        cluster.about(name, model=model)
        for i in range(30):
            for rank in range(30):
                cluster.pulse(rank, name, steps=i, seconds={"total": cluster.at, "reduce": cluster.at / 2})
            cluster.tick()
    newest, chosen = cluster.page(), cluster.page(run="a&b", over="whole")
    assert (
        newest.count("gat with bulk") == 1
        and "sage with bulk" in chosen
        and "gat with bulk" in cluster.page(run="gone")
    )
    assert newest.count('title="reduce 50 %"') == 30 and "<b>rank 29</b>" in newest
    # Links carry the token and what is chosen.
    assert newest.count('href="?token=secret&amp;run=a%26b&amp;over=recent"') == 1
    assert 'href="?token=secret&amp;run=a%26b&amp;over=whole" aria-current="true">the whole run' in chosen
