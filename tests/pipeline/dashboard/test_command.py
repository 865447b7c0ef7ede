"""Records of commands that make stores, and what reports say of them."""

import json
import re
import time
from contextlib import contextmanager

import pytest

import millrace as mr
from millrace.pipeline.dashboard import command, publisher
from millrace.pipeline.dashboard.command import record_of, recorded_stages
from millrace.pipeline.report.stores import read_record, records_behind
from millrace.pipeline.telemetry.events import Note, OnCluster, StageAdvanced, StageEnded, StageStarted, silent
from millrace.storage.errors import InputError, Interrupted, RunError


def work(emit, tasks=3):
    emit(StageStarted("spill", "reading edges", tasks))
    held = bytearray(64 << 20)
    for done in range(1, tasks + 1):
        emit(StageAdvanced("spill", done, tasks))
    emit(StageEnded("spill", 0.5))
    emit(Note("s3://key:secret@host/x was read"))
    return len(held)


def test_a_record_has_stages_memory_traffic_and_the_end(tmp_path):
    seen, store = [], tmp_path / "store"
    with recorded_stages("convert", "tables", store, seen.append, goes_on=False) as emit:
        work(emit)
        (tmp_path / "file").write_bytes(bytes(3 << 20))
        emit(StageStarted("sort", "sorting edges", 1))
        emit(StageEnded("sort", 0.1))
        emit(StageEnded("convert", 9.0, "of the whole"))
    assert len(seen) == 9, "all events are passed on"
    found = read_record(store)
    assert (found.command, found.dataset, found.status, found.starts, found.unreadable) == (
        "convert",
        "tables",
        "done",
        1,
        0,
    )
    assert [(s.stage, s.text, s.tasks, s.ended) for s in found.stages] == [
        ("spill", "reading edges", 3, True),
        ("sort", "sorting edges", None, True),
    ]
    assert found.peak >= found.stages[0].peak >= 64 << 20
    assert found.written >= 3 << 20 and found.stages[0].written < 3 << 20, "what is written between stages is of none"
    assert [text for _, text in found.notes] == ["s3://***@host/x was read"]


@pytest.mark.parametrize(
    ("error", "status"), [(RunError("the disk is full"), "failed: the disk is full"), (Interrupted("x"), "interrupted")]
)
def test_a_record_goes_on_with_its_command(tmp_path, error, status):
    store = tmp_path / "store"

    def start(error=None, goes_on=True):
        with recorded_stages("sample", "by-part", store, silent, goes_on=goes_on) as emit:
            work(emit)
            if error is not None:
                raise error

    with pytest.raises(type(error)):
        start(error, goes_on=False)
    first = read_record(store)
    assert first.status == status and first.starts == 1
    with record_of(store).open("a") as f:
        f.write('{"event": "StageEnded", "time"\n["no event"]\n')
    start()
    both = read_record(store)
    assert (both.status, both.starts, both.unreadable, len(both.stages)) == ("done", 2, 2, 1)
    assert both.seconds >= first.seconds and "in 2 starts" in both.headline
    assert both.stages[0].seconds >= first.stages[0].seconds and both.stages[0].begin == first.stages[0].begin
    start(goes_on=False)
    assert read_record(store).starts == 1


def test_refused_input_leaves_no_record_and_no_place_is_no_error(tmp_path):
    def refused():
        with recorded_stages("convert", "x", tmp_path / "store", silent, goes_on=False) as emit:
            work(emit)
            raise InputError("no id")

    with pytest.raises(InputError, match="no id"):
        refused()
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "store", "s3://bucket/store"):
        with recorded_stages("convert", "x", place, silent, goes_on=False) as emit:
            work(emit)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    # That of an earlier command stays as it is.
    with recorded_stages("convert", "x", tmp_path / "store", silent, goes_on=False) as emit:
        work(emit)
    before = record_of(tmp_path / "store").read_bytes()
    with pytest.raises(InputError, match="no id"):
        refused()
    assert record_of(tmp_path / "store").read_bytes() == before


def test_a_long_command_leaves_few_readings(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "EVERY_S", 0.001)
    monkeypatch.setattr(command, "KEPT", 2)
    with recorded_stages("convert", "x", tmp_path / "store", silent, goes_on=False) as emit:
        emit(StageStarted("spill", "reading edges"))
        time.sleep(0.2)
    lines = [json.loads(line)["event"] for line in record_of(tmp_path / "store").read_text().splitlines()]
    assert 1 <= lines.count("Usage") <= 12


def test_events_go_to_the_page_of_a_cluster_while_it_lives(tmp_path, monkeypatch):
    shown, printed, about = [], [], {}

    @contextmanager
    def show(client, described, run, emit, what):
        about.update(described(), run=run, what=what)
        yield lambda event: (shown.append(event), emit(event))

    monkeypatch.setattr(publisher, "show", show)

    class Client:
        id = "c"

    with recorded_stages("partition", "store", tmp_path / "parts", printed.append, goes_on=False) as emit:
        assert isinstance(emit, OnCluster)
        emit(Note("before"))
        with emit.on_cluster(Client()):
            work(emit)
        emit(Note("after"))
    assert len(shown) == 6 and len(printed) == 8
    assert about.pop("run").startswith("partition-") and about.pop("what") == "this command"
    assert about == {"client": "c", "command": "partition", "dataset": "store", "out": str(tmp_path / "parts")}


def test_reports_show_how_stores_were_made(tmp_path):
    tables, store, parts = (tmp_path / name for name in ("tables", "<store>", "parts"))
    tables.mkdir()
    for made, source, name in ((store, tables, "convert"), (parts, store, "partition")):
        with recorded_stages(name, str(source), made, silent, goes_on=False) as emit:
            work(emit)
        made.mkdir()
    assert [r.command for r in records_behind(str(parts))] == ["convert", "partition"]
    assert records_behind("sbm:nodes=20") == []
    report = mr.report([store, parts], tmp_path / "report")
    page = report.path.read_text()
    assert page.count("<th>spill</th>") == 2 and "&lt;store&gt;" in page and "<store>" not in page
    assert "reading edges" in page and re.search(r"at most [\d.]+ [MG]iB of memory", page)
    assert [r["command"] for r in report.runs] == ["convert", "partition"]
    assert report.runs[0]["stages"][0]["tasks"] == 3
    assert mr.report(store).path == tmp_path / "<store>.report" / "report.html"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.toml").touch()
    with pytest.raises(InputError, match="is no run but a store; expected runs, or stores and nothing else"):
        mr.report([store, tmp_path / "run"])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write the report"):
        mr.report(store, tmp_path / "file" / "x")
