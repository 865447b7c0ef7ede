"""Ranks and workers on different hosts, which here are network namespaces, under Dask's TLS; and what a stranger gets."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from millrace.pipeline.cluster import opened
from millrace.pipeline.config import resolve
from millrace.pipeline.events import silent
from millrace.storage.errors import InputError

HERE, THERE = "10.213.7.1", "10.213.7.2"
SCHEDULER = f"tls://{HERE}:8786"
JOB = ("--dataset", "digits", "--epochs", "2", "--fanout", "5,5", "--hidden", "16", "--batch-size", "32", "--ranks", "2", "--dtype", "float64",
       "--set", "queue.kind=zarr", "--set", "threads=1", "--set", "cluster.dashboard_port=0")  # fmt: skip
START_S, RUN_S = 60.0, 120.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Link:
    """Two network namespaces with a cable between them, and what runs in them."""

    def __init__(self) -> None:
        name = f"mr{os.getpid()}"
        self.spaces = {HERE: f"{name}a", THERE: f"{name}b"}
        self.running: list[subprocess.Popen[str]] = []

    def up(self) -> None:
        a, b = self.spaces.values()
        for space in (a, b):
            ip("netns", "add", space)
        ip("link", "add", "name", "link0", "netns", a, "type", "veth", "peer", "name", "link0", "netns", b)
        for address, space in self.spaces.items():
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "link0")
            for device in ("lo", "link0"):
                ip("-n", space, "link", "set", device, "up")

    def down(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for space in self.spaces.values():
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)

    def at(self, address: str, *words: str | Path) -> list[str]:
        """The command line that runs Python there."""
        return ["ip", "netns", "exec", self.spaces[address], sys.executable, *map(str, words)]

    def start(self, address: str, log: Path, *words: str | Path) -> subprocess.Popen[str]:
        with log.open("w") as f:
            process = subprocess.Popen(self.at(address, *words), stdout=f, stderr=f, text=True)
        self.running.append(process)
        return process

    def received_bytes(self, address: str) -> int:
        shown = subprocess.run(
            ["ip", "-n", self.spaces[address], "-s", "-j", "link", "show", "link0"], check=True, capture_output=True, text=True
        )
        return json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"]

    def ranks(self, address: str) -> set[str]:
        """What the processes of ranks there were started with."""
        pids = subprocess.run(["ip", "netns", "pids", self.spaces[address]], check=True, capture_output=True, text=True).stdout.split()
        found = set()
        for pid in pids:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if "millrace.pipeline.rank_process" in words:
                    found.add(words[words.index("millrace.pipeline.rank_process") + 1])
        return found


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the command `ip`")
    made = Link()
    try:
        try:
            made.up()
        except subprocess.CalledProcessError as e:
            pytest.skip(f"this machine allows no network namespaces: {e.stderr.strip()}")
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An authority, and a certificate of it: the files that Dask wants."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by the command `openssl`, which is not there")
    folder = tmp_path_factory.mktemp("tls")
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=millrace -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out cert.pem",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return {"ca": folder / "ca.pem", "cert": folder / "cert.pem", "key": folder / "key.pem"}


@pytest.fixture(scope="module")
def cluster(link: Link, tls: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Link:
    """A scheduler and a worker here, another worker there."""
    logs = tmp_path_factory.mktemp("cluster")
    files = [word for name, path in tls.items() for word in (f"--tls-{'ca-file' if name == 'ca' else name}", path)]
    dask = ("-m", "dask", "scheduler", "--host", HERE, "--port", "8786", "--no-dashboard", *files)
    link.start(HERE, logs / "scheduler.log", *dask)
    for address in (HERE, THERE):
        link.start(
            address, logs / f"worker-{address}.log", "-m", "dask", "worker", SCHEDULER, "--host", address, "--nthreads", "1",
            "--no-dashboard", "--local-directory", logs, *files,
        )  # fmt: skip
    end = time.monotonic() + START_S
    while "Registered to" not in (logs / f"worker-{HERE}.log").read_text() or "Registered to" not in (
        logs / f"worker-{THERE}.log"
    ).read_text():
        assert time.monotonic() < end, "".join(p.read_text() for p in logs.glob("*.log"))
        time.sleep(0.1)
    return link


def keys(tls: dict[str, Path]) -> list[str]:
    return [word for name, path in tls.items() for word in ("--set", f"cluster.tls_{name}={path}")]


@pytest.mark.slow
def test_ranks_on_two_hosts_train_the_parameters_of_one_host(cluster, tls, tmp_path):
    # Those who run beside each other get the loopback of this machine, or the link.
    alone = subprocess.Popen(
        [sys.executable, "-m", "millrace.pipeline", "run", *JOB, "--executor", "dask", "--out", str(tmp_path / "alone")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert alone.wait(RUN_S) == 0, alone.stdout.read()
    before = {address: cluster.received_bytes(address) for address in (HERE, THERE)}
    run = cluster.start(
        HERE, tmp_path / "run.log", "-m", "millrace.pipeline", "run", *JOB, "--scheduler", SCHEDULER, "--host", HERE, *keys(tls),
        "--out", tmp_path / "apart",
    )  # fmt: skip
    ranks: dict[str, set[str]] = {HERE: set(), THERE: set()}
    end = time.monotonic() + RUN_S
    while run.poll() is None and time.monotonic() < end:
        for address, seen in ranks.items():
            seen |= cluster.ranks(address)
        time.sleep(0.1)
    assert run.poll() == 0, (tmp_path / "run.log").read_text()
    assert ranks == {HERE: {HERE}, THERE: {THERE}}, "a rank on each host, which speaks from its own host's address"
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("alone", "apart"))
    assert two["parameters_sha256"] == one["parameters_sha256"]
    assert two["fingerprint"] == one["fingerprint"]
    for rank, address in enumerate((HERE, THERE)):
        sent = sum(two["bytes"]["per_rank"][1 - rank]["network"].values())
        assert 0 < sent < cluster.received_bytes(address) - before[address], "what the ranks say goes over the link"


STRANGER = """
import sys
from distributed import Client, Security
security = Security(tls_ca_file=sys.argv[2], require_encryption=True) if len(sys.argv) > 2 else None
try:
    Client(sys.argv[1], security=security, timeout=5)
except Exception as e:
    sys.exit(f"{type(e).__name__}: {e}")
"""


@pytest.mark.slow
def test_a_stranger_is_refused(cluster, tls):
    def ask(*words):
        done = subprocess.run(cluster.at(THERE, "-c", STRANGER, *words), capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    for words in ((SCHEDULER.replace("tls", "tcp"),), (SCHEDULER, tls["ca"])):
        code, said = ask(*words)
        print(said)
        assert code == 1
    assert 0
