"""Settings of the notebooks' tests."""

import os
import re
from collections.abc import Callable
from functools import partial

import nbformat
from jupyter_client.provisioning import local_provisioner
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbmake import nb_run
from nbmake.nb_result import NotebookError, NotebookResult

from millrace.tests.contracts.forked_kernel import ForkedKernel

# See tests/conftest.py.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no failure: Jupyter gives a kernel one minute to start.
nb_run.NotebookClient = partial(NotebookClient, startup_timeout=600)  # type: ignore[assignment]
local_provisioner.launch_kernel = ForkedKernel  # type: ignore[assignment]

PROGRESS = re.compile(r"epoch \d+|note: |\w+: \d[\d,]* of ")
MASKED = re.compile(r"/tmp/\S+|\b[0-9a-f]{16,}\b|-?\d[\d,.]*(e[-+]?\d+)?|-{2,}")


def shown(output: NotebookNode) -> str:
    """Text of an output, with numbers, folders and spaces masked, and without lines of progress: they depend on the
    machine."""
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    lines = [line for line in text.splitlines() if not PROGRESS.match(line)]
    picture = "[picture]" * ("image/png" in output.get("data", {}))
    return picture or " ".join(MASKED.sub("#", "\n".join(lines)).split())


def compared(execute: Callable[[nb_run.NotebookRun], NotebookResult], run: nb_run.NotebookRun) -> NotebookResult:
    """Execute a notebook; an output that differs from the stored one is an error."""
    stored, result = nbformat.read(str(run.filename), nb_run.NB_VERSION), execute(run)
    for number, (old, new) in enumerate(zip(stored.cells, result.nb.cells)):
        if result.error is None and old.cell_type == "code" and "timed" not in old.metadata.get("tags", ()):
            was, now = (" ".join(filter(None, map(shown, cell.outputs))) for cell in (old, new))
            if was != now:
                summary = f"the stored output of cell {number} is stale: execute the notebook and save it"
                result.error = NotebookError(summary, f"{summary}\nstored: {was}\nnow:    {now}", number)
    return result


def _wrapped() -> Callable[[nb_run.NotebookRun], NotebookResult]:
    execute = nb_run.NotebookRun.execute
    return lambda run: compared(execute, run)


nb_run.NotebookRun.execute = _wrapped()  # type: ignore[method-assign]
