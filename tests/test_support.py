"""The support table is true: with a GPU, or a pretended one, each cell runs or is refused by a sentence."""

import json
import random
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import millrace as mr
from millrace.pipeline.config.systems import SYSTEMS
from millrace.tests.contracts import support_cells

pytest.importorskip("torch_geometric")
support = support_cells.page()
SAMPLE_S = 10.0
DATA = mr.open_dataset(support.DATASET, seed=0)


@pytest.fixture(scope="module")
def table() -> str:
    return support.support()


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("system", SYSTEMS.available())
def test_each_cell_is_what_a_dry_run_says(system: str, table: str) -> None:
    rows, told = table.split("\n\n")
    sentences = [line.split(". ", 1)[1] for line in told.splitlines()]
    lines = {tuple(line.strip("| ").split(" | ")[:3]): line.strip("| ").split(" | ")[3:] for line in rows.splitlines()}
    columns = [(device, model) for device in support.DEVICES for model in support.MODELS]
    for cell in (c for c in support.cells() if c.system == system):
        said = lines[f"`{system}`", cell.features, f"`{cell.queue}`"][columns.index((cell.device, cell.model))]
        refused = support.refusal(cell, DATA)
        if refused:
            assert "\n" not in refused and len(refused) < 300 and any(w in refused for w in ("; ", ": ")), cell
            number = 1 + sentences.index(refused)
            assert said in (f"no ({number})", f"- ({number})"), cell
        else:
            assert said == "yes", cell
        if (cell.queue, cell.features, cell.model) == ("memory", "of every rank", "Millrace's"):
            assert not refused, "a system runs by itself on its devices"


def jobs_that_run(table: str) -> list[set[str]]:
    """The jobs that each column of a table of jobs lets run; the sentences are checked."""
    rows, told = table.split("\n\n")
    assert all(len(line) < 300 and ("; " in line or ": " in line) for line in told.splitlines())
    cells = [line.strip("| ").split(" | ") for line in rows.splitlines()[2:]]
    return [{job for job, *said in cells if said[i] == "yes"} for i in range(len(cells[0]) - 1)]


@pytest.mark.usefixtures("on_device")
def test_the_table_of_typed_graphs() -> None:
    rgcn, hgt, sage = jobs_that_run(support.typed_support())
    assert rgcn == hgt == {
        "`bulk`", "`bulk`, `labor`", "`bulk`, queue `zarr`", '`bulk`, `features = "owned"`', "`bulk`, partitioned",
        "`sar`", '`sar`, `device = "cuda"`', '`bulk`, partitioned, `device = "cuda"`',
        '`bulk`, partitioned, `labor`, `device = "cuda"`',
        '`bulk`, `device = "cuda"`, `features = "owned"`', '`bulk`, `device = "cuda"`',
        '`bulk`, `labor`, `device = "cuda"`', '`bulk`, `labor`, `device = "cuda"`, `kernel = "cpu"`',
        "`bulk`, learnt features",
        '`bulk`, learnt features, `device = "cuda"`',
    }  # fmt: skip
    assert not sage


@pytest.mark.usefixtures("on_device")
def test_the_table_of_links_and_samples_by_time() -> None:
    links, of_relation, links_by_time, nodes_by_time, *edges = jobs_that_run(support.link_support())
    everywhere = {
        "`bulk`", "`bulk`, queue `zarr`", '`bulk`, `device = "cuda"`', '`bulk`, `device = "cuda"`, queue `zarr`',
        "`bulk`, learnt features", '`bulk`, learnt features, `device = "cuda"`',
        '`bulk`, `device = "cuda"`, `kernel = "cuda"`',
    }  # fmt: skip
    assert links_by_time == nodes_by_time == everywhere
    assert of_relation == everywhere | {
        '`bulk`, `features = "owned"`', '`bulk`, `device = "cuda"`, `features = "owned"`',
        "`bulk`, partitioned", '`bulk`, partitioned, `device = "cuda"`',
    }  # fmt: skip
    assert links == of_relation | {"`grappa`", '`grappa`, `device = "cuda"`'}
    assert edges == [links | {"`sar`"}, of_relation | {"`sar`"}, links_by_time]


@pytest.mark.usefixtures("on_device")
def test_a_system_that_a_refusal_names_is_not_refused_in_turn() -> None:
    named = 0
    with support.with_gpu():
        for job, column in support.link_cells():
            sentence = support.job_answer(job, column)[1]
            found = re.search(r"; use ([a-z]+(?: or [a-z]+)*)$", sentence)
            for other in found[1].split(" or ") if found else ():
                if other in SYSTEMS:
                    named += 1
                    assert support.job_answer({**job, "system": other}, column) == ("yes", ""), sentence
    assert named > 20


@pytest.mark.parametrize("model", ["of PyG", "own module"])
@pytest.mark.parametrize("system", ["grappa", "sar"])
def test_what_no_other_test_runs_on_a_device_runs(
    system: str, model: str, on_device: torch.device, tmp_path: Path
) -> None:
    given = support.options(support.Cell(system, "cuda", "memory", "of every rank", model))
    result = mr.run(DATA, out=tmp_path / "run", threads=1, **given)
    assert (result.status, result.device, result.epochs) == ("done", "cuda", 1)


@pytest.mark.slow
def test_a_sample_of_cells_is_killed_and_goes_on() -> None:
    names, start = support.accepted(), time.monotonic()
    random.Random(datetime.now(UTC).toordinal()).shuffle(names)  # other cells each day
    for name in names:
        support_cells.execute(name)
        if time.monotonic() - start > SAMPLE_S:
            break


def test_the_page_says_what_was_not_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = support.accepted()
    monkeypatch.setattr(support, "RECORD", tmp_path / "support.json")
    record = {"torch": "2.13.0", "device": "GPUs pretended", "cells": dict.fromkeys([*names[1:], "gone"], "2026-01-02")}
    support.RECORD.write_text(json.dumps(record))
    said = support.executed()
    assert "2026-01-02" in said and f"{len(names) - 1} of the {len(names)} cells" in said
    assert said.endswith(f"Not executed yet: {names[0]}.")
