"""Ranks and workers on different hosts, which here are network namespaces, under Dask's TLS; and what a stranger
gets."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from millrace.pipeline import cli
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_command import ForkedCommand, run_forked
from millrace.tests.contracts.fresh_python import run_python

HERE, THERE = "10.213.7.1", "10.213.7.2"
SCHEDULER = f"tls://{HERE}:8786"
JOB = (
    "--dataset", "digits", "--epochs", "2", "--fanout", "5,5", "--hidden", "16", "--batch-size", "32", "--ranks", "2",
    "--dtype", "float64",
    "--set", "queue.kind=zarr", "--set", "threads=1", "--set", "cluster.dashboard_port=0",
)  # fmt: skip
START_S, RUN_S = 240.0, 240.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Link:
    """Two network namespaces with a cable between them, and what runs in them."""

    def __init__(self) -> None:
        name = f"mr{os.getpid()}"
        self.spaces = {HERE: f"{name}a", THERE: f"{name}b"}
        self.running: list[ForkedCommand] = []
        self.worker = ""
        """The address of the worker there."""

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
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        for space in self.spaces.values():
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)

    def namespace(self, address: str) -> Path:
        """The file of the network namespace there."""
        return Path("/run/netns", self.spaces[address])

    def start(self, address: str, log: Path, program: str, *words: str | Path, hidden: Path | None = None) -> None:
        """Start a program of Dask there, where the folder `hidden` is empty."""
        log.touch()
        options = {"program": f"distributed.cli.{program}", "namespace": self.namespace(address), "hidden": hidden}
        self.running.append(ForkedCommand(*words, out=log, err=log, **options))

    def received_bytes(self, address: str) -> int:
        shown = subprocess.run(
            ["ip", "-n", self.spaces[address], "-s", "-j", "link", "show", "link0"],
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"]

    def ranks(self, address: str) -> set[str]:
        """Environment of the rank processes there."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self.spaces[address]], check=True, capture_output=True, text=True
        ).stdout.split()
        found = set()
        for pid in pids:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if "millrace.pipeline.cluster.rank_main" in words:
                    found.add(words[words.index("millrace.pipeline.cluster.rank_main") + 1])
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


def certificates(folder: Path) -> dict[str, Path]:
    """An authority, and a certificate of it: the files that Dask wants."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by the command `openssl`, which is not there")
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=worker -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out cert.pem",
    ):
        subprocess.run(
            ["openssl", *words.format(name=folder.name).split()], cwd=folder, check=True, capture_output=True
        )
    return {"ca": folder / "ca.pem", "cert": folder / "cert.pem", "key": folder / "key.pem"}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """As `tls`, by an authority that nobody here knows."""
    return certificates(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def cluster(link: Link, tls: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Link:
    """A scheduler and a worker here, another worker there, which has the certificate in another folder than this
    host."""
    logs = tmp_path_factory.mktemp("cluster")
    copies = {name: Path(shutil.copy(path, logs / path.name)) for name, path in tls.items()}
    hidden = tls["ca"].parent

    def files(of: dict[str, Path]) -> list[str | Path]:
        return ["--tls-ca-file", of["ca"], "--tls-cert", of["cert"], "--tls-key", of["key"]]

    listen = ("--host", HERE, "--port", "8786", "--no-dashboard")
    link.start(HERE, logs / "scheduler", "dask_scheduler", *listen, *files(tls))
    worker = ("dask_worker", SCHEDULER, "--nthreads", "1", "--no-dashboard", "--local-directory", logs)
    link.start(HERE, logs / HERE, *worker, "--host", HERE, *files(tls))
    link.start(THERE, logs / THERE, *worker, "--host", THERE, *files(copies), hidden=hidden)
    end = time.monotonic() + START_S
    while not all("Registered to" in (logs / address).read_text() for address in (HERE, THERE)):
        assert time.monotonic() < end, "".join((logs / name).read_text() for name in ("scheduler", HERE, THERE))
        time.sleep(0.1)
    found = re.search(r"Start worker at: +(tls://\S+)", (logs / THERE).read_text())
    assert found is not None
    link.worker = found[1]
    return link


def keys(tls: dict[str, Path]) -> list[str]:
    return [word for name, path in tls.items() for word in ("--set", f"cluster.tls_{name}={path}")]


@pytest.mark.slow
def test_ranks_on_two_hosts_train_the_parameters_of_one_host(cluster, scheduler, tls, tmp_path):
    code, _, said = command("run", *JOB, "--scheduler", scheduler, "--out", tmp_path / "alone")
    assert code == 0, said
    before = {address: cluster.received_bytes(address) for address in (HERE, THERE)}
    log = tmp_path / "run.log"
    words = ("--scheduler", SCHEDULER, "--host", HERE, *keys(tls), "--out", tmp_path / "apart")
    run = ForkedCommand("run", *JOB, *words, out=log, err=log, namespace=cluster.namespace(HERE))
    ranks: dict[str, set[str]] = {HERE: set(), THERE: set()}
    end = time.monotonic() + RUN_S
    while run.poll() is None and time.monotonic() < end:
        for address, seen in ranks.items():
            seen |= cluster.ranks(address)
        time.sleep(0.1)
    run.kill()
    assert run.returncode == 0, log.read_text()
    assert ranks == {HERE: {HERE}, THERE: {THERE}}, "a rank on each host, which speaks from its own host's address"
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("alone", "apart"))
    assert two["parameters_sha256"] == one["parameters_sha256"]
    assert two["fingerprint"] == one["fingerprint"]
    for rank, address in enumerate((HERE, THERE)):
        sent = sum(two["bytes"]["per_rank"][1 - rank]["network"].values())
        assert 0 < sent < cluster.received_bytes(address) - before[address], "what the ranks say goes over the link"


STRANGER = """
import socket, ssl, sys
address, ca, *own = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.check_hostname = False
if own:
    context.load_cert_chain(*own)
host, port = address.removeprefix("tls://").split(":")
with context.wrap_socket(socket.create_connection((host, int(port)), timeout=120)) as line:
    # A scheduler and a worker speak first. Under TLS 1.3, who is refused learns so when he listens.
    print(len(line.recv(1)))
"""
CLIENT = """
import sys
from distributed import Client, Security
address, *files = sys.argv[1:]
names = ("tls_ca_file", "tls_client_cert", "tls_client_key")
security = Security(**dict(zip(names, files)), require_encryption=True) if files else None
with Client(address, security=security, timeout=120) as client:
    print(client.submit(abs, -1).result())
"""


@pytest.mark.slow
def test_who_has_no_certificate_of_ours_is_refused(cluster, tls, stranger):
    def ask(program, *words):
        _, out, err = run_python("-c", program, *words, namespace=cluster.namespace(HERE))
        return out.strip() or err.strip().splitlines()[-1]

    ours, theirs = ([files["cert"], files["key"]] for files in (tls, stranger))
    # What a client sees depends on whether it reads before it is cut off.
    cut_off = r"^(ssl\.SSL\w*Error|ConnectionResetError|BrokenPipeError|distributed\.comm\.core\.\w*CommClosedError):"
    for address in (SCHEDULER, cluster.worker):
        assert ask(STRANGER, address, tls["ca"], *ours) == "1", "the same program is heard with our certificate"
        assert re.search(cut_off, ask(STRANGER, address, tls["ca"])), "none at all"
        assert re.search(cut_off, ask(STRANGER, address, tls["ca"], *theirs)), "of another authority"
    assert ask(CLIENT, SCHEDULER, tls["ca"], *ours) == "1"
    assert re.search(cut_off, ask(CLIENT, SCHEDULER, tls["ca"], *theirs))
    assert re.search(cut_off, ask(CLIENT, SCHEDULER.replace("tls", "tcp"))), "one without TLS"
    assert "TLS certificate does not match" in ask(CLIENT, SCHEDULER, stranger["ca"], *ours), (
        "a scheduler that we do not know"
    )


def run_here(cluster: Link, out: Path, *words: str | Path) -> tuple[int, str]:
    code, _, said = run_forked("run", *JOB, "--out", out, *words, namespace=cluster.namespace(HERE))
    return code, said.splitlines()[-1]


@pytest.mark.slow
def test_a_run_says_why_it_cannot_use_the_cluster(cluster, tls, stranger, tmp_path):
    code, said = run_here(
        cluster, tmp_path / "a", "--scheduler", SCHEDULER, "--host", HERE, *keys({**stranger, "ca": tls["ca"]})
    )
    assert (code, "no Dask scheduler answers at tls://10.213.7.1:8786" in said, "TLS files" in said) == (2, True, True)
    code, said = run_here(cluster, tmp_path / "b", "--scheduler", SCHEDULER, *keys(tls))
    assert (code, f"the worker {cluster.worker} cannot reach 127.0.0.1" in said, "--host" in said) == (2, True, True)
    code, said = run_here(cluster, tmp_path / "c", "--scheduler", SCHEDULER, "--host", THERE, *keys(tls))
    assert (code, f"cluster.host is {THERE}, which is not an address of this machine" in said) == (2, True)


def test_beyond_loopback_without_tls_is_refused(tmp_path, monkeypatch, capsys):
    """Nothing is asked of the network, and nothing is written."""
    for words in (("--scheduler", f"tcp://{HERE}:8786", "--host", HERE), ("--host", HERE), ("--scheduler", SCHEDULER)):
        monkeypatch.setattr(sys, "argv", ["millrace", "run", *JOB, "--out", str(tmp_path / "run"), *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert "cluster.tls_ca" in said
        assert HERE in said
    assert not (tmp_path / "run").exists()
