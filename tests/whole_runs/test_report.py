"""A report says what the run's folder says, whatever state that is in."""

import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline import cli
from millrace.pipeline.config.systems import SYSTEMS
from millrace.pipeline.report import write
from millrace.pipeline.report.canvas import Picture
from millrace.pipeline.report.canvas import draw as drawn
from millrace.pipeline.report.reading import names, read_run
from millrace.pipeline.report.summary import summarise
from millrace.pipeline.report.timeline import BACKGROUND, BESIDE, ROWS, WITHIN, Timeline, stretches, timeline
from millrace.pipeline.setup.result import ONE_STEP
from millrace.pipeline.setup.run_folder import locked
from millrace.pipeline.telemetry.printable import printable
from millrace.pipeline.telemetry.quantities import amount, duration
from millrace.pipeline.telemetry.run_log import COUNTED, RankLog, RunLog
from millrace.tests.contracts.pictures import draw_only

pytestmark = pytest.mark.usefixtures("one_thread")
DATASET = "sbm:nodes=400,classes=3,degree=8,features=8,train=0.5"
JOB = {"layers": 2, "hidden": 8, "lr": 0.05, "epochs": 2, "threads": 1}
SAMPLED = {"fanout": [3, 2], "batch_size": 50}
VOID = {"meta", "br", "link", "img", "hr", "input"}


@dataclass
class Page(HTMLParser):
    """A page's text, tables and ids; raises where tags do not nest."""

    html: str
    open_tags: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.feed(self.html)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.values += [v for _, v in attrs if v is not None]
        values = dict(attrs)
        assert len(values) == len(attrs), f"an attribute is given twice in <{tag}>"
        self.ids += [values["id"]] if "id" in values else []
        self.links += [v for k, v in values.items() if k in ("src", "href", "srcset", "data", "xlink:href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open_tags and self.open_tags.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.text.append(data)
        if "td" in self.open_tags or "th" in self.open_tags:
            self.rows[-1][-1] += data

    def row(self, *begins):
        """The one row that begins so, without these cells."""
        found = [row[len(begins) :] for row in self.rows if row[: len(begins)] == list(begins)]
        assert found, f"no row {begins} in {self.rows}"
        return found[0]

    @property
    def words(self):
        return " ".join("".join(self.text).split())


def page_of(report):
    return Page(report.path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, scheduler):
    """One of each registered system; that of `sar` is on two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    for system in SYSTEMS:
        sampled = SAMPLED if SYSTEMS[system].samples else {}
        several = {"ranks": 2, "scheduler": scheduler} if system == "sar" else {}
        mr.run(DATASET, system=system, out=folder / system, **JOB, **sampled, **several)
    return folder


@pytest.fixture(scope="module")
def reported(runs):
    """A report of each: of two ranks with all pictures, of phases with those that tell them, of the others with those
    that these have not, or one."""
    found, seen, first, again = (
        {},
        set(),
        ("sar", "retexo"),
        {"retexo": ("timeline", "curves"), "grappa": ("bytes",), "bulk": ("bytes",)},
    )

    def draw_new(name, caption, on, colours):
        new = name not in seen or name in again.get(system, ())
        seen.add(name)
        return drawn(name, caption, on, colours) if new else Picture(name, caption, "", "", b"\x89PNG")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "draw", draw_new)
        for system in sorted(SYSTEMS, key=lambda system: (system not in first, system != "sar")):
            found[system] = mr.report(runs / system)
    return found


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of the run of system bulk, to spoil."""
    return shutil.copytree(runs / "bulk", tmp_path / "run", ignore=shutil.ignore_patterns("report"))


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without pictures, for tests that look at words."""
    draw_only(monkeypatch)


def result_of(run):
    return json.loads((run / "result.json").read_text())


def edit_result(run, **changes):
    (run / "result.json").write_text(json.dumps({**result_of(run), **changes}))


def events_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_events(run, events):
    (run / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_page_says_what_the_result_says(runs, reported, system):
    result, page = result_of(runs / system), page_of(reported[system])
    assert f"{result['model']} was trained with {system} on {DATASET} (400 nodes" in page.words
    for key in ("val_accuracy", "test_accuracy", "train_loss"):
        assert f"{key.replace('val_', 'validation ').replace('_', ' ')}{result[key]:.4f}" in page.words
    seconds = page.row("largest")
    shown = ["" if name == "other" else f"{result['seconds'][name]:.2f}" for name in (*ROWS, "total", "sample")]
    assert seconds == shown
    channels = page.row("bytes")
    for kind in {
        kind for channel in ("network", "store", "evaluation") for kind, n in result["bytes"][channel].items() if n
    }:
        row = dict(zip(channels, page.row(kind)))
        assert {c: row[c] for c in ("network", "store", "evaluation")} == {
            c: f"{result['bytes'][c].get(kind, 0):,}" for c in ("network", "store", "evaluation")
        }
    at = page.rows.index(["class", "nodes", "precision", "recall", "F1", "most often mistaken for"])
    for c, row in enumerate(result["confusion"]):
        wrong = max(n for other, n in enumerate(row) if other != c)
        recall = row[c] / max(1, sum(row))
        shown = page.rows[at + 1 + c]
        assert shown[:2] == [str(c), str(sum(row))] and shown[3] == f"{recall:.3f}"
        assert shown[5] == ("" if not wrong else f"{shown[5].partition(' ')[0]} ({wrong})")
    held_bytes = result["memory_bytes"][0]
    at = page.rows.index(["", "graph", "features", "step", "peak"])
    memory = [amount(held_bytes[k]) for k in ("graph", "features", "step")]
    assert page.rows[at + 1] == ["rank 0", *memory, amount(result["peak_rss_bytes"][0])]
    assert page.row("torch") == [result["versions"]["torch"]]
    assert page.row("model.hidden") == ["8"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_page_is_whole_and_needs_nothing_else(reported, system):
    report = reported[system]
    page = page_of(report)
    assert len(page.ids) == len(set(page.ids)) > 0
    assert "script" not in page.tags
    assert not [link for link in page.links if not link.startswith("#")]
    assert {link[1:] for link in page.links} <= set(page.ids)
    html = report.path.read_text()
    assert not [value for value in page.values if "//" in value or "@import" in value]
    assert not re.search("//|@import|url", html.split("<style>")[1].split("</style>")[0])
    assert set(re.findall(r"url\(#([^)]*)\)", html)) <= set(page.ids)
    used = set(re.findall(r"var\((--[\w-]+)\)", html))
    assert used <= set(re.findall(r"(--[\w-]+):", html)), "every colour is defined"
    for png in report.pictures.values():
        assert png.parent == report.path.parent and png.read_bytes().startswith(b"\x89PNG")
    assert {"timeline", "curves", "bytes", "memory"} <= set(report.pictures)
    assert report.path.stat().st_size < 1_500_000


def test_two_ranks_and_their_parts(runs, reported):
    result, page = result_of(runs / "sar"), page_of(reported["sar"])
    summary = reported["sar"].runs[0]
    sent = np.array(summary["sent"]["network"])
    for history, rank in zip(sent.sum(axis=1), result["bytes"]["per_rank"]):
        rows = rank["network"]["activations"] + rank["network"]["graph"]
        assert 0 < rows <= history <= rows + rank["network"]["control"]
    assert np.diag(sent).tolist() == [0, 0]
    for rank, spent in enumerate(summary["seconds"]["per_rank"]):
        last = [e for e in events_of(runs / "sar") if e["event"] == "Pulse" and e["rank"] == rank][-1]["seconds"]
        assert spent["evaluate"] == pytest.approx(last["evaluate"], abs=0.02)
        assert spent["reduce"] == pytest.approx(last["reduce"], abs=0.02)
        assert spent["exchange"] + spent["forward_backward"] == pytest.approx(last["forward_backward"], abs=0.02)
        assert sum(spent.values()) == pytest.approx(last["total"], rel=0.05, abs=0.3)
    parts = json.loads((runs / "sar" / "parts" / "manifest.json").read_text())["meta"]["quality"]
    assert f"{100 * parts['cut_share']:.1f} % of the edges are cut" in page.words
    for number, part in enumerate(parts["parts"]):
        assert [str(number), *(f"{part[k]:,}" for k in ("nodes", "train", "edges", "cut_edges", "halo"))] in page.rows
    assert page.row("seconds", "for rank 0", "for rank 1") == ["in all"]
    assert {"pairs", "parts"} <= set(reported["sar"].pictures)


def test_phases_are_told(runs, reported):
    page = page_of(reported["retexo"])
    for phase in result_of(runs / "retexo")["phases"]:
        assert any(phase["name"] in row and str(phase["parameters"]) in row for row in page.rows)


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_has_not_finished(copied):
    (copied / "result.json").unlink()
    text = (copied / "metrics.jsonl").read_text()
    (copied / "metrics.jsonl").write_text(text[: text.rindex('{"event": "EpochDone"') + 30])
    report = mr.report(copied)
    page = page_of(report)
    assert report.runs[0]["status"] == "not finished"
    assert f"millrace run --resume --out {copied}" in page.words and "There is no result.json" in page.words
    assert "1 line of metrics.jsonl could not be read" in page.words
    assert "1 epoch in" in page.words and "of 2 asked for" in page.words
    with locked(copied):
        running = mr.report(copied)
    assert running.runs[0]["status"] == "running" and "last heard from" in page_of(running).words


@pytest.mark.usefixtures("undrawn")
def test_counts_by_class_that_do_not_fit_are_left_out(copied):
    edit_result(copied, confusion=[[1, 2], [3]])
    page = page_of(mr.report(copied))
    assert "Classes of the test split" in page.words and "Confusion matrix" not in page.words
    edit_result(copied, per_class={"support": [1.0], "f1": []})
    assert "Classes of the test split" not in page_of(mr.report(copied)).words


@pytest.mark.usefixtures("undrawn")
def test_notes_on_the_data_are_shown(copied):
    card = {"columns": [], "notes": ["Ids had gaps (missing_ids=compact)."]}
    (copied / "data_card.json").write_text(json.dumps(card))
    assert "Ids had gaps (read.missing_ids=compact)." in page_of(mr.report(copied)).words


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_was_stopped(copied):
    """By request: it has a result, without a test accuracy."""
    record = result_of(copied)
    (copied / "result.json").write_text(
        json.dumps({**record, "status": "stopped", "test_accuracy": None, "peak_rss_bytes": [0]})
    )
    report = mr.report(copied)
    assert report.runs[0]["status"] == "stopped"
    assert f"it was stopped (resume with: millrace run --resume --out {copied})" in page_of(report).words


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_has_only_begun(copied):
    for name in ("result.json", "metrics.jsonl"):
        (copied / name).unlink()
    page = page_of(mr.report(copied))
    assert "There is no metrics.jsonl" in page.words and "No epoch has ended yet" in page.words
    write_events(copied, [{"event": "StageStarted", "time": 1.0, "stage": "train", "text": "training", "total": 2}])
    assert "no pulses" in page_of(mr.report(copied)).words


@pytest.mark.usefixtures("undrawn")
def test_an_old_run_without_pulses(copied):
    write_events(copied, [e for e in events_of(copied) if e["event"] not in ("Pulse", "QueueLevel")])
    old = result_of(copied)
    for name in ("memory_bytes", "phases", "lost", "clients", "hot_rows", "waits"):
        del old[name]
    (copied / "result.json").write_text(json.dumps(old))
    report = mr.report(copied)
    page = page_of(report)
    assert "has no pulses of ranks" in page.words
    assert set(report.pictures) == {"curves", "bytes"} and report.runs[0]["shares"] == {}
    assert page.row("largest")[0] == f"{old['seconds']['forward_backward']:.2f}"


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_another_version_s_configuration(copied):
    with (copied / "job.toml").open("a") as f:
        f.write("\n[later]\nthing = 7\n")
    assert page_of(mr.report(copied)).row("later.thing") == ["7"]


@pytest.mark.usefixtures("undrawn")
def test_resumed_days_later(copied):
    shutil.rmtree(copied / "report", ignore_errors=True)
    before = events_of(copied)
    mr.run(DATASET, out=copied, resume=True, **{**JOB, **SAMPLED, "epochs": 3})
    events = events_of(copied)
    later = [{**e, "time": e["time"] + 3 * 86400} for e in events[len(before) :]]
    write_events(copied, before + later)
    report = mr.report(copied)
    record = read_run(copied, "run")
    line = timeline(record)
    assert line is not None
    ((at, length),) = line.cuts
    assert 3 * 86400 - 1 < length < 3 * 86400 + 3600 and at == pytest.approx(before[-1]["time"] - line.begin, abs=0.01)
    assert line.length < 3600
    assert "3 epochs" in report.runs[0]["headline"] and sorted(record.log.epochs) == [0, 1, 2]
    assert "nothing ran for 72 h" in page_of(report).words
    # What a checkpoint brought back is not counted again.
    assert sum(report.runs[0]["seconds"]["per_rank"][0].values()) < line.length + 0.1
    spent = sum(s.seconds[-1].sum() for s in line.ranks[0])
    assert spent == pytest.approx(sum(float(s.at[-1] - s.at[0]) for s in line.ranks[0]), rel=1e-6)


def test_what_a_folder_says_is_never_markup(runs, tmp_path, monkeypatch):
    escapes = "\x1b]8;;x\x07\u202e"
    evil = tmp_path / f"<b>&amp;\"x' $\\alpha${escapes}"
    shutil.copytree(runs / "bulk", evil, ignore=shutil.ignore_patterns("report"))
    with (evil / "metrics.jsonl").open("a") as f:
        f.write(json.dumps({"event": "Note", "time": 2e9, "text": f"<script>alert(1)</script>{escapes}"}) + "\n")
        begun = {"event": "StageStarted", "time": 2e9, "stage": f"<i>$x_{escapes}", "text": "y", "total": None}
        f.write(json.dumps(begun) + "\n")
    edit_result(evil, model=f"</title><script>1</script>{escapes}", dataset=f"]]>{escapes}")
    other = shutil.copytree(evil, tmp_path / "c&d", ignore=shutil.ignore_patterns("report"))
    # Those with names of stages, and of runs: in a legend, and beside bars.
    draw_only(monkeypatch, "0-timeline", "1-timeline", "compared-loss", "compared-time")
    two = mr.report([evil, other], tmp_path / "two")
    draw_only(monkeypatch, "timeline")
    for report in (mr.report(evil, tmp_path / "one"), two):
        page, shown = page_of(report), printable(escapes)
        assert len(page.ids) == len(set(page.ids))
        assert not {"script", "b", "i"} & page.tags
        assert all(text + shown in page.words for text in ("<script>alert(1)</script>", "x' $\\alpha$", "<i>$x_"))
        for file in (p for p in report.path.parent.rglob("*") if p.suffix in (".html", ".md", ".svg")):
            assert not {"\x1b", "\x07", "\u202e"} & set(file.read_text()), file


def test_several_runs(runs, tmp_path, monkeypatch):
    draw_only(monkeypatch, "compared-")
    report = mr.report([runs / "bulk", runs / "sar", runs / "grappa"], tmp_path / "report")
    page = page_of(report)
    assert len(page.ids) == len(set(page.ids))
    result = [result_of(runs / system) for system in ("bulk", "sar", "grappa")]
    assert page.row("test accuracy") == [f"{r['test_accuracy']:.4f}" for r in result]
    assert page.row("network: gradients") == [amount(r["bytes"]["network"]["gradients"]) for r in result]
    assert page.row("seconds in all") == [f"{r['seconds']['total']:.2f}" for r in result]
    begin = page.rows.index(["", "bulk", "sar", "grappa"], page.rows.index(["", "bulk", "sar", "grappa"]) + 1)
    compared = [row[0] for row in page.rows[begin + 1 :] if len(row) == 4][: len(page.rows)]
    assert page.rows[begin + 1 + compared.index("ranks")] == ["ranks", "1", "2", "1"]
    assert "model.hidden" not in compared and "train.lr" not in compared
    assert page.row("train.batch_size") == ["50", "1024", "50"]
    assert {"accuracy", "loss", "time", "network", "memory", "bulk/timeline", "sar/pairs"} <= set(report.pictures)
    assert [r["system"] for r in report.runs] == ["bulk", "sar", "grappa"]


def log_of(rows, *, begin=1000.0, trains=True, lives=None, every=1.0):
    """Pulses once in `every` seconds, of cumulative seconds by stage."""
    log = RankLog()
    for i, row in enumerate(rows):
        seconds = {"total": (i + 1) * every, **({"train": 1.0} if trains else {}), **row}
        steps = i if lives is None else lives[i]
        log.add(
            begin + (i + 1) * every,
            {
                "seconds": seconds,
                "steps": steps,
                "rss_bytes": 1,
                "queue": {},
                "stage": "",
                "bytes": {},
                "sent_to": {},
                "hot": {},
                "epoch": 0,
                "step": i,
            },
        )
    return log


def test_who_waited_for_whom():
    """Rank 1 computes for 1 s and never waits; the others compute for less. Later rank 2 is the slow one."""
    n = 20
    work = {0: [0.25] * n, 1: [1.0] * 10 + [0.5] * 10, 2: [0.5] * 10 + [1.0] * 10}
    ranks = {}
    for rank, per_second in work.items():
        done = np.cumsum(per_second)
        rows = [{"forward_backward": float(d), "reduce": float(i + 1 - d)} for i, d in enumerate(done)]
        ranks[rank] = stretches(log_of(rows), BACKGROUND, None)
    line = Timeline(1000.0, [], float(n), ranks)
    expected = [[0.0, 7.5, 7.5], [0.0, 0.0, 5.0], [0.0, 5.0, 0.0]]
    np.testing.assert_allclose(line.waits(), expected, atol=1e-6)
    edges, shares = line.shares(0, 4)
    np.testing.assert_allclose(edges, [0, 5, 10, 15, 20])
    np.testing.assert_allclose(shares[:, ROWS.index("forward_backward")], 0.25)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [
        (WITHIN, {"forward_backward": 6.0, "exchange": 2.0}),
        (BESIDE, {"forward_backward": 8.0, "exchange": 2.0}),
        (BACKGROUND, {"forward_backward": 8.0}),
    ],
)
def test_where_exchange_counts(exchange, expected):
    rows = [{"forward_backward": 0.8 * (i + 1), "exchange": 0.2 * (i + 1)} for i in range(10)]
    line = Timeline(1000.0, [], 10.0, {0: stretches(log_of(rows), exchange, None)})
    seconds = {name: s for name, s in line.seconds(0).items() if s > 1e-9 and name != "other"}
    assert seconds == pytest.approx(expected)
    assert sum(line.seconds(0).values()) == pytest.approx(10.0)


def test_what_is_told_late_was_spent_before():
    """A clock that is told of three seconds at once, as at the end of a phase."""
    rows = [{}, {}, {}, {}, {"exchange": 3.0}, {"exchange": 3.0}]
    (stretch,) = stretches(log_of(rows), BESIDE, None)
    np.testing.assert_allclose(stretch.seconds[:, ROWS.index("exchange")], [0, 0, 0, 1, 2, 3, 3])


def test_a_wait_within_a_layer_counts_once_though_it_is_told_at_its_end():
    """The layers' clock runs on during a wait of three seconds, from the second one to the fourth."""
    rows = [{"forward_backward": float(i + 1), "exchange": 3.0 * (i >= 3)} for i in range(6)]
    (stretch,) = stretches(log_of(rows), WITHIN, None)
    np.testing.assert_allclose(stretch.seconds[:, ROWS.index("exchange")], [0, 0, 1, 2, 3, 3, 3][: len(stretch.at)])
    assert stretch.seconds[-1, ROWS.index("forward_backward")] == pytest.approx(3.0)


def test_a_restart_and_a_checkpoint_are_seen():
    """A rank dies after 4 s, starts again 6 s later, and goes on from a checkpoint of second 3: nothing counts
    twice."""
    rows = [{"forward_backward": float(i + 1)} for i in range(4)]
    log = log_of(rows)
    again = log_of([{}, {}], begin=1010.0, trains=False, lives=[0, 0])
    resumed = log_of([{"forward_backward": 3.0 + i} for i in range(4)], begin=1012.0, lives=[0, 1, 2, 3])
    for more, shift in ((again, 0.0), (resumed, 3.0)):
        for i, at in enumerate(more.beats["time"]):
            seconds = {name: more.beats[name][i] for name in COUNTED}
            pulse = {
                "seconds": {**seconds, "total": more.beats["total"][i] + shift},
                "steps": int(more.beats["steps"][i]),
                "rss_bytes": 1,
                "queue": {},
            }
            pulse["seconds"] |= {"train": 1.0} if more.beats["trains"][i] else {}
            log.add(at, {**pulse, "stage": "", "bytes": {}, "sent_to": {}, "hot": {}, "epoch": 0, "step": 0})
    assert len(log.lives) == 2
    pieces = stretches(log, BACKGROUND, 1013.0)
    assert [(s.at[0] - 1000, s.at[-1] - 1000) for s in pieces] == [(0.0, 4.0), (10.0, 12.0), (13.0, 16.0)]
    line = Timeline(1000.0, [], 16.0, {0: pieces})
    assert line.seconds(0)["forward_backward"] == pytest.approx(4.0 + 3.0)
    _, shares = line.shares(0, 16)
    assert shares[4:10].sum() == 0, "it did not run"


def test_what_is_found(copied):
    record = read_run(copied, "run")
    n = 40
    busy = [{"queue_wait": 0.6 * (i + 1), "forward_backward": 0.4 * (i + 1)} for i in range(n)]
    log = RunLog(first=1000.0, last=1000.0 + n, ranks={0: log_of(busy)})
    log.steps[0, 0] = 1020.0, 1.0, 0.5
    for epoch, at in ((0, 1022.0), (1, 1032.0), (2, 1040.0)):
        log.epochs[epoch] = {"train_loss": 0.5, "val_accuracy": 0.5, "seconds": 8.0, "best": True, "time": at}
    found = SimpleNamespace(
        **{**vars(record), "log": log, "status": "done", "result": {**record.result, "train_loss": None}}
    )
    line = timeline(found)
    summary = summarise(found, line)
    late, stored, diverged = summary.findings
    assert stored.startswith("Reading stored samples is a bottleneck: 60% of the time after the first epoch")
    log.ranks[0] = log_of([{**stages, "sample": 0.01 * (i + 1)} for i, stages in enumerate(busy)])
    sampling = next(f for f in summarise(found, timeline(found)).findings if "bottleneck" in f)
    assert late.startswith("The first step was done after 20.0 s of 40.0 s (mostly queue_wait)")
    assert sampling.startswith("Sampling is a bottleneck:") and "Sample once" in sampling
    assert "diverged" in diverged
    log.ranks[0] = log_of(busy[:25], begin=1015.0)
    unstarted = summarise(found, timeline(found)).findings[0]
    assert unstarted.startswith("The first step was done after 20.0 s of 40.0 s: processes start"), "no rank ran then"
    assert summary.shares["queue_wait"] == pytest.approx(0.6)
    slow = log_of([{"forward_backward": float(i + 1)} for i in range(n)])
    quick = log_of([{"forward_backward": 0.5 * (i + 1), "reduce": 0.5 * (i + 1)} for i in range(n)])
    log.ranks.clear()
    log.ranks.update({0: quick, 1: slow})
    waited = summarise(found, timeline(found)).findings[-2]
    assert waited.startswith("Other ranks waited for rank 1: 20.0 s in all, 50% of their time")
    assert "Rank 1 computed for 40.0 s (forward_backward), the others for 20.0 s on average." in waited


def test_epochs_of_one_step_are_found(copied):
    record = read_run(copied, "run")
    assert not [f for f in summarise(record, None).findings if "one step" in f]
    note = f"{ONE_STEP}: 1 minibatch of 1,024 seeds would hold all 114. More steps: e.g. --batch-size 8."
    record.log.notes.append((0.0, note))
    assert [f for f in summarise(record, None).findings if "one step" in f] == [note]


@pytest.mark.usefixtures("undrawn")
def test_lost_ranks_are_named(copied):
    edit_result(copied, lost=[{"rank": 1, "phase": 0, "epoch": 3, "step": 2, "seeds": 120, "epochs": 2}])
    assert "Rank 1 was lost; the others went on without its 120 seeds in 2 epochs." in page_of(mr.report(copied)).words


def test_hours_of_many_ranks_fit_on_a_page(copied, monkeypatch):
    """Pulses of 17 ranks over 6 hours, and 30,000 steps: more than are shown of each."""
    events = [{"event": "StageStarted", "time": 0.0, "stage": "train", "text": "", "total": 3}]
    last = next(e for e in events_of(copied)[::-1] if e["event"] == "Pulse")
    hours, every = 6 * 3600, 30
    for i in range(hours // every):
        t = (i + 1) * every
        for rank in range(17):
            seconds = {"total": t, "train": t, "forward_backward": 0.7 * t, "reduce": 0.01 * rank * t}
            events.append(
                {**last, "time": t, "rank": rank, "seconds": seconds, "steps": i, "rss_bytes": 10**9 + 10**6 * i}
            )
    step = next(e for e in events_of(copied) if e["event"] == "StepDone")
    events += [
        {**step, "time": i / 2, "epoch": i // 10000, "step": i % 10000, "steps_per_epoch": 10000, "loss": 1 / (i + 1)}
        for i in range(30000)
    ]
    write_events(copied, sorted(events, key=lambda e: e["time"]))
    lines = []
    monkeypatch.setattr(write, "timeline", lambda record: lines.append(timeline(record)) or lines[-1])
    report = mr.report(copied)
    assert report.path.stat().st_size < 2_000_000
    (line,) = lines
    assert line is not None and not line.cuts and len(line.ranks) == 17
    assert line.seconds(7)["reduce"] == pytest.approx(0.07 * hours)
    assert page_of(report).row("rank 7")[ROWS.index("reduce")] == f"{0.07 * hours:.2f}"


def millrace(*words):
    before, sys.argv = sys.argv, ["millrace", *map(str, words)]
    try:
        with pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before
    return left.value.code


@pytest.mark.usefixtures("undrawn")
def test_the_command(runs, tmp_path, capsys):
    assert millrace("report", runs / "bulk", "--out", tmp_path / "r", "--json") == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["page"] == str(tmp_path / "r" / "report.html") and f"report in {record['page']}" in err
    result = result_of(runs / "bulk")
    assert record["runs"][0]["test_accuracy"] == result["test_accuracy"]
    assert record["runs"][0]["bytes"] == {k: v for k, v in result["bytes"].items() if k != "per_rank"}
    assert sum(record["runs"][0]["shares"].values()) == pytest.approx(1.0)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("spoil", "words", "phrase"),
    [
        (lambda run: None, ["nowhere"], "holds no run (no job.toml)"),
        (lambda run: (run / "result.json").write_text("{"), ["run"], "is damaged"),
        (lambda run: (run / "result.json").write_text('{"schema_version": 0}'), ["run"], "schema version 0"),
        (lambda run: (run / "job.toml").write_text("epochs = ["), ["run"], "is not valid TOML"),
        (lambda run: (run / "report").write_text(""), ["run"], "choose another --out"),
        (lambda run: None, ["run", "run"], "named twice"),
    ],
)
def test_mistakes_are_sentences(copied, monkeypatch, capsys, spoil, words, phrase):
    spoil(copied)
    monkeypatch.chdir(copied.parent)
    assert millrace("report", *words) == 2
    err = capsys.readouterr().err
    assert phrase in err and len(err.splitlines()) <= 3


def test_without_matplotlib(copied, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert millrace("report", copied) == 2
    assert "'.[report]'" in capsys.readouterr().err
    assert not (copied / "report").exists()


def test_names_are_as_short_as_they_can_be(tmp_path):
    assert names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert names([tmp_path / "x" / "a", tmp_path / "y" / "a"]) == ["x/a", "y/a"]
    with pytest.raises(mr.InputError, match="no run is given"):
        mr.report([])


def test_words():
    assert [amount(n) for n in (0, 1023, 1536, 3 << 20, 5 << 40)] == [
        "0",
        "1,023 bytes",
        "1.5 KiB",
        "3.0 MiB",
        "5,120.0 GiB",
    ]
    assert [duration(s) for s in (0.5, 12.34, 150, 8000)] == ["0.50 s", "12.3 s", "2 min 30 s", "2 h 13 min"]
