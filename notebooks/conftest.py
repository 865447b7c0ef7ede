"""Settings of the notebooks' tests."""

import os
from functools import partial

from jupyter_client.provisioning import local_provisioner
from nbclient import NotebookClient
from nbmake import nb_run

from millrace.tests.contracts.forked_kernel import ForkedKernel

# See tests/conftest.py.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no failure: Jupyter gives a kernel one minute to start.
nb_run.NotebookClient = partial(NotebookClient, startup_timeout=600)  # type: ignore[assignment]
local_provisioner.launch_kernel = ForkedKernel  # type: ignore[assignment]
