"""Limits of the system: checks before processes start, and errors for resources that run out."""

import errno
from pathlib import Path

from ...storage.errors import InputError

FILES = 128
"""Open files of a driver: modules, sockets, files of the run."""
FILES_PER_PROCESS = 16
"""Additional open files for each worker and rank: pipes and connections."""
SHARED_MEMORY = Path("/dev/shm")


def check_open_files(processes: int) -> None:
    """Raise this process's limit of open files if it is too low for that many children.

    Raises:
        InputError: the hard limit is too low.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    needed = FILES + FILES_PER_PROCESS * processes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"a process may open {hard} files here, but {processes} workers and ranks need {needed}; "
            "raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def cannot_start_cluster(error: OSError, host: str) -> InputError:
    """The error for a cluster on `host` that the system refuses to start."""
    said = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        return InputError(
            f"cannot start processes: no space is left on {SHARED_MEMORY}, where their semaphores lie; free some there"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return InputError(f"cannot start processes: {said.lower()}; raise the limit (ulimit -n)")
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return InputError(
            f"cannot start processes: {said.lower()}; ask for fewer ranks, or raise the limits of processes and memory"
        )
    return InputError(f"cannot start a cluster on {host}: {said}; choose an address of this machine as cluster.host")
