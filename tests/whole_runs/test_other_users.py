"""Access of another user of the machine to a run on a cluster that Millrace started: nothing that acts, and no page of
ours."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as dist
from distributed import LocalCluster

from millrace.tests.contracts import fresh_command
from millrace.tests.contracts.forked_command import ForkedCommand

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
WAIT_S = 240.0
"""For a machine that does much else."""
JOB = [
    "--dataset", "sbm:nodes=300,classes=3,degree=4,features=4,train=0.5", "--epochs", "1000000", "--batch-size", "50",
    "--fanout", "3,3",
    "--hidden", "4", "--ranks", "2", "--set=threads=1", "--set=cluster.dashboard_port=0", "--code=callback=slow:Slow",
]  # fmt: skip
SLOW = """
import time
import millrace as mr

class Slow(mr.Callback):
    def on_step(self, run):
        time.sleep(0.2)
"""
"""Leaves the processors to others while the run is attacked."""
ATTACK = """
import asyncio, json, os, struct, sys, urllib.request
from distributed import Security
from distributed.core import connect
import distributed.protocol.pickle, cryptography.x509

ports, folders, pages = json.loads(sys.argv[1])
stranger = Security.temporary()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)

async def speaks_dask(port, scheme):
    security = stranger if scheme == "tls" else Security(require_encryption=False)
    args = security.get_connection_args("client")
    try:
        comm = await connect(f"{scheme}://127.0.0.1:{port}", timeout=60, **args)
    except Exception:
        return False
    try:
        await comm.write({"op": "identity", "reply": True})
        return "type" in await asyncio.wait_for(comm.read(), 60)
    except Exception:
        return False
    finally:
        comm.abort()

async def is_a_store(port):
    # What torch's TCPStore understands: its greeting, and an addition to a key, which gives the sum.
    key = b"0/order"
    words = struct.pack("<BIBQ", 0, 0x3C85F7CE, 4, len(key)) + key + struct.pack("<q", 7)
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 60)
        writer.write(words)
        return await asyncio.wait_for(reader.readexactly(8), 60) == struct.pack("<q", 7)
    except Exception:
        return False

def opens(folder):
    try:
        return bool(os.listdir(folder))
    except PermissionError:
        return False

def shows(page):
    try:
        return urllib.request.urlopen(page, timeout=30).status == 200
    except OSError:
        return False

async def within(s, attempts):
    # Dask waits without end for a server that is none and keeps silent: those are left alone.
    tasks = {name: asyncio.ensure_future(attempt) for name, attempt in attempts.items()}
    # On a busy machine what is open, a scheduler and a store, answers late.
    for _ in range(6):
        await asyncio.wait(tasks.values(), timeout=s)
        found = [name for name, task in tasks.items() if task.done() and task.result()]
        if {"tcp", "store"} <= {kind for _, kind in found}:
            break
    return found

async def reached():
    asked = {(port, scheme): speaks_dask(port, scheme) for port in ports for scheme in ("tcp", "tls")}
    found = await within(10, {**asked, **{(port, "store"): is_a_store(port) for port in ports}})
    dask, stores = [x for x in found if x[1] != "store"], [port for port, kind in found if kind == "store"]
    folders_, pages_ = [f for f in folders if opens(f)], [p for p in pages if shows(p)]
    report = {"uid": os.getuid(), "dask": dict(dask), "stores": stores, "folders": folders_, "pages": pages_}
    print(json.dumps(report), flush=True)
    os._exit(0)

asyncio.run(reached())
"""


def attacked(ports, folders=(), pages=()):
    """Everything that another user reaches by trying each port as Dask's and as the ranks' store."""
    order = json.dumps([list(ports), [str(f) for f in folders], list(pages)])
    done = subprocess.run(
        [sys.executable, "-c", ATTACK, order], capture_output=True, text=True, timeout=100, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("uid") == 65534
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in the middle of its training: its processes, and where they listen and keep files."""
    out = tmp_path_factory.mktemp("others") / "run"
    with tempfile.TemporaryDirectory() as folder:
        # As /tmp is, with what somebody has put where Dask looks for a folder of its own, and imports from.
        Path(folder).chmod(0o1777)
        bait = Path(folder) / "dask-scratch-space"
        bait.mkdir()
        bait.chmod(0o777)
        log = out.with_suffix(".log")
        (out.parent / "slow.py").write_text(SLOW)
        paths = os.pathsep.join(filter(None, [str(out.parent), os.environ.get("PYTHONPATH")]))
        # Started without what this process knows of Millrace, of folders for temporary files and of the callback.
        driver = ForkedCommand(
            "run", *JOB, "--out", out, out=log, err=log, program=fresh_command.__name__, forks_workers=False,
            variables={"TMPDIR": folder, "COLUMNS": "1000", "PYTHONPATH": paths},
        )  # fmt: skip
        try:
            end = time.monotonic() + WAIT_S
            while not ((out / "metrics.jsonl").exists() and '"StepDone"' in (out / "metrics.jsonl").read_text()):
                assert driver.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            ports, ranks = {}, set()
            for p in (psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)):
                # One that has ended since they were listed has no ports.
                with suppress(psutil.NoSuchProcess):
                    ports[p.pid] = {c.laddr.port for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
                    ranks |= {p.pid} if "millrace.pipeline.cluster.rank_main" in p.cmdline() else set()
            servers = [" ".join(psutil.Process(pid).parent().cmdline()) for pid in ranks]
            assert all("cluster.rank_server" in server for server in servers), "a rank of such a run is forked"
            address, token = re.search(r"this run: (\S+)/millrace\?token=(\S+)", log.read_text()).groups()
            yield SimpleNamespace(
                driver=driver, ranks=ranks, ports=ports, folder=Path(folder), bait=bait, address=address, token=token
            )
            driver.send_signal(signal.SIGINT)
            assert driver.wait(WAIT_S) == 130, log.read_text()
            assert list(Path(folder).iterdir()) == [bait], "a run leaves no folder behind"
        finally:
            driver.kill()
            driver.wait(WAIT_S)


def test_another_user_reaches_no_port_no_store_and_no_page(run):
    own = [f"{run.address}/{page}?token={run.token}" for page in ("millrace", "millrace.json")]
    guessed = [
        f"{run.address}/{page}{token}"
        for page in ("millrace", "millrace.json")
        for token in ("", "?token=", "?token=guess")
    ]
    folders = [p for p in run.folder.iterdir() if p != run.bait]
    assert sorted(p.name.rsplit("-", 1)[0] for p in folders) == [
        "millrace-dask",
        "millrace-meeting",
        "millrace-ranks",
    ]
    of_dask = {port for pid, ports in run.ports.items() if pid not in run.ranks for port in ports}
    of_ranks = {port for pid in run.ranks for port in run.ports[pid]}
    assert len(run.ranks) == 2 and len(of_ranks) >= 2
    assert len(of_dask) >= 5 + 3, "a scheduler, two nannies, two workers, and pages of the scheduler and the workers"
    # The same attacks succeed on what is open.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        port = cluster.scheduler.port
        found = attacked(of_dask | of_ranks | {port, store.port}, [*folders, run.folder], own + guessed)
    assert found == {"dask": {str(port): "tcp"}, "stores": [store.port], "folders": [str(run.folder)], "pages": own}
    assert run.driver.poll() is None
    assert not list(run.bait.iterdir()), "Dask keeps nothing where somebody else may change it"
