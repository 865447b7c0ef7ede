"""Settings of the notebooks' tests."""

from functools import partial

from nbclient import NotebookClient
from nbmake import nb_run

# A busy machine is no failure: Jupyter gives a kernel one minute to start.
nb_run.NotebookClient = partial(NotebookClient, startup_timeout=600)  # type: ignore[assignment]
