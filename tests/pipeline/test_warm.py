"""`millrace warm` compiles what runs need, and says where it is kept."""

import json
import tempfile

import pytest
from typer.testing import CliRunner

from millrace.pipeline import warm
from millrace.pipeline.cli import app
from millrace.pipeline.config.systems import SYSTEMS
from millrace.pipeline.setup.configure import configure
from millrace.stages.learned.optimizers import OPTIMIZERS
from millrace.stages.models import MODELS
from millrace.stages.sample import SAMPLERS
from millrace.storage.store.committed_folder import HELD
from millrace.tests.contracts.fresh_python import run_python


def test_each_model_sampler_and_system_is_tried():
    jobs = [configure({**warm.TINY, **trial.config}) for trial in warm.trials("float32")]
    assert {job.model["name"] for job in jobs} == set(MODELS) - {"identity"}
    assert {job.sampler["name"] for job in jobs if job.system == "bulk"} == set(SAMPLERS)
    assert {job.system for job in jobs} == set(SYSTEMS)
    assert {job.learned.optimizer for job in jobs if job.learned.width} == set(OPTIMIZERS)


def test_a_trial_on_each_kind_of_graph_runs(tmp_path, monkeypatch):
    """None raises, and what a killed one left is removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "millrace-warm-killed"
    left.mkdir()
    (left / HELD).touch()
    kinds = {(t.weighted, t.edge_features, t.typed, t.timed): t for t in warm.trials("float64")}
    assert len(kinds) == 5
    for trial in kinds.values():
        warm.run_trial(trial)
    assert not list(tmp_path.glob("millrace-warm-*"))


TWICE = """
import multiprocessing
import sys

from numba.core import config

from millrace.pipeline import cli, warm
from millrace.stages.kernels.runtime import precompile

config.reload_config()  # numba has been imported without the folder
# The job with the fewest kernels, and a kernel with the marker, in processes that have imported what this one has.
warm.trials = lambda dtype: [warm.Trial("sar", {"system": "sar", "layers": 1, "dropout": 0.0})]
precompile.KERNELS = [kernel for kernel in precompile.KERNELS if kernel[1] == "transpose"]
fork = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method: fork
sys.argv = ["millrace", "warm", "--json", "--processes", "1"]
cli.main()
"""


@pytest.mark.slow
def test_a_second_process_finds_the_cache(tmp_path):
    def told() -> dict[str, object]:
        code, out, err = run_python("-c", TWICE, variables={"NUMBA_CACHE_DIR": str(tmp_path)})
        assert code == 0, err
        return json.loads(out)

    first, second = told(), told()
    assert first["compiled"] and second["compiled"] == 0
    assert first["cache"] == second["cache"] == str(tmp_path.resolve())
    assert list(tmp_path.glob("compiled-*")), "the marker"
    assert list(tmp_path.rglob("*.nbi"))


STOPPED = """
import multiprocessing, os, signal, sys, threading, time

from millrace.pipeline import cli, warm

warm.run_trial, warm.trials = time.sleep, lambda dtype: [600]
fork = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method: fork
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
sys.argv = ["millrace", "warm", "--json", "--processes", "1"]
cli.main()
"""


def test_an_interrupt_waits_for_no_compiler():
    code, _, err = run_python("-c", STOPPED, variables={"MILLRACE_STOP_S": "600"})
    assert code == 130 and "interrupted; what was committed stays" in err and "ended" not in err


@pytest.mark.parametrize(
    ("flags", "said"), [(["--dtype", "half"], "expected float32 or float64"), (["--processes", "0"], "at least 1")]
)
def test_wrong_flags_are_refused(flags, said):
    done = CliRunner().invoke(app, ["warm", *flags])
    assert said in str(done.exception)
