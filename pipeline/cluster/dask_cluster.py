"""The Dask cluster of a run: one that is started on this machine, or one that runs already."""

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask.config
from distributed import Client, LocalCluster, Security

from ...stages.partition.clustered import Clustered
from ...stages.rapids import named_cluster
from ...storage.errors import InputError, MissingExtraError, RunError, first_line
from ...storage.optional import present_items
from ...storage.store.full_disk import system_error
from ..config.held_cluster import held_at
from ..config.load import Job
from ..config.schema import ClusterOptions
from ..custom.main_guard import check_main_guard
from ..dashboard.publisher import HOSTS
from ..machine.deadline import temporary_folder
from ..machine.gpus import INSTALL, uses_ucx, visible
from ..machine.limits import cannot_start_cluster, check_open_files
from ..telemetry.events import Emit, Note, OnCluster, StageEnded, StageStarted, silent
from .scheduler_watch import ask, lost_scheduler
from .signals import kept_from_children
from .worker_plugin import IgnoreSignals

ANSWER_S = 10.0
"""Longest wait for a scheduler to accept a connection."""
START_S = 60.0
"""Longest wait for a cluster and its first worker."""
WAIT_NOTE_S = 1.0
"""A wait for a first worker that is longer is told."""
JOINED_S = 0.05
"""Interval between looks for a worker that has joined."""
CLOSE_S = 5.0
"""Longest wait for a client to close its connections."""
CLOSE_CLUSTER_S = 10.0
"""Longest wait for a cluster that was started here to stop."""
LOOP_S = 2.0
"""An event loop that does nothing for this long hangs."""
LINK_S = 2.0
"""Longest wait for an answer of the dashboard of a scheduler."""
SYNC_S = 60.0
"""Interval at which a cluster reports its name to its scheduler."""
SETTINGS = {
    # A task that waits for one worker is never better off elsewhere, and stealing moves bulks out of their order.
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": "120s",
    "distributed.comm.timeouts.connect": "15s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.dashboard.bokeh-application.check_unused_sessions_milliseconds": 5000,
    "distributed.scheduler.dashboard.bokeh-application.keep_alive_milliseconds": 5000,
    # Only pages that show something: Dask's proxy opens connections for any visitor, and its API, where it is
    # configured, stops workers.
    "distributed.scheduler.http.routes": [
        f"distributed.http.{name}"
        for name in ("scheduler.prometheus", "scheduler.info", "scheduler.json", "health", "statics")
    ],
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "1s",
    "distributed.admin.system-monitor.disk": False,
}
"""Workers hold no data of the run, so there is nothing to spill, and nothing to gain by pausing. The process that
trains is a child of the worker: profiling the worker, and polling several times a second, would take a core from it."""


def check_reachable(c: ClusterOptions) -> None:
    """Check, before anything is written, that the cluster can be used.

    Raises:
        InputError: addresses beyond this machine without TLS, files that are not there, a scheduler that does not
            answer, or a script without a main guard, which the workers would run again.
    """
    if held_at(c.scheduler) is not None:
        check_main_guard()
        return
    scheme, where = "", ("", 0)
    with suppress(ValueError):
        address = urlsplit(c.scheduler or "")
        scheme, where = address.scheme, (address.hostname or "", address.port or 0)
    if not c.starts_here and not all(where):
        raise InputError(
            f"cluster.scheduler is {c.scheduler}; expected an address such as tcp://host:8786 or tls://host:8786"
        )
    _security(c)
    if c.starts_here:
        check_main_guard()
        return
    try:
        with socket.create_connection(where, timeout=ANSWER_S) as probe:
            # A scheduler speaks first (except under TLS). Dask would wait forever for one that is silent, such as one
            # that expects TLS.
            if scheme == "tcp" and not probe.recv(1):
                raise ConnectionError("it closes the connection")
    except (OSError, ValueError) as e:  # an invalid name raises UnicodeError
        raise InputError(
            f"no Dask scheduler answers at {c.scheduler} ({e}); start one there, or correct cluster.scheduler"
        ) from None


def gpus_to_cut(job: Job, cut: object, parts: Path) -> int:
    """GPUs that a cluster which is started here must have, since a partitioner works on them that has not cut into
    `parts` yet. Raises InputError if there are none."""
    needed = isinstance(cut, Clustered) and job.cluster.starts_here and not (parts / "book").exists()
    return cut.check_available() if needed else 0


def check_gpus_of_cut(job: Job, cut: Clustered) -> None:
    """Check that a partitioner finds GPUs on the cluster that the job names, or on this machine.

    Raises:
        InputError: RAPIDS or GPUs are missing; see also `opened`.
    """
    with opened(job, silent, 0) if job.executor == "dask" and job.cluster.scheduler else nullcontext():
        cut.check_available()


@contextmanager
def on_named(job: Job) -> Iterator[None]:
    """Context in which RAPIDS takes the GPUs of the cluster that the job names, if it names one and dask-cuda made it.

    Raises:
        InputError: see `check_reachable` and `opened`.
    """
    if job.cluster.starts_here:
        yield
        return
    check_reachable(job.cluster)
    with opened(job, silent, 0):
        yield


@contextmanager
def opened(job: Job, emit: Emit, workers: int, gpus: int = 0) -> Iterator[Client]:
    """Context with a client of the configured cluster. A cluster that is started here is stopped at the end.

    Args:
        job: has the `cluster` section.
        emit: called with events.
        workers: number of workers of a cluster that is started here; with ``device = "cuda"`` it has one for each GPU
            of the ranks, and no others.
        gpus: from `gpus_to_cut`: without GPUs of ranks, a cluster that is started here has a worker for each of these,
            and no others.

    Raises:
        InputError: addresses beyond this machine without TLS, files that are not there, a scheduler that does not
            answer, GPUs that dask-cuda cannot use.
        MissingExtraError: dask-cuda is needed and cannot be imported.
        RunError: no worker joined.
    """
    c = job.cluster
    held = held_at(c.scheduler)
    security = None if held is not None else _security(c)
    if security is None and c.starts_here and not uses_ucx(c.cuda):
        # Anyone who reaches a port of Dask can run code as its user, and every user of this machine reaches those on
        # loopback.
        security = Security.temporary()
    environment = dict(os.environ)
    start = time.perf_counter()
    where = f"connecting to {c.scheduler}" if c.scheduler else "starting a Dask cluster on this machine"
    emit(StageStarted("cluster", where))
    try:
        with dask.config.set({**SETTINGS, HOSTS: c.dashboard_hosts}), _quiet(), _scratch() as scratch:
            cluster = None if c.scheduler else _local(job, workers, security, scratch, gpus)
            client = None
            try:
                client = _client(c, cluster or held, security)
                wait_for_worker(client, emit, workers if cluster is None else 0)
                _check_host(c, client)
                if cluster is not None:
                    client.register_plugin(IgnoreSignals())
                emit(StageEnded("cluster", time.perf_counter() - start))
                if cluster is not None or _has_dashboard(client):
                    emit(Note(f"dashboard: {client.dashboard_link}"))
                with emit.on_cluster(client) if isinstance(emit, OnCluster) else nullcontext(), named_cluster(client):
                    yield client
            finally:
                _close(None if client is held else client, cluster)
    finally:
        # Dask leaves the thread settings of its workers in this process's environment.
        os.environ.clear()
        os.environ.update(environment)


def _has_dashboard(client: Client) -> bool:
    """False if the scheduler answers that it has no pages, as one of ``--no-dashboard`` does."""
    try:
        # Not through a proxy for the rest of the web.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"{client.dashboard_link}/metadata", timeout=LINK_S).close()
    except urllib.error.HTTPError as e:
        return e.code != 404
    except (OSError, ValueError):
        pass
    return True


def _close(client: Client | None, cluster: LocalCluster | None) -> None:
    """Close the client, and stop a cluster that was started here, whatever state they are in."""
    if cluster is None or _is_running(cluster):
        # What dies with the run may be dying already.
        if client is not None:
            with suppress(Exception):
                client.close(timeout=CLOSE_S)
        if cluster is not None:
            with suppress(Exception):
                cluster.close(timeout=CLOSE_CLUSTER_S)
        return
    # Nothing that Dask does would come to an end, neither now nor when the interpreter exits. Ranks end with their
    # workers.
    cluster.shutdown_on_close = False
    if client is not None:
        client.status = "closed"
    for nanny in list(cluster.workers.values()):
        nanny.auto_restart = False
        if (pid := getattr(nanny, "pid", None)) is not None:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_running(cluster: LocalCluster) -> bool:
    """True if the event loop of the cluster and its client still works."""
    try:
        cluster.sync(asyncio.sleep, 0, callback_timeout=LOOP_S)
    except Exception:
        return False
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Context in which Dask logs nothing here. ``silence_logs`` looks at Dask's own handlers alone, and it has none if
    the root logger had one before Dask was imported, as after any ``logging.debug``."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _scratch() -> Iterator[str]:
    """Context with a folder for Dask's files. Dask's default folder would stay behind and belong to the first user of
    the machine who had one, although workers and the scheduler's process import Python modules from it."""
    with temporary_folder("millrace-dask-") as folder, dask.config.set({"temporary-directory": folder}):
        yield folder


def _local(job: Job, workers: int, security: Security | None, scratch: str, gpus: int) -> LocalCluster:
    c = job.cluster
    check_open_files(workers + job.ranks)
    options = {
        "threads_per_worker": 1,
        "host": c.host,
        "dashboard_address": f"{c.host}:{c.dashboard_port}",
        "security": security,
        "memory_limit": None,
        "silence_logs": logging.CRITICAL,
        "scheduler_sync_interval": SYNC_S,
        "local_directory": scratch,
    }
    try:
        if job.device == "cuda" or gpus:
            wanted = min(job.ranks, len(visible())) if job.device == "cuda" else gpus
            # No protocol unless it is configured: options that need UCX, such as `enable_nvlink`, conflict with others.
            options |= {"n_workers": wanted, **c.cuda}
            if security is not None:
                # TCP is the only protocol of dask-cuda with TLS.
                options["protocol"] = "tls"
            with kept_from_children():
                return _on_gpus(options)
        with kept_from_children():
            return LocalCluster(n_workers=workers, processes=True, protocol="tls" if security else "tcp", **options)
    except (OSError, RuntimeError) as e:
        # Dask wraps errors of the system.
        if not isinstance(cause := system_error(e), OSError):
            raise RunError(f"a worker of the cluster did not start ({first_line(e)}); give the command again") from e
        raise cannot_start_cluster(cause, c.host) from None


def _on_gpus(options: dict[str, Any]) -> LocalCluster:
    """A `LocalCUDACluster`: a worker for each GPU, whose memory it leaves to the rank, except for a CUDA context and
    the memory that RMM is configured to take."""
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError as e:
        raise MissingExtraError(
            f'device is "cuda", but dask-cuda cannot be imported ({e}); {INSTALL}, '
            'or train one rank with executor = "inline"'
        ) from None
    try:
        return LocalCUDACluster(**options)
    except Exception as e:
        cause = e.__cause__ if isinstance(e, RuntimeError) and e.__cause__ is not None else e
        if isinstance(cause, OSError):
            raise
        raise InputError(
            f"dask-cuda cannot start workers on this machine's GPUs ({type(cause).__name__}: {cause}); "
            "correct cluster.cuda, or see what `millrace doctor` says"
        ) from e


def _client(c: ClusterOptions, cluster: Any, security: Security | None) -> Client:
    """A client of a cluster, or of the configured scheduler; a caller's own client is used as it is."""
    if isinstance(cluster, Client):
        return cluster
    try:
        return Client(
            cluster if cluster is not None else c.scheduler, security=security, timeout=START_S if cluster else ANSWER_S
        )
    except (OSError, TimeoutError, ValueError) as e:
        files = " and the TLS files" if security is not None else ""
        raise InputError(
            f"no Dask scheduler answers at {c.scheduler} ({e}); start one there, or correct cluster.scheduler{files}"
        ) from None


def _security(c: ClusterOptions) -> Security | None:
    files = {"cluster.tls_ca": c.tls_ca, "cluster.tls_cert": c.tls_cert, "cluster.tls_key": c.tls_key}
    given = present_items(files)
    if given:
        for name in files:
            if name not in given:
                raise InputError(f"{name} is not set but {', '.join(given)} is; TLS needs all three files")
        for name, path in given.items():
            if not Path(path).is_file():
                raise InputError(f"{name} is {path}, which is not a file; give a PEM file")
        if not c.starts_here and not c.names_tls:
            raise InputError(
                f"cluster.scheduler is {c.scheduler} but TLS files are given; give tls://host:port, or leave them out"
            )
        own = (("cert", c.tls_cert), ("key", c.tls_key))
        each = {f"tls_{who}_{what}": path for who in ("client", "scheduler", "worker") for what, path in own}
        return Security(tls_ca_file=c.tls_ca, require_encryption=True, **each)
    if c.names_tls:
        raise InputError(
            f"cluster.scheduler is {c.scheduler}, but without TLS files; give cluster.tls_ca, tls_cert and tls_key"
        )
    for name, address in (("cluster.scheduler", c.scheduler), ("cluster.host", c.host)):
        if address is not None and not c.insecure and not _is_loopback(address):
            raise InputError(
                f"{name} is {address}, beyond this machine, without TLS: anyone who reaches it could run code here; "
                "give cluster.tls_ca, tls_cert and tls_key, or set cluster.insecure = true on a network that you trust"
            )
    return None


def _check_host(c: ClusterOptions, client: Client) -> None:
    """Check that workers can reach this process. Ranks that cannot would wait in vain for the store."""
    if not _is_here(c.host):
        raise InputError(
            f"cluster.host is {c.host}, which is not an address of this machine; give one that workers reach as --host"
        )
    far = [address for address in worker_records(client) if not _is_here(urlsplit(address).hostname or "")]
    if far and _is_loopback(c.host):
        raise InputError(
            f"the worker {far[0]} cannot reach {c.host}; give an address of this machine that workers reach as --host"
        )


def _is_here(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, ValueError):
        return False
    return True


def _is_loopback(address: str) -> bool:
    host = address
    with suppress(ValueError):
        host = (urlsplit(address).hostname if "://" in address else address) or address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    with suppress(OSError, ValueError):
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    return False


def wait_for_worker(client: Client, emit: Emit = silent, wanted: int = 0) -> None:
    """Wait for a first worker; a note says so after a second.

    Args:
        client: of the cluster.
        emit: called with the note.
        wanted: workers that the job wants.

    Raises:
        RunError: none joined within `START_S`, or the scheduler does not answer.
    """
    start, told = time.monotonic(), False
    while not any(record["status"] == "running" for record in worker_records(client).values()):
        waited = time.monotonic() - start
        if waited > START_S:
            raise RunError(f"no worker joined the cluster within {START_S:g} s; start workers, or see their logs")
        if waited > WAIT_NOTE_S and not told:
            of = f" of {wanted}" if wanted else ""
            emit(Note(f"the cluster has 0{of} workers: waiting up to {START_S:g} s for the first"))
            told = True
        time.sleep(JOINED_S)


def worker_records(client: Client) -> dict[str, Any]:
    """The scheduler's records of all workers now, by address. (`Client.scheduler_info` may give a copy that lacks
    some.)

    Raises:
        RunError: the scheduler does not answer.
    """
    try:
        return ask(client).result(START_S)["workers"]
    except (OSError, TimeoutError, CancelledError) as e:
        raise lost_scheduler(type(e).__name__, client) from e
