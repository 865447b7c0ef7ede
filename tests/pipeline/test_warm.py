"""`millrace warm` compiles what runs need, and says where it is kept."""

import json

import pytest
from typer.testing import CliRunner

from millrace.pipeline import warm
from millrace.pipeline.cli import app
from millrace.pipeline.config.systems import SYSTEMS
from millrace.pipeline.setup.configure import configure
from millrace.stages.kernels.runtime import precompile
from millrace.stages.models import MODELS
from millrace.stages.sample import SAMPLERS


def test_each_model_sampler_and_system_is_tried():
    jobs = [configure({**warm.TINY, **trial.config}) for trial in warm.trials("float32")]
    assert {job.model["name"] for job in jobs} == set(MODELS)
    assert {job.sampler["name"] for job in jobs if job.system == "bulk"} == set(SAMPLERS)
    assert {job.system for job in jobs} == set(SYSTEMS)


def test_a_trial_on_each_kind_of_graph_runs():
    """None raises."""
    kinds = {(t.weighted, t.edge_features, t.typed, t.timed): t for t in warm.trials("float64")}
    assert len(kinds) == 5
    for trial in kinds.values():
        warm.run_trial(trial)


@pytest.mark.slow
def test_a_second_process_finds_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    # The job with the fewest kernels.
    fewest = warm.Trial("sar", {"system": "sar", "layers": 1, "dropout": 0.0})
    monkeypatch.setattr(warm, "trials", lambda dtype: [fewest])

    def told() -> dict[str, object]:
        done = CliRunner().invoke(app, ["warm", "--json", "--processes", "1"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert not precompile.marker().exists()
    first, second = told(), told()
    assert first["compiled"] and second["compiled"] == 0
    assert first["cache"] == second["cache"] == str(tmp_path.resolve())
    assert precompile.marker().exists() and list(tmp_path.rglob("*.nbi"))


@pytest.mark.parametrize(
    ("flags", "said"), [(["--dtype", "half"], "expected float32 or float64"), (["--processes", "0"], "at least 1")]
)
def test_wrong_flags_are_refused(flags, said):
    done = CliRunner().invoke(app, ["warm", *flags])
    assert said in str(done.exception)
