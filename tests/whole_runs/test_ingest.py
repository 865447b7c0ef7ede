"""Conversions by processes: several workers, killed workers, a killed driver; always the same store."""

import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.telemetry.events import StageAdvanced
from millrace.storage.dataset_store import write_dataset
from millrace.tests.contracts.forked_command import ForkedCommand, run_forked
from millrace.tests.contracts.process_ends import command_of

NODES, EDGES = 3000, 200_000
FLAGS = ("--memory", "700MiB", "--workers", "2", "--set", "read.direction=undirected")


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "g"
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = np.array([f"{i:05x}-{rng.integers(1 << 60):x}" for i in range(NODES)], object)
    for n in range(8):
        ends = names[rng.integers(0, NODES, (2, EDGES // 8))]
        table = pa.table({"src": ends[0], "dst": ends[1], "weight": rng.random(EDGES // 8)})
        pq.write_table(table, folder / f"edges-{n}.parquet", row_group_size=5000)
    x = rng.normal(size=(NODES, 4)).astype("f4")
    nodes = {"id": names, "label": rng.integers(0, 3, NODES), "features": x.tolist()}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet", row_group_size=500)
    return folder


@pytest.fixture(scope="module")
def wanted(tables, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("wanted") / "store"
    write_dataset(out, mr.open_dataset(tables, options=mr.ReadOptions(direction="undirected")))
    return contents(out)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def workers():
    """Processes of workers below this one."""
    return [p for p in psutil.Process().children(recursive=True) if "spawn_main" in command_of(p)]


@pytest.mark.usefixtures("forked_workers")
def test_workers_of_which_one_is_killed(tables, wanted, tmp_path):
    killed, stages, others = [], [], workers()

    def emit(event):
        if isinstance(event, StageAdvanced):
            stages.append(event.stage)
            if event.stage == "spill" and not killed:
                victim = next(p for p in workers() if p not in others)
                victim.kill()
                killed.append(victim.pid)

    options = mr.ReadOptions(direction="undirected")
    mr.convert(tables, tmp_path / "store", memory="700MiB", workers=2, options=options, emit=emit)
    assert killed and stages.count("spill") == 8
    assert contents(tmp_path / "store") == wanted


@pytest.mark.parametrize("stage", ["spill", "sort"])
def test_a_driver_that_is_killed(tables, wanted, tmp_path, stage):
    words = ["convert", tables, "--out", tmp_path / "store", *FLAGS]
    process = ForkedCommand(*words)
    done, until = tmp_path / ".ingest-store" / "done", time.monotonic() + 240
    while not list(done.glob(f"{stage}-*.json")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    process.kill()
    process.wait(240)
    assert not (tmp_path / "store").exists()
    kept = {f.name: f.stat().st_mtime_ns for f in done.glob(f"{stage}-*.json")}
    assert kept
    code, _, err = run_forked(*words)
    assert code == 0, err
    assert "that was stopped" in err
    assert contents(tmp_path / "store") == wanted
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".jsonl"] == ["store"]
