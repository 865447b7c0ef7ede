"""Rows that a phase reads: written down whole, and refused where they are of something else."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from millrace.pipeline.config.schema import Train
from millrace.pipeline.systems.retexo import retexo
from millrace.stages.comm.solo import Solo
from millrace.stages.fetch.phase_fetch import PhaseFetch, PhaseRows
from millrace.stages.messages import Phase
from millrace.stages.models.gcn import GCN
from millrace.stages.models.phased import PhasedModel, Phases
from millrace.stages.placement.boundary import WithBoundary
from millrace.storage.errors import StoreError
from millrace.storage.partition.phase_rows import KIND, open_phase_rows, write_phase_rows
from millrace.storage.store.store import open_store
from millrace.tests.contracts.full_batch import F, job, make_case
from millrace.tests.contracts.phases import RUN_SEED, initial, train_ranks

OF = {"phase": "1", "parameters": "p"}
CASE = make_case(8, 1)


def test_what_was_written_is_read_and_may_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "phases" / "phase-1" / "rank-0000"
    for scale in (1.0, 2.0):
        arrays = {
            "whole": np.arange(6.0).reshape(3, 2) * scale,
            "whole-remote": np.zeros((0, 2)),
            "narrow": np.zeros((3, 0)),
        }
        write_phase_rows(path, OF, 4, arrays, 80)
        store = open_phase_rows(path, OF)
        for name, rows in arrays.items():
            got = store.read(name)
            assert got.dtype == rows.dtype and got.shape == rows.shape and np.array_equal(got, rows)
        assert store.meta == {"generation": 4, "sent_bytes": 80}


def damaged_at(path: Path, where: str) -> None:
    files = sorted(f for f in path.rglob("*") if f.is_file() and where in str(f))
    assert files
    whole = files[-1].read_bytes()
    files[-1].write_bytes(
        whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 0x40]) + whole[len(whole) // 2 + 1 :]
    )


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"phase": "2", "parameters": "p"}, r"phase \(store 1, wanted 2\)"),
        ({"phase": "1", "parameters": "q"}, r"parameters \(store p, wanted q\)"),
        ({"phase": "1"}, r"parameters \(store p, wanted absent\)"),
    ],
)
def test_rows_of_something_else_are_refused_by_name(tmp_path: Path, wanted: dict[str, str], told: str) -> None:
    write_phase_rows(tmp_path / "rows", OF, 0, {"whole": np.ones((2, 2))})
    with pytest.raises(StoreError, match=told) as e:
        open_phase_rows(tmp_path / "rows", wanted)
    assert str(tmp_path / "rows") in str(e.value) and "stale or damaged rows of an exchange" in str(e.value)
    assert "start the run again in another folder" in str(e.value)


def test_rows_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is missing: the rows that this phase reads were removed") as e:
        open_phase_rows(tmp_path / "rows", OF)
    assert str(tmp_path / "rows") in str(e.value)


@pytest.mark.parametrize("where", ["manifest", "arrays/whole/c"])
def test_damage_is_noticed(tmp_path: Path, where: str) -> None:
    write_phase_rows(tmp_path / "rows", OF, 0, {"whole": np.random.default_rng(1).normal(size=(50, 4))})
    damaged_at(tmp_path / "rows", where)
    with pytest.raises(StoreError, match="damaged"):
        open_phase_rows(tmp_path / "rows", OF).read("whole")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PhasedModel]:
    """A finished run of one rank, and its model."""
    folder = tmp_path_factory.mktemp("run")
    system = retexo("v3")
    model = initial(GCN(hidden=4, layers=3, dropout=0.0), system, F)
    (best,) = train_ranks(CASE, system, model, 2, Train(optimizer="sgd", lr=0.1), lambda t: t.model, folder)
    return folder, best


def reopened(folder: Path, model: PhasedModel, phase: int, case: Any = CASE) -> PhaseRows:
    """Rows opened by a resumed run."""
    of = replace(job(Solo(), model.num_layers), folder=folder, seed=RUN_SEED)
    share = WithBoundary().place(case.part(0), Phase(0, 0, 1), of)
    return PhaseFetch().fetcher(share, of, model.phase(phase))


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_a_resumed_run_reads_the_rows_that_stand(run: tuple[Path, PhasedModel], phase: int) -> None:
    folder, model = run
    path = folder / "phases" / f"phase-{phase}" / "rank-0000"
    before = {f: f.stat().st_mtime_ns for f in path.rglob("*")}
    fetcher = reopened(folder, model, phase)
    assert {f: f.stat().st_mtime_ns for f in path.rglob("*")} == before
    records: list[dict[str, Any]] = []
    fetcher.finish(model.phase(phase), lambda leave: records.append(leave()))
    (again,) = records
    assert again["phase"] == phase and {f: f.stat().st_mtime_ns for f in path.rglob("*")} == before


def other(model: PhasedModel, **changes: Any) -> PhasedModel:
    made = initial(GCN(hidden=4, layers=3, dropout=0.0), retexo("v3", **changes), F)
    made.load_state_dict(model.state_dict())
    return made.eval()


def test_rows_of_other_parameters_are_refused(run: tuple[Path, PhasedModel]) -> None:
    folder, model = run
    changed = other(model)
    with torch.no_grad():
        changed.convs[0].bias[0] += 1e-15 + changed.convs[0].bias[0].abs() * 1e-15
    assert not torch.equal(changed.convs[0].bias, model.convs[0].bias)  # type: ignore[union-attr, arg-type]
    for phase in (1, 2):
        with pytest.raises(StoreError, match=rf"phase-{phase}/rank-0000.*parameters \(store"):
            reopened(folder, changed, phase)
    reopened(folder, changed, 0)


def test_the_parameters_of_this_phase_and_of_later_ones_do_not_matter(run: tuple[Path, PhasedModel]) -> None:
    folder, model = run
    changed = other(model)
    for name, p in changed.named_parameters():
        if not name.startswith(("convs.0", "norms.0", "heads.0")):
            nn.init.normal_(p)
    reopened(folder, changed, 1)
    with pytest.raises(StoreError, match="parameters"):
        reopened(folder, changed, 2)


def test_rows_of_another_rounding_graph_or_phase_are_refused(run: tuple[Path, PhasedModel], tmp_path: Path) -> None:
    folder, model = run
    for phase in (0, 1):
        with pytest.raises(StoreError, match=r"rounding \(store full, wanted int8\)"):
            reopened(folder, other(model, rounding="int8"), phase)
        with pytest.raises(StoreError, match=r"rows \(store"):
            reopened(folder, model, phase, make_case(16, 1))
    shutil.copytree(folder, tmp_path / "run")
    phases = tmp_path / "run" / "phases"
    shutil.rmtree(phases / "phase-2")
    (phases / "phase-1").rename(phases / "phase-2")
    with pytest.raises(StoreError, match=r"phase-2/rank-0000.*phase \(store 1, wanted 2\)"):
        reopened(tmp_path / "run", model, 2)
    with pytest.raises(StoreError, match="phase-1/rank-0000 is missing"):
        reopened(tmp_path / "run", model, 1)


def test_damaged_rows_end_a_resumed_run_and_lacking_features_are_sent_again(
    run: tuple[Path, PhasedModel], tmp_path: Path
) -> None:
    folder, model = run
    shutil.copytree(folder, tmp_path / "run")
    for phase in (1, 2):
        damaged_at(tmp_path / "run" / "phases" / f"phase-{phase}", "whole/c")
        with pytest.raises(StoreError, match="damaged"):
            reopened(tmp_path / "run", model, phase)
    shutil.rmtree(tmp_path / "run" / "phases" / "phase-0")
    reopened(tmp_path / "run", model, 0)
    assert open_store(tmp_path / "run" / "phases" / "phase-0" / "rank-0000", KIND).fingerprint["phase"] == "0"


def test_the_digest_of_a_phase_is_of_all_that_came_before_it() -> None:
    model = PhasedModel(GCN(hidden=4, layers=3), F, 3, Phases(base="mlp"))
    before = [model.phase(k).digest_before() for k in range(4)]
    assert len(set(before)) == 4
    for changed in range(4):
        for p in model.phase(changed).parameters():
            with torch.no_grad():
                p += 1
        after = [model.phase(k).digest_before() for k in range(4)]
        assert [a == b for a, b in zip(before, after)] == [k <= changed for k in range(4)]
        before = after
