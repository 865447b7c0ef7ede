"""The page `/millrace` of a live cluster's dashboard, by its numbers and in a browser; and runs that have to do without
it."""

import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

import millrace as mr
from millrace.pipeline.dashboard import plugin, publisher, snapshot
from millrace.pipeline.dashboard.command import record_of
from millrace.pipeline.report.stores import read_record, records_behind
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.open_data import open_data
from millrace.pipeline.setup.prepare import prepare
from millrace.pipeline.telemetry.events import EpochDone, Note
from millrace.pipeline.telemetry.heartbeat import FIRST_S, STEADY_BEATS
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_cluster import forked_cluster
from millrace.tests.contracts.fresh_python import FreshPython
from millrace.tests.contracts.process_ends import command_of

DATASET = "sbm:nodes=600,classes=3,degree=8,features=5,train=0.5"
EPOCHS, STEPS = 4, 4
JOB = {
    "epochs": EPOCHS, "batch_size": 40, "fanout": [4, 3], "hidden": 8, "seed": 3, "threads": 1, "ranks": 2,
    "minibatches_per_step": 2,
}  # fmt: skip
WAIT_S = 240.0
"""For a machine that does much else."""
WAITED = 0.2
"""Share of their lives that held ranks are let wait."""
pytestmark = pytest.mark.timeout(900)


def get(address, path, token=""):
    with urllib.request.urlopen(f"{address}/{path}?token={token}", timeout=WAIT_S) as answer:
        return answer.status, answer.read().decode()


def until(what, seconds=WAIT_S):
    """First result of `what` that is not empty."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def board(start_cluster):
    """A scheduler with three workers, and where its dashboard is."""
    with start_cluster(3, "127.0.0.1:0") as scheduler, Client(scheduler) as client:
        yield SimpleNamespace(scheduler=scheduler, client=client, address=client.dashboard_link.removesuffix("/status"))


def runs(board):
    return json.loads(get(board.address, "millrace.json", token_of(board))[1])["runs"]


def token_of(board):
    return board.client.run_on_scheduler(plugin.opened, [])[1]


class PlacedData:
    """A run in a thread, whose driver stops at the end of its second epoch until it is let go; so do its ranks, for
    lack of samples."""

    def __init__(self, board, out, **job):
        self.out, self.notes, self.error, self.result = out, [], None, None
        self._held, self._let_go, self._given_up = (threading.Event() for _ in range(3))
        options = {
            **JOB,
            "queue": {"kind": "zarr", "bulk_size": 2, "max_bytes": 1},
            "scheduler": board.scheduler,
            **job,
        }
        self._thread = threading.Thread(target=self._run, args=(options,))
        self._thread.start()

    def _run(self, options):
        try:
            self.result = mr.run(DATASET, out=self.out, emit=self._emit, stop=self._given_up.is_set, **options)
        except BaseException as e:
            self.error = e
            self._held.set()

    def _emit(self, event):
        if isinstance(event, Note):
            self.notes.append(event.text)
        if isinstance(event, EpochDone) and event.epoch == 1:
            self._held.set()
            self._let_go.wait(3 * WAIT_S)

    def __enter__(self):
        held = self._held.wait(WAIT_S) and self.error is None
        if not held:
            self._given_up.set()
            self._let_go.set()
        assert held, self.error
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._given_up.set()
        self._let_go.set()
        if kind is None:
            self.let_go()

    def let_go(self):
        """Until its end."""
        self._let_go.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


def browsed(address, token):
    """Record shown by a browser; None without one."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        return None
    playwright = importlib.import_module("playwright.sync_api")
    with (
        playwright.sync_playwright() as p,
        p.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        page, errors = browser.new_page(viewport={"width": 1400, "height": 1100}), []
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.goto(f"{address}/millrace?token={token}", timeout=1000 * WAIT_S)
        page.wait_for_selector("text=/epoch \\d of 4/", timeout=1000 * WAIT_S)
        page.wait_for_selector(".chart svg path", state="attached", timeout=1000 * WAIT_S)
        tabs = page.locator(".navbar li a").all_inner_texts()
        seen = {
            selector: page.locator(selector).count() for selector in ("text=/^train$/", "text=/minibatches/", ".chart")
        }
        narrow = browser.new_page(viewport={"width": 390, "height": 800})
        narrow.goto(f"{address}/millrace?token={token}", timeout=1000 * WAIT_S)
        wide = narrow.evaluate("document.documentElement.scrollWidth")
        page.click(".navbar >> text=Status", timeout=1000 * WAIT_S)
        page.wait_for_url("**/status", timeout=1000 * WAIT_S)
        page.click(".navbar >> text=Millrace", timeout=1000 * WAIT_S)
        page.wait_for_url("**/millrace", timeout=1000 * WAIT_S)
        page.fill("input[name=token]", token)
        page.click("button")
        page.wait_for_selector(".chart svg path", state="attached", timeout=1000 * WAIT_S)
        # The page fetches its changing part.
        with page.expect_response("**/millrace?token=*&part=1", timeout=1000 * WAIT_S) as answer:
            pass
        return SimpleNamespace(tabs=tabs, seen=seen, errors=errors, wide=wide, refreshed=answer.value.status)


@pytest.fixture(scope="module")
def live(board, tmp_path_factory):
    """Records served in the middle of a run, and after it."""
    with PlacedData(
        board, tmp_path_factory.mktemp("live") / "run", features="owned", bulk={"cache_fraction": 0.1}
    ) as run:
        # Its driver is held, so the ranks wait for minibatches, and the share of their lives that they have waited
        # grows. What is shown follows with the heartbeats, late on a busy machine, where a rank may seem silent.
        def waiting():
            answer = get(board.address, "millrace.json", token_of(board))
            r = json.loads(answer[1])["runs"][0]
            all_wait = len(r["ranks"]) == 2 and all(
                x["state"] == "running"
                and x["stage"] == "queue_wait"
                and x["share"]["recent"].get("queue_wait", 0) > WAITED
                for x in r["ranks"]
            )
            return answer if all_wait and r["steps"] >= 2 * STEPS and r["epochs_done"] else None

        pages = {"millrace.json": until(waiting)}
        pages |= {path: get(board.address, path, token_of(board)) for path in ("millrace", "status")}
        prefixes = board.client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes))
        browser = browsed(board.address, token_of(board))
        run.let_go()
    # The last heartbeats come after the driver has said that the run is over.
    result = json.loads((run.out / "result.json").read_text())
    counted, tested_s = result["bytes"], result["seconds"]["evaluate"] - 1e-3
    moved = {
        c: found for c in ("network", "store", "evaluation") if (found := {k: n for k, n in counted[c].items() if n})
    }

    def over():
        r = runs(board)[0]
        tested = max(x["seconds"].get("evaluate", 0) for x in r["ranks"]) >= tested_s
        return r if r["state"] == "done" and r["bytes"] == moved and tested else None

    after = until(over)
    lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    return SimpleNamespace(run=run, pages=pages, prefixes=prefixes, browser=browser, after=after, lines=lines)


def test_the_page_has_a_tab_beside_dasks_own_and_a_note_names_it(board, live):
    for path in ("millrace", "status"):
        status, html = live.pages[path]
        assert status == 200
        tabs = re.findall(r'<a href="(\w+)">', html.split('class="dropdown"')[0].split("<main")[0])
        assert tabs[:2] == ["status", "millrace"] and tabs.count("millrace") == 1
    assert f"this run: {board.address}/millrace?token={token_of(board)}" in live.run.notes
    assert token_of(board) not in (live.run.out / "metrics.jsonl").read_text(), "others may read that file"


def test_stages_are_groups_of_tasks(live):
    assert {"train", "sample"} <= set(live.prefixes)


def test_the_numbers_are_those_of_the_pulses_while_the_run_lives(live):
    run = json.loads(live.pages["millrace.json"][1])["runs"][0]
    assert (run["state"], run["system"], run["num_ranks"], run["epochs"]) == ("running", "bulk", 2, EPOCHS)
    assert run["out"] == str(live.run.out) and run["steps_per_epoch"] == STEPS
    for rank in run["ranks"]:
        # Of a long life not every pulse is kept, but nothing has happened since this one.
        publisher = [t for t in live.lines if t["event"] == "Pulse" and t["rank"] == rank["rank"]]
        before = [t for t in publisher if t["seconds"]["total"] <= rank["seconds"]["total"]]
        for name in ("bytes", "steps", "edges", "epoch", "step", "stage", "hot"):
            assert rank[name] == before[-1][name], name
        kept = [t for t in publisher if t["seconds"]["total"] == rank["seconds"]["total"]]
        assert all(rank["seconds"] == t["seconds"] and rank["rss_bytes"] == t["rss_bytes"] for t in kept)
        assert kept or rank["seconds"]["total"] > STEADY_BEATS * FIRST_S
        assert rank["state"] == "running" and sum(rank["share"]["whole"].values()) == pytest.approx(1)
    assert run["steps"] >= 2 * STEPS and run["edges"] == sum(r["edges"] for r in run["ranks"])
    levels = [line for line in live.lines if line["event"] == "QueueLevel"]
    assert run["queue"]["filled_by"] == "tasks" and run["queue"]["bound"] == 1
    assert (run["queue"]["bulks"], run["queue"]["bytes"]) in {(level["bulks"], level["bytes"]) for level in levels}
    assert all(rank["stage"] == "queue_wait" for rank in run["ranks"])
    assert run["stages"]["train"]["waits"] >= run["stages"]["train"]["for"]["queue_wait"] > WAITED
    assert run["epochs_done"], "the first one has been validated"


def test_the_last_numbers_are_those_of_the_result(live):
    result, run = json.loads((live.run.out / "result.json").read_text()), live.after
    done = [line for line in live.lines if line["event"] == "EpochDone"]
    assert run["steps"] == EPOCHS * STEPS and run["edges"] == result["sampled_edges"]
    assert run["bytes"] == {
        c: found
        for c in ("network", "store", "evaluation")
        if (found := {k: n for k, n in result["bytes"][c].items() if n})
    }
    for rank, counted in zip(run["ranks"], result["bytes"]["per_rank"]):
        assert rank["bytes"] == {c: {k: n for k, n in kinds.items() if n} for c, kinds in counted.items()}
        assert rank["rss_bytes"] <= result["peak_rss_bytes"][rank["rank"]] * 1.01
    assert (run["train_loss"], run["best_val_accuracy"]) == (
        pytest.approx(result["train_loss"]),
        pytest.approx(result["val_accuracy"]),
    )
    assert [e["val_accuracy"] for e in run["epochs_done"]] == [pytest.approx(e["val_accuracy"]) for e in done]
    hot = result["hot_rows"]
    assert {k: run["hot"][k] for k in ("rows", "asked", "hits")} == {
        k: sum(h[k] for h in hot) for k in ("rows", "asked", "hits")
    }
    assert 0 < run["hot"]["rate"] < 1
    for name in ("forward_backward", "reduce", "evaluate"):
        assert max(r["seconds"][name] for r in run["ranks"]) == pytest.approx(result["seconds"][name], abs=1e-3)


def test_a_browser_shows_the_page(live):
    if live.browser is None:
        pytest.skip("no Chromium, or no playwright")
    assert live.browser.tabs[:2] in (["", "Status"], ["Status", "Millrace"]) and "Millrace" in live.browser.tabs
    assert live.browser.errors == [] and live.browser.refreshed == 200
    assert live.browser.wide == 390, "nothing is clipped, or scrolls sideways"
    assert all(live.browser.seen.values()), live.browser.seen


def test_two_runs_of_which_one_loses_a_rank(board, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "SILENT_S", 1.5)
    queue = {"queue": {"kind": "zarr", "bulk_size": 2, "max_bytes": 1}}
    first = PlacedData(board, tmp_path / "first", **queue)
    second = PlacedData(board, tmp_path / "second", checkpoint={"every_epochs": 1}, **queue)
    with first, second:
        found = {r["out"]: r for r in runs(board)}
        assert found[str(first.out)]["state"] == found[str(second.out)]["state"] == "running"
        assert {r["run"] for r in found.values()} >= {found[str(first.out)]["run"], found[str(second.out)]["run"]}
        victim = rank_process(second.out)

        def rank_0():
            return next(r for r in runs(board) if r["out"] == str(second.out))["ranks"][0]

        victim.send_signal(signal.SIGSTOP)
        until(lambda: rank_0()["state"] == "silent")
        victim.send_signal(signal.SIGCONT)
        until(lambda: rank_0()["state"] == "running")
        victim.kill()
        until(lambda: rank_0()["state"] == "killed by signal 9")
    run = until(lambda: (r := next(r for r in runs(board) if r["out"] == str(second.out)))["state"] == "done" and r)
    assert all(r["generation"] == 1 for r in run["ranks"])
    assert any("was killed by signal 9; all ranks start again" in n["text"] for n in run["notes"])
    # It went on from the end of the second epoch, at the latest.
    run = until(
        lambda: (r := next(r for r in runs(board) if r["out"] == str(second.out)))["steps"] >= EPOCHS * STEPS and r
    )
    assert run["steps"] <= (EPOCHS + 1) * STEPS
    # The last heartbeats come after the driver has said that the run is over.
    other = until(
        lambda: (r := next(r for r in runs(board) if r["out"] == str(first.out)))["steps"] >= EPOCHS * STEPS and r
    )
    assert (other["state"], other["steps"], [r["generation"] for r in other["ranks"]]) == (
        "done",
        EPOCHS * STEPS,
        [0, 0],
    )


def rank_process(out):
    """Rank 0 of the run in `out`: whose log it holds open."""
    log = str(out / "logs" / "rank-0.log")
    for child in psutil.Process(os.getpid()).children(recursive=True):
        if "millrace.pipeline.cluster.rank_main" in command_of(child) and os.readlink(f"/proc/{child.pid}/fd/2") == log:
            return child
    raise AssertionError(f"no process writes {log}")


@forked_cluster()
def test_a_run_goes_on_where_dasks_internals_moved(tmp_path, monkeypatch):
    def moved(scheduler):
        raise ImportError("it is elsewhere now")

    monkeypatch.setattr(plugin, "known_hosts", moved)
    events = []
    result = mr.run(
        DATASET,
        out=tmp_path / "run",
        emit=events.append,
        **{**JOB, "ranks": 1, "epochs": 1},
        executor="dask",
        cluster={"dashboard_port": 0},
    )
    assert result.status == "done"
    notes = [e.text for e in events if isinstance(e, Note)]
    assert sum("no page for this run (ImportError" in n for n in notes) == 1
    assert not any(n.startswith("this run:") for n in notes)


def test_commands_that_make_stores_are_shown_and_recorded(board, tmp_path):
    notes, there = [], ("--set", f"cluster.scheduler={board.scheduler}")
    tables, store, parts, samples = (tmp_path / name for name in ("tables", "store", "parts", "samples"))
    tables.mkdir()
    ids = np.arange(60)
    nodes = {"id": ids, "label": ids % 3, "features": np.eye(60).tolist()}
    for name, columns in (("edges", {"src": ids, "dst": ids[::-1]}), ("nodes", nodes)):
        pq.write_table(pa.table(columns), tables / f"{name}.parquet")
    mr.convert(tables, store, scheduler=board.scheduler, split="fraction:0.5,0.2", emit=notes.append)
    cut = ("--parts", 2, "--method", "metis-streamed", "--into", parts, "--set", "executor=dask", *there)
    draw = ("--out", samples, "--epochs", 2, "--fanout", "3,3", "--batch-size", 8, *there)
    assert command("partition", store, *cut)[0] == command("sample", "--dataset", parts, *draw)[0] == 0
    until(lambda: [r["state"] for r in runs(board)[:3]] == ["done"] * 3)
    shown = runs(board)[:3]
    assert [(r["command"], r["out"]) for r in shown] == [
        ("sample", str(samples)), ("partition", str(parts)), ("convert", str(store)),
    ]  # fmt: skip
    drawn, cut, read = ({s["stage"]: (s["done"], s["total"]) for s in r["progress"]} for r in shown)
    assert drawn["sample"] == (2, 2) and read["spill"] == (1, 1) and cut.keys() >= {"assign", "spill", "sort", "gather"}
    assert any(re.match(r"this command: http://.*/millrace\?token=", e.text) for e in notes if isinstance(e, Note))
    assert [(r.command, r.status) for r in records_behind(str(parts))] == [("convert", "done"), ("partition", "done")]
    assert {*drawn} <= {s.stage for s in read_record(samples).stages}
    assert token_of(board) not in record_of(store).read_text()


@pytest.fixture(scope="module")
def small():
    job = configure({"dataset": DATASET, "executor": "dask"}, **JOB)
    return prepare(job, open_data(job, None, lambda event: None))


def notes_of(client, prepared, out, act=lambda emit: None):
    events = []
    with publisher.show_run(client, prepared, out, "millrace-x", events.append) as emit:
        act(emit)
    return [e.text for e in events if isinstance(e, Note)]


def test_whatever_fails_is_one_note_and_no_more(small, tmp_path, monkeypatch):
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as bare, Client(bare) as client:
        assert notes_of(client, small, tmp_path) == [], "who starts a scheduler without a dashboard knows it"
        monkeypatch.setattr(client, "log_event", lambda *_: 1 / 0)
        monkeypatch.setattr(client, "register_plugin", lambda _: 1 / 0)
        (note,) = notes_of(client, small, tmp_path)
        assert note.startswith("the dashboard has no page for this run (ZeroDivisionError: ")


def test_a_scheduler_that_does_not_answer_holds_nothing_up(small, tmp_path, monkeypatch):
    monkeypatch.setattr(publisher, "END_S", 0.2)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        asked, answers = [], threading.Event()
        monkeypatch.setattr(client, "log_event", lambda *_: (asked.append(1), asked.append(answers.wait(200))))

        def act(emit):
            for epoch in range(100):
                emit(EpochDone(epoch, 100, 0.5, 0.5, 1.0, True))

        try:
            notes = notes_of(client, small, tmp_path, act)
            assert asked == [1], "the call is still waited for by its own thread alone"
        finally:
            answers.set()
        assert notes[0].startswith("this run: http://")


def test_a_run_that_fails_or_loses_its_driver_says_so(small, tmp_path):
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        port = cluster.scheduler.http_server.port

        def state():
            _, token = plugin.opened([], cluster.scheduler)
            return json.loads(get(f"http://127.0.0.1:{port}", "millrace.json", token)[1])["runs"][0]["state"]

        with Client(cluster) as client:
            with pytest.raises(mr.RunError), publisher.show_run(client, small, tmp_path, "one", lambda event: None):
                raise mr.RunError("rank 1 failed")
            until(lambda: state() == "failed: rank 1 failed")
            kept = publisher.show_run(client, small, tmp_path, "two", lambda event: None)
            kept.__enter__()
            until(lambda: state() == "starting")
        until(lambda: state() == "its driver is gone")


@pytest.mark.parametrize("has_millrace", [True, False])
def test_a_scheduler_of_the_users_own_gets_the_page_if_it_has_millrace(has_millrace, small, tmp_path):
    file, paths = tmp_path / "scheduler.json", [*sys.path]
    hidden = "" if has_millrace else "sys.modules['millrace'] = None; "
    command = [
        "-c",
        f"import sys; {hidden}from distributed.cli.dask_scheduler import main; main()",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    command += ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)]
    process = FreshPython(*command, variables={"PYTHONPATH": os.pathsep.join(paths)})
    try:
        until(lambda: file.exists() and file.stat().st_size)
        with Client(scheduler_file=str(file)) as client:
            (note,) = notes_of(client, small, tmp_path)
            if has_millrace:
                address, token = note.removeprefix("this run: ").split("/millrace?token=")
                (run,) = json.loads(get(address, "millrace.json", token)[1])["runs"]
                assert run["state"] == "done"
            else:
                assert note.startswith("the dashboard has no page for this run (ModuleNotFoundError: ")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(240)
