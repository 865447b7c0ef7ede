"""Launch scripts: those for one machine and for SSH are run, those for Slurm and Kubernetes rendered, and what they
render is checked, and does the whole chain where processes of this machine stand in for jobs and pods. Scripts and
commands of Millrace are forked (`contracts.forked_path`)."""

import asyncio
import functools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncssh
import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
import yaml
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker

from millrace.pipeline import cli
from millrace.pipeline.report.stores import records_behind
from millrace.tests.contracts.forked_command import ForkedCommand
from millrace.tests.contracts.forked_path import forked_path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SMALL = (
    "--dataset", "digits", "--epochs", "2", "--fanout", "5,5", "--hidden", "16", "--batch-size", "32",
    "--set", "threads=1",
)  # fmt: skip
CONVERT = "--convert=--set read.missing_ids=compact --set read.direction=directed"
CHAIN = (
    CONVERT, "--epochs", "8", "--fanout", "5,5", "--hidden", "16", "--batch-size", "16", "--ranks", "2",
    "--set", "threads=1", "--lr", "0.05", "--dropout", "0",
)  # fmt: skip
"""Training on `tables`."""
NODES = 120
SBATCH = {
    "-J": r"[\w-]+", "-e": r"\S+", "-o": r"\S+", "-p": r"\w+", "-A": r"\w+", "-n": r"\d+",
    "-t": r"(\d+-)?\d+(:\d+){0,2}",
    "--cpus-per-task": r"\d+", "--mem": r"\d+[KMGT]?", "--nodes": r"\d+(-\d+)?", "--ntasks": r"\d+",
}  # fmt: skip
"""Options that `sbatch` documents, and the form of their values."""


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """Commands of Millrace that scripts call are forked."""
    with forked_path() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """Folder of Parquet: nodes whose features say their class, under ids with gaps."""
    folder = tmp_path_factory.mktemp("tables") / "graph"
    folder.mkdir()
    rng = np.random.default_rng(0)
    ids, labels = np.sort(rng.permutation(1000)[:NODES]), rng.integers(0, 3, NODES)
    ends = ids[rng.integers(0, NODES, (2, 800))]
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), folder / "edges.parquet")
    x = (np.eye(3)[labels] + rng.normal(0, 0.1, (NODES, 3))).astype("f4")
    split = np.array(["train", "val", "test"])[np.arange(NODES) % 3]
    nodes = {"id": ids, "label": labels, "split": split, "features": x.tolist()}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")
    return folder


def environment(**more: str) -> dict[str, str]:
    """That of this process, and more."""
    return {**os.environ, **more}


def assert_chain_is_done(work: Path, tables: Path, said: str) -> None:
    """Stores, a run on two ranks, its evaluation, and a class for each id of the tables."""
    found = result(work / "run")
    assert (found["ranks"], found["num_nodes"]) == (2, NODES)
    assert found["test_accuracy"] > 0.8
    assert f"  test   {found['test_accuracy']:.4f}" in said, "millrace evaluate says so"
    predictions = pq.read_table(work / "run" / "predictions.parquet")
    nodes = pq.read_table(tables / "nodes.parquet")
    classes = dict(zip(map(str, predictions["node"].to_pylist()), predictions["class"].to_pylist()))
    right = [classes[str(i)] == label for i, label in zip(nodes["id"].to_pylist(), nodes["label"].to_pylist())]
    assert len(classes) == NODES and np.mean(right) > 0.8
    assert {p.name for p in work.iterdir() if p.suffix != ".jsonl"} - {"samples"} == {"store", "parts", "run"}
    assert [f"{r.command} {r.status}" for r in records_behind(str(work / "parts"))] == [
        "convert done",
        "partition done",
    ]


def run(*words: str | Path, seconds: float = 540, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)),
        env=environment(**more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def python(script: str, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return run("python", EXAMPLES / script, *words, **more)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def tls(tmp_path_factory) -> Path:
    """Certificates, made by the lines of docs/cluster.md."""
    folder = tmp_path_factory.mktemp("tls")
    (block,) = re.findall(r"```sh\n(openssl req -x509.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
    for line in block.splitlines():
        subprocess.run(shlex.split(line), cwd=folder, capture_output=True, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_a_laptop_one_process_trains_what_two_ranks_do(tmp_path):
    done = run("sh", EXAMPLES / "on_a_laptop.sh", tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = result(tmp_path / "one"), result(tmp_path / "two")
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
    assert two["test_accuracy"] == pytest.approx(one["test_accuracy"], abs=0.005)
    assert one["test_accuracy"] > 0.9, "the header promises about 0.95"
    assert "dashboard: http://" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_chain_over_blocks_given_again_does_nothing_again(tmp_path, tables):
    """One command each for tables, cut, samples and run, and no rank with the whole graph."""
    work, given = tmp_path / "work", ("--tables", tables, "--work", tmp_path / "work", "--blocks", "--pack", *CHAIN)
    script = python("chain.py", *given).stdout
    done = run("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    found = result(work / "run")
    assert (found["ranks"], found["seconds"]["sample"]) == (2, 0) and found["test_accuracy"] > 0.8
    assert "with features as float32" in done.stdout and list(work.glob("samples/epoch-7/rows-*/rows.npy"))
    assert "cutting" not in done.stderr.partition("sampling 8 epochs")[2], "the parts are there"
    assert not (work / "run" / "parts").exists()
    again = run("sh", "-c", script)
    assert again.returncode == 0 and "sampled now: 0 edges" in again.stdout, again.stderr


@pytest.mark.parametrize("flags", [("--pack", "--sample"), ("--sample", "--pack"), ("--pack",)])
def test_the_chain_packs_whatever_is_given_first(tmp_path, flags):
    script = python("chain.py", "--tables", tmp_path, "--work", tmp_path / "work", *flags).stdout
    (sampled,) = (line for line in script.splitlines() if line.startswith("millrace sample"))
    assert sampled.endswith(" --features") and "--samples" in script


@pytest.mark.parametrize("flag", ["--work=w", "--parts=3", "--method=hash", "--convert=--seed 1", "--blocks"])
def test_the_chain_without_tables_refuses_what_it_would_not_use(flag):
    done = python("chain.py", "--epochs", "2", flag)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith(f"{flag.partition('=')[0]}: give --tables, whose chain has these stages")


def test_on_a_gpu_box_without_gpus_ends_with_one_sentence(tmp_path):
    # Its own Python is the one that is forked.
    script, words = str(EXAMPLES / "on_a_gpu_box.py"), [*SMALL, "--out", str(tmp_path / "run")]
    code = (
        "import runpy, shutil, sys; sys.executable = shutil.which('python'); "
        f"sys.argv = {[script, *words]}; runpy.run_path({script!r}, run_name='__main__')"
    )
    done = run("python", "-c", code, CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="0")
    assert done.returncode == 2
    said = done.stderr.strip()
    assert re.fullmatch(
        r'millrace: device is "cuda", but (this torch|torch sees no GPU here) \(.*\).*, or use device = "cpu"', said
    )
    if torch.version.cuda is None:
        header = " ".join((EXAMPLES / "on_a_gpu_box.py").read_text().split())
        assert said.replace(torch.__version__, "2.13.0+cpu") in header, "the header says so"
    assert not (tmp_path / "run").exists()


async def _shell(process: asyncssh.SSHServerProcess) -> None:
    """Run a command as a login shell does; it does not outlive its connection."""
    assert process.command is not None
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_shell(
        process.command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    await process.redirect(child.stdin, child.stdout, child.stderr)
    closed = asyncio.create_task(process.wait_closed())
    await asyncio.wait([asyncio.create_task(child.wait()), closed], return_when=asyncio.FIRST_COMPLETED)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    process.exit(await child.wait())


@pytest.fixture
def ssh_home(tmp_path) -> Iterator[Path]:
    """A home folder whose key opens an SSH server on this machine, and whose configuration says where that is."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    theirs, ours = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    ours.write_private_key(home / ".ssh" / "id_ed25519")
    ours.write_public_key(tmp_path / "authorized")
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[theirs],
            authorized_client_keys=str(tmp_path / "authorized"),
            process_factory=_shell,
            encoding=None,
        )
    )
    port = server.get_port()
    (home / ".ssh" / "config").write_text(f"Host 127.0.0.1\n  Port {port}\n")
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {theirs.export_public_key().decode()}")
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield home
    loop.call_soon_threadsafe(server.close)
    asyncio.run_coroutine_threadsafe(server.wait_closed(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def assert_nothing_is_left(tls: Path) -> None:
    """Schedulers, workers, ranks and drivers have the certificates in their command lines. The servers of ranks beside
    forked workers have them too, and see the end of these a moment later."""
    end = time.monotonic() + 30
    while str(tls) in (left := subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout):
        assert time.monotonic() < end, f"something has outlived the run: {left}"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_over_ssh_a_host_does_the_chain_and_nothing_is_left(tmp_path, tls, ssh_home, tables):
    hosts = ("--hosts", "127.0.0.1", "--each", "1", "--tls", tls, "--interface", "lo")
    work = ("--tables", tables, "--work", tmp_path / "work", *CHAIN)
    done = python("over_ssh.py", *hosts, *work, HOME=str(ssh_home))
    assert done.returncode == 0, done.stderr
    assert_chain_is_done(tmp_path / "work", tables, done.stdout)
    job = (tmp_path / "work" / "run" / "job.toml").read_text()
    assert 'scheduler = "tls://127.0.0.1:' in job and str(tls / "key.pem") in job
    assert_nothing_is_left(tls)


def slurm(tls: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    here = ("--host", "127.0.0.1", "--tls", tls, "--cores", "4", "--memory", "8GB", "--interface", "lo")
    return python("on_slurm.py", *here, *words, **more)


def test_on_slurm_renders_a_job_that_slurm_and_dask_take(tmp_path, tls):
    done = slurm(tls, "--queue", "normal", "--account", "me", "--walltime", "02:30:00", "--render")
    assert done.returncode == 0, done.stderr
    script = tmp_path / "job.sh"
    script.write_text(done.stdout)
    assert run("bash", "-n", script).returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    given = dict(
        re.split("[ =]", line.removeprefix("#SBATCH "), maxsplit=1) for line in lines if line.startswith("#SBATCH")
    )
    assert not [f"{k} {v}" for k, v in given.items() if k not in SBATCH or not re.fullmatch(SBATCH[k], v)]
    assert {k: given[k] for k in ("-J", "-p", "-A", "-t", "-n", "--cpus-per-task")} == {
        "-J": "millrace", "-p": "normal", "-A": "me", "-t": "02:30:00", "-n": "1", "--cpus-per-task": "4",
    }  # fmt: skip
    python_, m, module, *words = shlex.split(lines[-1])
    assert (python_, m, module) == (sys.executable, "-m", "distributed.cli.dask_worker")
    taken = dask_worker.make_context("dask worker", words).params
    assert taken["scheduler"].startswith("tls://127.0.0.1:")
    assert (taken["nthreads"], taken["memory_limit"], taken["nanny"], taken["tls_key"]) == (
        1,
        "0",
        True,
        str(tls / "key.pem"),
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_of_on_slurm_does_the_chain(tmp_path, tls, tables):
    """Slurm is not here: `sbatch` is a script that runs the job at once, on this machine, with a worker that is forked.
    All that it is given is real."""
    bin_, work = tmp_path / "bin", tmp_path / "work"
    bin_.mkdir()
    for name, body in {
        # dask-jobqueue removes its script as soon as it is submitted.
        "sbatch": 'sed "s#^.* -m distributed.cli.dask_worker#dask-worker#" "$1" > "$0.$$"\n'
        'setsid bash "$0.$$" > "$0.log.$$" 2>&1 &\necho "Submitted batch job $!"',
        "scancel": 'for id in "$@"; do kill -- -"$id"; done',
    }.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_ / name).chmod(0o755)
    path = f"{bin_}:{environment()['PATH']}"
    done = slurm(tls, "--workers", "1", "--tables", tables, "--work", work, *CHAIN, PATH=path)
    assert done.returncode == 0, done.stderr
    assert_chain_is_done(work, tables, done.stdout)
    assert "threads = 1" in (work / "run" / "job.toml").read_text(), "what the user says comes last"
    assert_nothing_is_left(tls)


def strict(schema: Any) -> Any:
    """The same schema, in which a field that is not named is an error. (Kubernetes would drop it without a word.)"""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if (
        isinstance(schema.get("properties"), dict)
        and "type" in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


@functools.cache
def schema_of(kind: str) -> Any:
    crds = files("dask_kubernetes.operator") / "deployment/helm/dask-kubernetes-operator/crds" / f"{kind.lower()}.yaml"
    (version,) = yaml.load(crds.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    return schema


def complaints(manifest: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema_of(manifest["kind"]))
    return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(manifest)]


@pytest.fixture(scope="module")
def manifest() -> Any:
    words = (
        "--image",
        "registry/millrace:0.2.0",
        "--volume",
        "data",
        "--workers",
        "3",
        "--cores",
        "8",
        "--memory",
        "32Gi",
    )
    done = python("on_kubernetes.py", *words, *SMALL, "--ranks", "2", "--out", "/data/runs/one", "--resume")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def containers(manifest: Any) -> dict[str, Any]:
    cluster, job = manifest["spec"]["cluster"]["spec"], manifest["spec"]["job"]["spec"]
    return {
        c["name"]: c
        for pod in (cluster["worker"]["spec"], cluster["scheduler"]["spec"], job)
        for c in pod["containers"]
    }


def test_on_kubernetes_renders_what_the_schemas_of_the_operator_take(manifest):
    assert manifest["kind"] == "DaskJob"
    assert complaints(manifest) == []
    assert complaints({**manifest, "kind": "DaskCluster", "spec": manifest["spec"]["cluster"]["spec"]}) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "job", "spec", "restartpolicy"), "Never"),
        (("spec", "cluster", "spec", "worker", "replicas"), "three"),
        (("spec", "cluster", "spec", "worker", "spec", "containers"), {"name": "worker"}),
        (("spec", "job", "spec", "containers", 0, "volumeMounts", 0, "mountpath"), "/data"),
    ],
)
def test_the_schemas_see_faults(manifest, path, value):
    broken: Any = json.loads(json.dumps(manifest))
    inner = broken
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert len(complaints(broken)) == 1


def test_on_kubernetes_gives_dask_what_dask_takes(manifest, tls):
    # Dask looks whether the files are there: here they lie elsewhere.
    of = containers(json.loads(json.dumps(manifest).replace("/tls/", f"{tls}/")))
    dask, word, *words = of["worker"]["args"]
    assert (dask, word) == ("dask", "worker")
    worker = dask_worker.make_context("dask worker", words).params
    assert (worker["scheduler"], worker["nthreads"], worker["memory_limit"]) == (
        "tls://millrace-scheduler:8786",
        1,
        "0",
    )
    dask, word, *words = of["scheduler"]["args"]
    assert (dask, word) == ("dask", "scheduler")
    scheduler = dask_scheduler.make_context("dask scheduler", words).params
    assert worker["tls_ca_file"] == scheduler["tls_ca_file"] == str(tls / "ca.pem")
    assert all({m["mountPath"] for m in c["volumeMounts"]} == {"/data", "/tls"} for c in containers(manifest).values())


def test_on_kubernetes_gives_millrace_what_millrace_takes(manifest):
    (sh, c, script), command = containers(manifest)["driver"]["command"], typer.main.get_command(cli.app)
    assert (sh, c) == ("sh", "-c")
    wait, _, train = script.partition(" || exit\n")
    compile(shlex.split(wait)[-1], "wait", "exec")
    exec_, *words = shlex.split(train.replace("$(POD_IP)", "10.1.2.3"))
    assert (exec_, *words[:2]) == ("exec", "millrace", "run")
    taken = command.commands["run"].make_context("run", words[2:]).params
    assert (taken["ranks"], taken["resume"]) == (2, True)
    assert taken["overrides"][:2] == ["cluster.scheduler=tls://millrace-scheduler:8786", "cluster.host=10.1.2.3"]
    assert taken["overrides"][-1] == "threads=1", "what the user says comes after what the script says"
    (host,) = containers(manifest)["driver"]["env"]
    assert (host["name"], host["valueFrom"]["fieldRef"]["fieldPath"]) == ("POD_IP", "status.podIP")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pods_of_on_kubernetes_do_the_chain(tmp_path, tls, tables):
    """Kubernetes is not here: each pod's command is a process of this machine, forked, with places and addresses of
    this machine in it."""
    words = ("--image", "millrace", "--volume", "data", "--workers", "1", "--cores", "1", "--tables", tables)
    done = python("on_kubernetes.py", *words, "--work", "/data/work", *CHAIN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = done.stdout.replace("millrace-scheduler:8786", f"127.0.0.1:{port}").replace("$(POD_IP)", "127.0.0.1")
    manifest = yaml.safe_load(text.replace("/data/", f"{tmp_path}/").replace("/tls/", f"{tls}/"))
    assert complaints(yaml.safe_load(done.stdout)) == []
    pods, running = containers(manifest), []
    try:
        for name, more in (("scheduler", ("--port", port, "--no-dashboard")), ("worker", ("--no-dashboard",))):
            _, kind, *args = pods[name]["args"]
            running.append(ForkedCommand(*args, *more, program=f"distributed.cli.dask_{kind}"))
        done = run(*pods["driver"]["command"])
        assert done.returncode == 0, done.stderr
        assert_chain_is_done(tmp_path / "work", tables, done.stdout)
        (bin_ := tmp_path / "bin").mkdir()
        for name in ("millrace", "python"):
            (bin_ / name).write_text('#!/bin/sh\necho "$0 $*"\n')
            (bin_ / name).chmod(0o755)
        again = run(*pods["driver"]["command"], PATH=f"{bin_}:{os.environ['PATH']}").stdout.splitlines()
        given = [line.split() for line in again if line.startswith(f"{bin_}/millrace")]
        assert [words[1] for words in given] == ["run", "evaluate"] and given[0][-1] == "--resume", (
            "what is there stays"
        )
    finally:
        for pod in reversed(running):
            pod.send_signal(signal.SIGTERM)
            pod.wait(30)


def test_every_script_is_tested_and_says_what_to_expect():
    scripts = {p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".sh")}
    assert scripts == {
        "chain.py", "on_a_laptop.sh", "on_a_gpu_box.py", "over_ssh.py", "on_slurm.py", "on_kubernetes.py",
        "on_torchrun.py", "serve.py",
    }  # fmt: skip
    for name in scripts:
        head = (EXAMPLES / name).read_text()[:2000]
        assert f"examples/{name}" in head and "What to expect" in head, name
    for name in ("on_slurm.py", "on_kubernetes.py"):
        assert "Rendered only" in (EXAMPLES / name).read_text()
