"""Ranks that a server forks: as processes of their own, and only where they differ from it in nothing."""

import gc
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import dask.config
import psutil
import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from millrace.pipeline.cluster import rank_server
from millrace.pipeline.cluster.rank_server import INDUCTOR, PLACE, RANK_MAIN, TRIM, forked, own_environment, serving
from millrace.pipeline.cluster.signals import STOPPING
from millrace.tests.contracts.forked_cluster import forked_cluster
from millrace.tests.contracts.process_ends import command_of

WAIT_S = 200.0
MORE = {"OF_THIS_TEST": "1"}


@pytest.mark.parametrize(
    ("of_worker", "of_dask", "left"),
    [("65536", 65536, None), ("1048576", 65536, "1048576"), (None, 65536, None), ("65536", None, "65536")],
)
def test_the_allocator_of_a_rank_is_not_that_of_its_worker(
    monkeypatch: pytest.MonkeyPatch, of_worker: str | None, of_dask: int | None, left: str | None
) -> None:
    """Values set by Dask are removed; values set by others, and all other variables, stay."""
    monkeypatch.delenv(TRIM, raising=False)
    monkeypatch.delenv(INDUCTOR, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if of_worker is not None:
        monkeypatch.setenv(TRIM, of_worker)
    monkeypatch.setenv("COLUMNS", "80")
    with dask.config.set({f"distributed.nanny.pre-spawn-environ.{TRIM}": of_dask}):
        environment = own_environment()
    assert environment.get(TRIM) == left
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment == {
        k: v for k, v in os.environ.items() if k not in {TRIM, INDUCTOR, *rank_server.OF_ITS_OWN}
    } | ({} if left is None else {TRIM: left})


def test_dask_still_sets_what_is_taken_away() -> None:
    """Or there is nothing to take away any more."""
    import distributed  # noqa: F401  its defaults

    assert TRIM in dask.config.get("distributed.nanny.pre-spawn-environ")


@pytest.mark.parametrize("of_user", [False, True])
def test_a_folder_that_torch_has_chosen_does_not_set_ranks_apart(monkeypatch, tmp_path, of_user):
    folder = str(tmp_path) if of_user else default_cache_dir()
    monkeypatch.setenv(INDUCTOR, folder)
    assert own_environment().get(INDUCTOR) == (folder if of_user else None)


START = rank_server._start


@pytest.fixture(scope="module", autouse=True)
def started_servers() -> Iterator[None]:
    """Servers are started, as users' are, also while a cluster of other tests is there, whose are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_server, "_start", START)
        yield


@pytest.fixture(scope="module")
def environment(started_servers: None) -> Iterator[dict[str, str]]:
    """Environment of ranks that a server here forks."""
    before, others = os.environ.get(PLACE), servers()
    with serving(MORE):
        yield {**rank_server._of_workers(), **MORE}
        names = os.listdir(os.environ[PLACE])
    assert len(names) == 1 and os.environ.get(PLACE) == before
    assert servers() == others, "it ends with the context"


def servers() -> list[int]:
    """Processes of this one that are servers of ranks."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if rank_server.__name__ in command_of(child)]


@pytest.fixture
def forked_servers() -> Iterator[None]:
    """Servers are forked themselves, where their start is not what is tested."""
    with forked_cluster():
        yield


def new_server(before: list[int]) -> int:
    """The server that is not among those `before`. One that is forked takes a moment to be called one."""
    end = time.monotonic() + WAIT_S
    while not (new := set(servers()) - set(before)):
        assert time.monotonic() < end
        time.sleep(0.02)
    (pid,) = new
    return pid


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[str]]:
    with (tmp_path / "log").open("a") as file:
        yield file


def until_gone(pid: int) -> None:
    end = time.monotonic() + WAIT_S
    while psutil.pid_exists(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_forked_rank_is_a_process_of_its_own(environment: dict[str, str], log: IO[str]) -> None:
    """With its command line, session, signals and environment, and no file but its three."""
    ranks = [forked(host, environment, log) for host in ("127.0.0.1", "127.0.0.2")]
    try:
        for rank, host in zip(ranks, ("127.0.0.1", "127.0.0.2")):
            assert rank is not None
            process = psutil.Process(rank.pid)
            assert "".join(process.parent().cmdline()).count(f"{rank_server.__name__}"), "not this process's child"
            end = time.monotonic() + WAIT_S
            while (words := [word for word in process.cmdline() if word])[-1] != host:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert words == [sys.executable, "-m", RANK_MAIN, host]
            assert os.getsid(rank.pid) == rank.pid
            # Ignored from the start: they are for the driver.
            ignored = int(Path(f"/proc/{rank.pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16)
            assert all(ignored >> (s - 1) & 1 for s in STOPPING)
            assert process.environ() == environment
            # Its messages go out by a copy of its standard output.
            files = {os.readlink(f"/proc/{rank.pid}/fd/{name}") for name in os.listdir(f"/proc/{rank.pid}/fd")}
            assert len(files) == 3 and log.name in files
            assert rank.poll() is None
    finally:
        for rank in ranks:
            assert rank is not None
            rank.kill()
    assert [rank.wait() for rank in ranks if rank is not None] == [-signal.SIGKILL] * 2
    assert [rank.poll() for rank in ranks if rank is not None] == [-signal.SIGKILL] * 2


def test_the_worker_gets_the_status_and_the_log_the_error(environment: dict[str, str], log: IO[str]) -> None:
    rank = forked("127.0.0.1", environment, log)
    assert rank is not None
    rank.stdin.write("no specification\n")
    rank.stdin.close()
    assert rank.stdout.read() == "" and rank.wait() == 1
    assert "JSONDecodeError" in Path(log.name).read_text()
    assert not psutil.pid_exists(rank.pid), "no zombie"


@pytest.mark.parametrize("differs", ["environment", "folder", "no server", "not there"])
def test_what_differs_is_not_forked(
    environment: dict[str, str], log: IO[str], differs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = dict(environment)
    if differs == "environment":
        given["MKL_NUM_THREADS"] = "7"
    elif differs == "folder":
        monkeypatch.chdir(tmp_path)
    elif differs == "no server":
        del given[PLACE]
    else:
        given[PLACE] = str(tmp_path)
    files = len(os.listdir("/proc/self/fd"))
    assert forked("127.0.0.1", given, log) is None
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.usefixtures("forked_servers")
def test_a_server_that_dies_takes_its_ranks_along_and_is_not_asked_again(log: IO[str]) -> None:
    with serving({}):
        environment = rank_server._of_workers()
        rank = forked("127.0.0.1", environment, log)
        assert rank is not None
        server = psutil.Process(rank.pid).parent()
        assert server is not None
        server.kill()
        assert rank.wait() == -signal.SIGKILL
        until_gone(rank.pid)
        assert forked("127.0.0.1", environment, log) is None


DRIVER = """
import os, sys
from millrace.pipeline.cluster.rank_server import serving
with serving({}):
    print("begun", flush=True)
    sys.stdin.readline()
"""


def test_a_server_ends_with_its_driver_and_removes_its_folder() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "begun\n"
        (server,) = psutil.Process(driver.pid).children()
        until = time.monotonic() + 60
        # Between its fork and its program a process has no words.
        while not (words := server.cmdline()) and time.monotonic() < until:
            time.sleep(0.01)
        folder = Path(words[-1])
        assert folder.is_dir()
        driver.kill()
    until_gone(server.pid)
    assert not folder.exists()


@pytest.mark.usefixtures("forked_servers")
def test_a_server_waits_for_the_next_run_and_ends_if_none_comes(
    log: IO[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next one has its ranks forked by the same server; one in another folder, or after its time, does not."""
    monkeypatch.setattr(rank_server, "_KEPT", [])
    monkeypatch.setattr(rank_server, "LINGER_S", WAIT_S)
    before, place = servers(), os.environ.get(PLACE)
    with serving({}):
        first = new_server(before)
        folder = Path(os.environ[PLACE])
    assert first in servers() and folder.is_dir() and os.environ.get(PLACE) == place
    with serving({}):
        assert set(servers()) - set(before) == {first}
        rank = forked("127.0.0.1", rank_server._of_workers(), log)
        assert rank is not None and psutil.Process(rank.pid).ppid() == first
        rank.kill()
        assert rank.wait() == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rank_server, "LINGER_S", 0.1)
    with serving({}):
        second = new_server(before)
        assert second != first and not folder.exists()
    until_gone(second)
    assert rank_server._KEPT == []


def test_a_server_with_threads_forks_nothing(log: IO[str]) -> None:
    """Here the array library starts some when it is imported."""
    with serving({"OPENBLAS_NUM_THREADS": "2"}):
        environment = {**rank_server._of_workers(), "OPENBLAS_NUM_THREADS": "2"}
        assert forked("127.0.0.1", environment, log) is None


def test_a_server_imports_without_collections_of_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("millrace.stages.kernels.runtime.jit.prepare_numba", lambda: seen.append(gc.isenabled()))
    monkeypatch.setattr(importlib, "import_module", lambda name, package: seen.append(gc.isenabled()))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    rank_server._import_all()
    assert seen == [False] * (len(rank_server.IMPORTED) + 1) and gc.isenabled()
