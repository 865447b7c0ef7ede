"""Plugin of the Dask workers that the driver starts. Workers import this module: it must stay light."""

from typing import Any

from distributed import WorkerPlugin

from .signals import leave_signals_to_driver


class IgnoreSignals(WorkerPlugin):
    """A signal to a whole tree of processes is for its driver, and workers have to last until that is done with it."""

    def setup(self, worker: Any) -> None:
        """Ignore the signals in the worker."""
        leave_signals_to_driver()
