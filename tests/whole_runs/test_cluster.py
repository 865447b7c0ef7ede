"""Runs on a Dask cluster give what one process gives, and count what they send."""

import hashlib
import json
import logging
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import psutil
import pytest
import torch
from distributed import Client

import millrace as mr
from millrace.pipeline.cluster import dask_cluster
from millrace.pipeline.config.load import resolve
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.supervision import rank_places
from millrace.pipeline.telemetry.events import Note, Pulse, QueueLevel, StepDone
from millrace.stages.comm.gloo import ring_bytes
from millrace.tests.contracts.forked_command import ForkedCommand

DATASET = "sbm:nodes=600,classes=3,degree=8,features=5,train=0.5"
STEP, BATCH, EPOCHS, NODES, FEATURES = 4, 16, 2, 600, 5
"""M minibatches a step; 300 train nodes are 19 minibatches, so the last step of an epoch leaves ranks without work."""
JOB = {
    "epochs": EPOCHS, "batch_size": BATCH, "fanout": [4, 3], "hidden": 8, "lr": 0.02, "dropout": 0.2,
    "dtype": "float64", "seed": 3,
    "threads": 1, "minibatches_per_step": STEP, "model": {"name": "sage", "norm": "batch"},
}  # fmt: skip
COLUMNS = ("src", "indptr", "indices", "weight", "edge_id")


def parameters(run):
    return torch.load(run / "model.pt", weights_only=True)


def assert_same_parameters(run, other):
    a, b = parameters(run), parameters(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.linalg.vector_norm(a[name].double() - b[name]) <= 1e-6 * torch.linalg.vector_norm(
            b[name].double()
        ), name


def digest(store):
    """Digest of every bit of every minibatch."""
    found = hashlib.sha256()
    for m in mr.open_queue(store):
        found.update(f"{m.epoch} {m.index} {m.nested} {len(m.blocks)}".encode())
        for block in m.blocks:
            found.update(str(block.num_dst).encode())
            for column in (getattr(block, name) for name in COLUMNS):
                found.update(
                    b"none" if column is None else str((column.dtype, column.shape)).encode() + column.tobytes()
                )
    return found.hexdigest()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One rank in this process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    result = mr.run(DATASET, out=out, queue={"kind": "zarr", "keep": "all", "bulk_size": 3}, **JOB)
    return SimpleNamespace(out=out, result=result, queue=out / "queue")


class Listener:
    """Keeps events, and the commands that ranks were started by."""

    def __init__(self):
        self.events, self.parents = [], []

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, StepDone) and not self.parents:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if "millrace.pipeline.cluster.rank_main" in process.cmdline():
                        self.parents.append(" ".join(process.parent().cmdline()))


@pytest.fixture(scope="module")
def two(scheduler, tmp_path_factory):
    """Two ranks that own the features between them, three producers, a queue with hardly any room."""
    out, listener = tmp_path_factory.mktemp("two") / "run", Listener()
    result = mr.run(
        DATASET, out=out, ranks=2, scheduler=scheduler, features="owned", check=True, emit=listener,
        queue={"kind": "zarr", "keep": "all", "bulk_size": 3, "max_bytes": 1}, cluster={"producers": 3}, **JOB,
    )  # fmt: skip
    return SimpleNamespace(out=out, result=result, queue=out / "queue", **vars(listener))


def test_every_rank_tells_its_pulse_and_the_queue_its_level(two):
    told = [json.loads(line) for line in (two.out / "metrics.jsonl").read_text().splitlines()]
    pulses = [[t for t in told if t["event"] == "Pulse" and t["rank"] == rank] for rank in range(2)]
    for rank, of_rank in enumerate(pulses):
        last, counted = of_rank[-1], two.result.bytes["per_rank"][rank]
        assert (last["epoch"], last["step"], last["steps"]) == (EPOCHS - 1, 4, 5 * EPOCHS)
        assert last["bytes"] == {c: {k: n for k, n in kinds.items() if n} for c, kinds in counted.items()}
        rows = last["sent_to"]["network"]["features"]
        assert rows[rank] == 0 and sum(rows) == counted["network"]["features"] > 0
        assert 0 < last["rss_bytes"] <= two.result.peak_rss_bytes[rank] * 1.01
        assert all(a["seconds"]["total"] <= b["seconds"]["total"] for a, b in zip(of_rank, of_rank[1:]))
        assert last["queue"] == {}, "sampling tasks fill it"
    assert sum(p[-1]["edges"] for p in pulses) == two.result.sampled_edges
    for name in ("reduce", "forward_backward", "fetch"):
        assert max(p[-1]["seconds"][name] for p in pulses) == pytest.approx(two.result.seconds[name], abs=1e-3)
    levels = [t for t in told if t["event"] == "QueueLevel"]
    assert levels and all(t["bound"] == 1 and t["bytes"] >= 0 for t in levels)
    assert two.result.seconds["sample"] == pytest.approx(levels[-1]["seconds"]) != 0
    # Several a second, from threads: not for whoever listens to the run.
    assert not any(isinstance(e, Pulse | QueueLevel) for e in two.events)


def test_ranks_are_forked(two):
    """Else the tests of runs would take half as long again."""
    assert len(two.parents) == 2 and all("cluster.rank_server" in parent for parent in two.parents)


def test_two_ranks_train_as_one(alone, two):
    assert digest(two.queue) == digest(alone.queue)
    assert_same_parameters(two.out, alone.out)
    a, b = two.result, alone.result
    assert a.train_loss == pytest.approx(b.train_loss, rel=1e-9)
    assert (a.ranks, a.minibatches, a.sampled_edges, a.best_epoch) == (2, b.minibatches, b.sampled_edges, b.best_epoch)
    assert (a.test_accuracy, a.val_accuracy) == (pytest.approx(b.test_accuracy), pytest.approx(b.val_accuracy))
    assert a.fingerprint == b.fingerprint
    assert a.seconds["sample"] > 0
    assert len(a.peak_rss_bytes) == 2


def test_ranks_and_sampling_tasks_map_the_graph(alone, scheduler, tmp_path):
    """The same minibatches and parameters, from files that no process copies."""
    mr.write_dataset(tmp_path / "store", mr.open_dataset(DATASET), features_format="npy", graph_format="npy")
    out, seen = tmp_path / "run", set()

    def look(event):
        if isinstance(event, StepDone) and len(seen) < 2:
            seen.update(maps_of("indices.npy"))

    result = mr.run(
        tmp_path / "store", out=out, ranks=2, scheduler=scheduler, features="mapped", graph="mapped", emit=look,
        queue={"kind": "zarr", "keep": "all", "bulk_size": 3}, cluster={"producers": 2}, **JOB,
    )  # fmt: skip
    assert digest(out / "queue") == digest(alone.queue)
    assert_same_parameters(out, alone.out)
    assert result.test_accuracy == pytest.approx(alone.result.test_accuracy, abs=1e-9)
    assert len(seen) >= 2, "processes that map it"


def maps_of(name):
    """Processes below this one, and of the scheduler's workers, that map a file of this name."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if any(name in line for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()):
                found.add(process.pid)
    return found


def test_four_ranks_train_as_one(alone, scheduler, tmp_path):
    queue = {"kind": "zarr", "keep": "all", "bulk_size": 1, "max_bytes": 1}
    mr.run(DATASET, out=tmp_path / "run", ranks=4, scheduler=scheduler, queue=queue, **JOB)
    assert digest(tmp_path / "run" / "queue") == digest(alone.queue)
    assert_same_parameters(tmp_path / "run", alone.out)


def test_queues_in_memory_train_the_same(alone, scheduler, tmp_path):
    result = mr.run(DATASET, out=tmp_path / "run", ranks=2, scheduler=scheduler, queue={"bulk_size": 2}, **JOB)
    assert_same_parameters(tmp_path / "run", alone.out)
    assert not (tmp_path / "run" / "queue").exists()
    assert result.bytes["store"]["minibatches"] == 0


def test_no_wait_is_left_with_the_scheduler(scheduler, tmp_path):
    """A scheduler that is closed logs an error for each. One that a busy machine begins late ends by itself."""
    with Client(scheduler) as client:
        for attempt in "abc":
            before = client.run_on_scheduler(waited_for)  # of runs of other tests
            mr.run(DATASET, out=tmp_path / attempt, ranks=2, scheduler=scheduler, **{**JOB, "epochs": 1})
            if set(client.run_on_scheduler(waited_for)) <= set(before):
                return
    pytest.fail("what ranks' tasks have waited for was left with the scheduler by each of three runs")


def waited_for(dask_scheduler):
    return [name for name in dask_scheduler.extensions["events"]._events if name.startswith("millrace")]


def test_stored_samples_can_be_gone_through_again(scheduler, tmp_path):
    """Two ranks from a store of one epoch: the same as one rank from it, and the sampler takes no part."""
    job = resolve(
        {"dataset": DATASET, "epochs": 1, "seed": 3, "sampler": {"fanout": [4, 3]}, "train": {"batch_size": BATCH}}
    )
    precompute(job, tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    stored = {"samples": tmp_path / "samples", **JOB}
    with pytest.raises(mr.InputError, match=r"holds 1 epoch, but epochs is 2; .*--reuse cycle"):
        mr.run(DATASET, out=tmp_path / "refused", ranks=2, scheduler=scheduler, **stored)
    mr.run(DATASET, out=tmp_path / "one", reuse="cycle", **stored)
    result = mr.run(DATASET, out=tmp_path / "two", ranks=2, scheduler=scheduler, reuse="cycle", **stored)
    assert_same_parameters(tmp_path / "two", tmp_path / "one")
    assert result.seconds["sample"] == 0


def test_ledger_counts_what_travels(two):
    """Against counts made here, from the stored minibatches and the sizes of the model."""
    state, ranks = parameters(two.out), range(2)
    buffers = [v.numel() for name, v in state.items() if "running" in name or "tracked" in name]
    trained = sum(v.numel() for v in state.values()) - sum(buffers)
    steps = EPOCHS * 5
    minibatches = list(mr.open_queue(two.queue))
    assert len(minibatches) == EPOCHS * 19
    # Rank s sends each other rank the rows that it owns; rank r trains every second minibatch of a step, and asks for a
    # row of it once.
    rows, units = [0, 0], {}
    for m in minibatches:
        units.setdefault((m.epoch, m.index // STEP, m.index % STEP % 2), []).append(m.nodes)
    for (_, _, trainer), nodes in units.items():
        owner = (np.unique(np.concatenate(nodes)) >= NODES // 2).astype(int)
        rows[1 - trainer] += int((owner == 1 - trainer).sum())
    total = two.result.bytes
    for rank in ranks:
        sent = total["per_rank"][rank]["network"]
        assert sent["features"] == rows[rank] * FEATURES * 8
        # All gradients, the number of seeds and a flag; then the statistics of the batch normalisation.
        assert sent["gradients"] == steps * (ring_bytes(trained + 2, 8, rank, 2) + ring_bytes(sum(buffers), 8, rank, 2))
    assert total["network"]["gradients"] == steps * 2 * (2 - 1) * 8 * (trained + 2 + sum(buffers))
    assert total["network"]["features"] == sum(rows) * FEATURES * 8
    assert total["network"]["graph"] == total["network"]["activations"] == 0
    # One rank of a machine evaluates with the threads of all; what that reads is apart.
    assert total["evaluation"]["activations"] == 0
    assert total["evaluation"]["features"] > 0
    assert total["store"]["minibatches"] == sum(m.nbytes for m in minibatches)
    assert total["store"]["features"] == NODES * FEATURES * 8, "each row is read once"
    for channel in ("network", "store", "evaluation"):
        assert total[channel] == {kind: sum(r[channel][kind] for r in total["per_rank"]) for kind in total[channel]}


def test_the_folder_tells_about_the_run(two):
    assert all((two.out / "logs" / f"rank-{r}.log").read_text().startswith("--- generation 0") for r in range(2))
    # Its scheduler has no pages of its own.
    assert not any(isinstance(e, Note) and e.text.startswith("dashboard: http") for e in two.events)


def placed(monkeypatch, ranks, *addresses):
    """Workers of ranks on a cluster of these workers."""
    monkeypatch.setattr(rank_places, "worker_records", lambda client: list(addresses))
    return rank_places.workers_of_ranks(None, ranks)


def test_ranks_spread_over_hosts(monkeypatch):
    a, b, c = ([f"tcp://{host}:{port}" for port in (1, 2, 3)] for host in ("a", "b", "c"))
    workers = (*c[:1], *a, *b[:2])
    assert placed(monkeypatch, 4, *workers) == ([a[0], b[0], c[0], a[1]], [b[1], a[2]])
    assert placed(monkeypatch, 6, *workers) == ([a[0], b[0], c[0], a[1], b[1], a[2]], [])


def test_fewer_workers_than_ranks_hold_several(monkeypatch):
    assert placed(monkeypatch, 5, "tcp://a:1", "tcp://b:1") == ([f"tcp://{h}:1" for h in "ababa"], [])


TLS = ("tls_ca", "tls_cert", "tls_key")


@pytest.mark.parametrize("given", [g for n in (1, 2) for g in zip(*[TLS[i:] + TLS[:i] for i in range(n)])])
def test_tls_needs_all_three_files(given, tmp_path):
    files = {}
    for name in given:
        files[name] = str(tmp_path / name)
        (tmp_path / name).touch()
    with pytest.raises(mr.InputError, match=r"is not set but .*needs all three"):
        dask_cluster._security(resolve({"cluster": files}).cluster)


@pytest.mark.parametrize("missing", TLS)
def test_tls_files_must_be_there(missing, tmp_path):
    for name in {*TLS} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(mr.InputError, match=rf"cluster\.{missing} is .* not a file"):
        dask_cluster._security(resolve({"cluster": {name: str(tmp_path / name) for name in TLS}}).cluster)
    (tmp_path / missing).touch()
    security = dask_cluster._security(resolve({"cluster": {name: str(tmp_path / name) for name in TLS}}).cluster)
    assert security is not None
    assert security.require_encryption


@pytest.mark.parametrize(
    "section",
    [
        {"host": "10.1.2.3"},
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"scheduler": "tcp://10.1.2.3:8786"},
        {"scheduler": "tcp://[2001:db8::1]:1"},
    ],
)
def test_beyond_this_machine_needs_tls(section):
    with pytest.raises(mr.InputError, match="beyond this machine, without TLS"):
        dask_cluster._security(resolve({"cluster": section}).cluster)
    assert dask_cluster._security(resolve({"cluster": {**section, "insecure": True}}).cluster) is None


@pytest.mark.parametrize("section", [{}, {"host": "::1"}, {"host": "localhost"}, {"scheduler": "tcp://127.0.0.2:1"}])
def test_this_machine_does_not(section):
    assert dask_cluster._security(resolve({"cluster": section}).cluster) is None


@pytest.mark.parametrize(
    "section", [{"scheduler": "tls://127.0.0.1:1"}, {"scheduler": "tcp://127.0.0.1:1", **dict.fromkeys(TLS, __file__)}]
)
def test_tls_files_and_a_tls_address_go_together(section):
    with pytest.raises(mr.InputError, match=r"cluster\.scheduler is .* TLS files"):
        dask_cluster._security(resolve({"cluster": section}).cluster)


@pytest.fixture
def mute():
    """The address of a listener that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1", "mute"])
def test_a_scheduler_that_does_not_answer(address, mute, tmp_path, monkeypatch):
    assert dask_cluster.ANSWER_S <= 20
    monkeypatch.setattr(dask_cluster, "ANSWER_S", 0.5)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with pytest.raises(
        mr.InputError, match=r"no Dask scheduler answers at|expected the address of a Dask scheduler"
    ) as raised:
        mr.run(DATASET, out=tmp_path / "run", ranks=2, scheduler=mute if address == "mute" else address, **JOB)
    assert raised.value.exit_code == 2


def test_a_scheduler_that_is_gone_is_named(tmp_path):
    """Whichever of the driver's questions finds it out."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    told = tmp_path / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told)]
    process = ForkedCommand(*options, program="distributed.cli.dask_scheduler")
    try:
        until = time.monotonic() + 240
        while not told.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), Client(scheduler_file=str(told)) as client:
            assert dask_cluster.worker_records(client) == {} and not dask_cluster._has_dashboard(client)
            process.kill()
            process.wait(60)
            for ask in (dask_cluster.worker_records, dask_cluster.wait_for_worker):
                with pytest.raises(
                    mr.RunError,
                    match=r"the Dask scheduler no longer answers .*; start it again, then resume with --resume",
                ):
                    ask(client)
    finally:
        process.kill()


def test_a_host_that_is_not_this_machine(tmp_path):
    with pytest.raises(mr.InputError, match=r"cannot start a cluster on 192\.0\.2\.1.*cluster\.host"):
        mr.run(
            DATASET,
            out=tmp_path / "run",
            ranks=2,
            cluster={"host": "192.0.2.1", "insecure": True, "dashboard_port": 0},
            **JOB,
        )


def test_a_section_and_a_shorthand_go_together():
    job = configure({}, scheduler="tcp://127.0.0.1:1", cluster={"producers": 3}, batch_size=7, train={"lr": 0.5})
    assert (job.cluster.scheduler, job.cluster.producers) == ("tcp://127.0.0.1:1", 3)
    assert (job.train.batch_size, job.train.lr) == (7, 0.5)


def test_more_ranks_go_on_in_mid_epoch(scheduler, alone, tmp_path):
    """Begun by one process, a minibatch a step; gone on with by three ranks, from within what would have been a step of
    theirs."""
    job = {**JOB, "minibatches_per_step": None, "queue": {"kind": "zarr", "bulk_size": 3}}
    asked = iter(range(1000))
    assert mr.run(DATASET, out=tmp_path / "run", stop=lambda: next(asked) == 6, **job).status == "stopped"
    notes = []
    result = mr.run(
        DATASET,
        out=tmp_path / "run",
        ranks=3,
        scheduler=scheduler,
        features="owned",
        check=True,
        resume=True,
        emit=notes.append,
        **job,
    )
    assert (result.ranks, result.epochs, result.minibatches) == (3, EPOCHS, alone.result.minibatches)
    assert result.sampled_edges == alone.result.sampled_edges
    assert any("with 1 minibatch a step, and this run takes 3" in n.text for n in notes if isinstance(n, Note))
