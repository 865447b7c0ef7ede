"""Plans for GPUs beside runs on one, which is pretended here: bytes, and memory of tensors on it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from millrace.pipeline.config.load import Job
from millrace.pipeline.planning import forecast, inputs, traffic, trial, trial_server, trial_setup
from millrace.pipeline.planning.candidate import Candidate
from millrace.pipeline.planning.forecast import Forecast, device_memory_of, foresee, placed, table_bytes
from millrace.pipeline.planning.planner import Plan, plan
from millrace.pipeline.planning.table import as_text
from millrace.pipeline.planning.traffic import Moved
from millrace.pipeline.planning.trial import TrialResult
from millrace.pipeline.planning.trial_server import TrialServer
from millrace.pipeline.setup.result import read_result
from millrace.storage.errors import InputError
from millrace.tests.contracts import dask_cuda, pretended_device
from millrace.tests.contracts.forked_trials import TrialsOnDevice, without_base

pytest.importorskip("triton")

JOB: dict[str, Any] = {
    "hidden": 4, "layers": 2, "fanout": "2,2",
    "batch_size": 10, "epochs": 3, "threads": 1, "dropout": 0.0, "device": "cuda",
    "config": {"dataset": "sbm:nodes=100,classes=3,degree=4,features=300,train=0.3"},
}  # fmt: skip
"""Three minibatches an epoch."""
EPOCHS = 2
"""Epochs of a trial. The run has one more: it draws bulks while it validates."""
ROWS, TABLES = 100 * 300 * 4, 3 * 4096 * 5
SYSTEMS = ("bulk", "grappa", "sar", "retexo")
DRAWN = ("bulk", "grappa")
"""Those whose minibatches are drawn on the GPU."""


@dataclass
class Planned:
    """A plan for a GPU, with the candidates, their trials, and the results of their runs."""

    plan: Plan | None = None
    candidates: dict[str, Candidate] = field(default_factory=dict)
    seen: dict[str, TrialResult] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def forecast(self, system: str) -> Forecast:
        """Forecast of a system."""
        assert self.plan is not None
        return next(f for f in self.plan.systems if f.label == system)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, on_device: Any) -> Iterator[Planned]:
    found = Planned()

    def heard(s: Candidate, room: int, seen: TrialResult | None = None) -> Forecast:
        if seen is not None:
            found.candidates[s.label], found.seen[s.label] = s, seen
        return foresee(s, room, seen)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as exits:
        shorten(patch)
        patch.setattr(trial_setup, "foresee", heard)
        patch.setattr(trial_server, "subprocess", SimpleNamespace(Popen=TrialsOnDevice, PIPE=None, DEVNULL=None))
        found.plan = plan(emit=lambda e: None, **JOB)
        server, folder = TrialServer(exits), tmp_path_factory.mktemp("runs")
        for system in SYSTEMS:
            job = as_asked(found.candidates[system].job)
            shorter = job.model_copy(update={"epochs": EPOCHS})  # all epochs of full batches are alike
            server.run(with_tables(job) if system in DRAWN else shorter, folder / system, None)
            found.results[system] = read_result(folder / system) or {}
        yield found


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Trials of fewer epochs and steps than others."""
    for module in (trial, trial_setup, forecast, traffic):
        patch.setattr(module, "EPOCHS", EPOCHS)
    patch.setattr(trial_setup, "MOST_STEPS", 2)


def as_asked(job: Job, config: Mapping[str, Any] = MappingProxyType({})) -> Job:
    """The job without the choices of rows and lists on the GPU that a user leaves out, who asks for those in
    `config`."""
    return job.model_copy(update={"gpu": type(job.gpu)(**config.get("gpu", {}))})


def with_tables(job: Job) -> Job:
    """The job with room for one bulk: the next one waits, and the tables that it was drawn by stay, whatever threads
    do."""
    return job.model_copy(update={"queue": job.queue.model_copy(update={"max_bytes": 1})})


@pytest.mark.parametrize("system", SYSTEMS)
def test_bytes_and_memory_are_those_of_the_run(planned: Planned, system: str) -> None:
    found, result = planned.forecast(system), planned.results[system]
    counted = {kind: count for kind, count in result["bytes"]["store"].items() if count}
    assert {kind: count for kind, count in found.bytes["store"].items() if count} == counted
    (peak,) = result["peak_device_bytes"]
    assert peak > ROWS and found.device_bytes == sum(found.device_memory.values())
    drawn = system in DRAWN
    assert ROWS < found.device_memory["data"] - TABLES * drawn < 1.1 * ROWS
    # When a step or a validation takes most, a bulk is being drawn, or has been.
    assert found.device_bytes == pytest.approx(peak, rel=0.08 * drawn)


@pytest.mark.parametrize(
    "config",
    [
        {"read": {"task": "link"}, "train": {"batch_size": 32}},
        {"learned": {"width": 100}},
        {"learned": {"width": 100, "optimizer": "adam"}, "gpu": {"features": "pinned"}},
        {"dataset": "tsbm:nodes=100,degree=4,features=300", "sampler": {"name": "temporal", "fanout": [2, 2]}},
    ],
    ids=["links", "learned", "learned on the host", "time"],
)
def test_links_learnt_features_and_samples_by_time_are_planned_too(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_device: Any
) -> None:
    shorten(monkeypatch)
    known, found = inputs.variants(), {}

    def heard(s: Candidate, room: int, seen: TrialResult | None = None) -> Forecast:
        found.update(candidate=s, seen=seen)
        return foresee(s, room, seen)

    monkeypatch.setattr(inputs, "variants", lambda: {"bulk": known["bulk"]})
    monkeypatch.setattr(trial_setup, "foresee", heard)
    monkeypatch.setattr(trial_server, "subprocess", SimpleNamespace(Popen=TrialsOnDevice, PIPE=None, DEVNULL=None))
    without_base(monkeypatch)
    job = {k: v for k, v in JOB.items() if k != "fanout" or "sampler" not in config}
    job |= {"epochs": EPOCHS, "config": {**JOB["config"], **config}}
    (forecast,) = plan(emit=lambda e: None, **job).systems
    s = found["candidate"]
    with ExitStack() as exits:
        TrialServer(exits).run(as_asked(s.job, config), tmp_path / "run", None)
    result = read_result(tmp_path / "run") or {}
    assert s.job.kernel == "cuda"
    stored = {kind: count for kind, count in forecast.bytes["store"].items() if count}
    assert stored == {kind: count for kind, count in result["bytes"]["store"].items() if count} == {"features": ROWS}
    # Samples by time need none.
    tables = TABLES // 3 * s.minibatches * ("sampler" not in config)
    # There is room for all rows on the GPU, if only as a cache.
    assert ROWS < forecast.device_memory["data"] - tables < 1.1 * ROWS
    if "learned" in config:
        # With a number of Adagrad's for each of them, or two of Adam's, and the copy of the best epoch.
        on_host, table = "gpu" in config, 4 * 100 * 100 * (4 if "gpu" in config else 3)
        assert forecast.device_memory.get("learned", 0) == table * (not on_host)
        assert (forecast.memory.get("learned", 0), forecast.memory.get("checkpoint", 0)) == (
            (table, 0) if on_host else (0, table)
        )
        grown = device_memory_of(larger(s, 3), replace(found["seen"], base_device_bytes=0), 0)
        assert grown.get("learned", 0) == 3 * table * (not on_host)
    # Minibatches of fewer seeds than are there for a trial differ.
    assert forecast.device_bytes == pytest.approx(result["peak_device_bytes"][0], rel=0.15)


def larger(s: Candidate, times: int) -> Candidate:
    """The candidate on a graph that is larger than the trial's."""
    n = s.at.numbers
    return replace(s, at=replace(s.at, numbers=replace(n, nodes=times * n.nodes, edges=times * n.edges)))


def test_data_grow_with_the_graph_and_steps_of_minibatches_do_not(planned: Planned) -> None:
    parts = {}
    for system in ("bulk", "sar"):
        s, seen = planned.candidates[system], replace(planned.seen[system], base_device_bytes=100)
        seen = replace(seen, peak_device_bytes=[seen.memory_bytes[0]["step"] + 700])
        small, large = (device_memory_of(x, seen, 0) for x in (s, larger(s, 3)))
        # Bulks are drawn beside validations.
        more, waiting = TABLES * (system == "bulk"), small.pop("bulks", 0)
        assert sum(small.values()) == pytest.approx(seen.peak_device_bytes[0] + more, abs=2)
        assert (waiting > 0) == (system == "bulk"), "of the third epoch"
        assert small["process"] == large["process"] == 100
        assert small["evaluation"] == large["evaluation"] / 3 == 700 + more
        parts[system] = [large[use] / small[use] for use in ("data", "step")]
    assert parts == {"bulk": [pytest.approx(3), 1], "sar": [pytest.approx(3)] * 2}
    s = planned.candidates["bulk"]
    assert table_bytes(s, 5000, 3) == 2 * TABLES, "of two times 4,096 nodes"
    assert table_bytes(s, 10**9, 3) == 5 * (1 + 10**9 // 4096) * 4096, "a bulk is drawn in pieces"
    # Rows that lie on the host are cached up to a limit, in the trial up to as large a share.
    s, seen = larger(planned.candidates["bulk"], 3), planned.seen["bulk"]
    gpu = s.job.gpu.model_copy(update={"features": "pinned", "cache_bytes": 6000})
    cached = replace(s, job=s.job.model_copy(update={"gpu": gpu}))
    parts = [device_memory_of(x, replace(seen, base_device_bytes=0), 0) for x in (s, cached)]
    assert parts[0]["data"] - parts[1]["data"] == 3 * ROWS - 6000
    assert parts[1]["step"] - parts[0]["step"] == ROWS - 2000


def test_bulks_that_may_wait_on_a_gpu_count_beyond_those_of_the_trial(planned: Planned) -> None:
    s, seen = planned.candidates["bulk"], replace(planned.seen["bulk"], minibatch_bytes=100.0)

    def bulks(epochs: int, max_bytes: int) -> float:
        queue = s.job.queue.model_copy(update={"max_bytes": max_bytes})
        job = s.job.model_copy(update={"epochs": epochs, "queue": queue})
        return device_memory_of(replace(s, job=job), seen, 0)["bulks"]

    # An epoch is a bulk of three minibatches; the trial has two bulks.
    assert [bulks(epochs, 1 << 30) for epochs in (1, 2, 5)] == [0, 0, 3 * 300]
    assert [bulks(100, size) for size in (1, 899, 900)] == [0, 300, 600]


def test_a_choice_by_what_fits_is_that_of_the_whole_graph(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    s = planned.candidates["bulk"]
    s = larger(replace(s, job=as_asked(s.job)), 3)

    def choices(room: float) -> tuple[str, str]:
        gpu = placed(replace(s, at=replace(s.at, device_room=room))).job.gpu
        return gpu.topology, gpu.features

    lists = 4 * s.at.numbers.edges
    assert choices(3 * ROWS / 0.6 + lists + 1) == ("device", "device")
    assert choices(3 * ROWS / 0.6 + lists - 1) == ("device", "pinned")
    assert choices(lists) == ("pinned", "pinned")
    monkeypatch.setattr(forecast, "arrays_of", lambda s: {"features": (5, 90)})
    with pytest.raises(InputError, match=r"gpu\.features is 'auto', and only some of it fits: plan does not predict"):
        choices(100)


def test_a_gpu_that_is_too_small_is_told_with_the_arithmetic(planned: Planned) -> None:
    s, seen = planned.candidates["bulk"], planned.seen["bulk"]
    s = replace(s, at=replace(s.at, device_room=ROWS // 2))
    least, tried = foresee(s, 1 << 40), foresee(s, 1 << 40, seen)
    assert not least.fits and least.device_memory == {"topology": 4 * s.at.numbers.edges, "features": ROWS}
    assert not tried.fits and " + evaluation 0 + " in tried.arithmetic and " MiB for its GPU" in tried.arithmetic
    assert foresee(replace(s, at=replace(s.at, device_room=1 << 30)), 1 << 40, seen).fits
    assert planned.plan is not None and planned.plan.device_bytes > 7 << 30
    text = as_text(replace(planned.plan, systems=(tried, *planned.plan.systems[1:])))
    assert " GB on its GPU\n" in text and " on GPU\n" in text and f"bulk does not fit: {tried.arithmetic}" in text


def test_ranks_that_share_a_gpu_take_longer_and_threads_that_share_a_core_do_not(planned: Planned) -> None:
    s, seen = planned.candidates["sar"], planned.seen["sar"]
    one, two = (foresee(replace(s, at=replace(s.at, per_host=n, threads=9)), 1, seen) for n in (1, 2))
    assert one.seconds_per_epoch == seen.step_s and two.seconds_per_epoch == pytest.approx(2 * seen.step_s)
    with pytest.raises(InputError, match="2 ranks want a GPU each under NCCL, but this machine has 1; use ranks = 1"):
        plan(emit=lambda e: None, ranks=2, **JOB)


def test_blocks_of_rows_on_gpus_are_left_out(on_device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not pretended_device.is_pretended():
        pytest.skip("there is a GPU")
    dask_cuda.install_for_ranks(monkeypatch, tmp_path / "imports")
    known, tried = inputs.variants(), list[str]()

    def not_tried(self: Any, label: str, job: Job, system: Any) -> tuple[Forecast, None]:
        tried.append(label)
        return Forecast(label, system.name, True, 1, {"process": 1}, "", seconds_per_epoch=1.0), None

    monkeypatch.setattr(inputs, "variants", lambda: {k: known[k] for k in ("bulk", "bulk, partitioned")})
    monkeypatch.setattr(trial_setup.Trials, "forecast", not_tried)
    shared = {**JOB["config"], "cluster": {"backend": "gloo", "dashboard_port": 0}}
    made = plan(emit=lambda e: None, **{**JOB, "ranks": 2, "config": shared})
    assert tried == ["bulk"]
    said = "bulk, partitioned is left out: plan does not predict a partitioned topology on GPUs in this version."
    assert said in made.notes


@pytest.mark.parametrize(("numel", "ranks"), [(1, 2), (7, 3), (10**6 + 1, 4)])
def test_sums_over_nccl_send_as_much_in_all(numel: int, ranks: int) -> None:
    gloo, nccl = Moved(), Moved()
    gloo.add_sums("gradients", numel, 4, ranks, 2)
    nccl.add_sums("gradients", numel, 4, ranks, 2, on_gpus=True)
    assert gloo.bytes(0, 1) == nccl.bytes(0, 1) == {"network": {"gradients": 16 * (ranks - 1) * numel}, "store": {}}
    assert nccl.waits["gradients"] == 4 * (ranks - 1)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers", "on_device")
def test_two_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trial of ranks from workers of a stand-in for dask-cuda."""
    if not pretended_device.is_pretended():
        pytest.skip("there is a GPU")
    dask_cuda.install_for_ranks(monkeypatch, tmp_path / "imports")
    known, label = inputs.variants(), "bulk, owned features"
    monkeypatch.setattr(inputs, "variants", lambda: {label: known[label]})
    without_base(monkeypatch)
    job = {
        **JOB,
        "ranks": 2,
        "epochs": EPOCHS,
        "config": {**JOB["config"], "cluster": {"backend": "gloo", "dashboard_port": 0}},
    }
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        made = plan(emit=lambda e: None, **job)
    # The trial is the run.
    (owned,), trial = made.systems, made.trials[label]
    assert owned.bytes["network"]["gradients"] == trial["bytes"]["network"]["gradients"] > 0
    assert owned.bytes["network"]["features"] == trial["bytes"]["network"]["features"] > 0
    assert owned.bytes["store"]["features"] == trial["bytes"]["store"]["features"] == ROWS
    assert owned.device_bytes == pytest.approx(max(trial["peak_device_bytes"]), abs=2)
    # Each rank has half of the rows on its GPU, and draws two minibatches together.
    assert ROWS / 2 < owned.device_memory["data"] - 2 * 4096 * 5 < ROWS / 2 + 8000
