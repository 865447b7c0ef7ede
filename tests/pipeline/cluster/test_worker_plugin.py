"""Imports of a run's Dask worker."""

import signal
import subprocess
import sys

from millrace.pipeline.cluster.signals import STOPPING
from millrace.pipeline.cluster.worker_plugin import IgnoreSignals

HEAVY = {"torch", "numba", "scipy", "zarr", "pydantic", "sklearn", "bokeh"}


def test_a_worker_that_holds_a_rank_imports_nothing_heavy():
    code = (
        "import sys, millrace.pipeline.cluster.worker_plugin, millrace.pipeline.cluster.rank_host\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_signals_are_for_the_driver():
    before = {s: signal.getsignal(s) for s in (*STOPPING, signal.SIGUSR1)}
    try:
        IgnoreSignals().setup(None)
        assert {signal.getsignal(s) for s in before} == {signal.SIG_IGN}
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
