"""``kernel = "cugraph"``, with RAPIDS stood in for: a whole run, what its samples obey, what is refused, and what may
not pass for what."""

from functools import partial

import numpy as np
import pytest
from distributed import Client, Event, LocalCluster

import millrace as mr
from millrace.pipeline.cluster import sample_multi_gpu
from millrace.pipeline.setup.open_queue import open_queue
from millrace.stages import kernels
from millrace.stages.kernels.sampling.rapids import neighbor as sample_rapids
from millrace.storage.dataset_store import write_dataset
from millrace.storage.errors import InputError, RunError
from millrace.storage.queue.zarr import ZarrQueue
from millrace.tests.contracts import rapids
from millrace.tests.contracts.command import command

DATASET = "sbm:nodes=120,classes=2,features=4,degree=12,seed=1"
FANOUT = [4, 3]
SMALL = ("--epochs", 2, "--fanout", "4,3", "--set", "model.hidden=4", "--batch-size", 3, "--set", "queue.bulk_size=2")
CUGRAPH = ("--set", "kernel=cugraph")


@pytest.fixture
def gpu(monkeypatch):
    rapids.install(monkeypatch)
    calls, real = [], rapids.neighbor_sample
    monkeypatch.setattr("pylibcugraph.neighbor_sample", lambda *a, **k: (calls.append(len(a[2])), real(*a, **k))[1])
    return calls


def test_a_run_trains_on_what_pylibcugraph_draws(tmp_path, gpu):
    code, _, err = command("run", "--dataset", DATASET, *SMALL, *CUGRAPH, "--out", tmp_path / "run")
    assert code == 0, err
    train = len(mr.open_dataset(DATASET).split.train)
    assert len(gpu) == 2 * -(-train // 6) and sum(gpu) == 2 * train, "each epoch's seeds, once each, a bulk at a time"
    assert (tmp_path / "run" / "model.pt").exists()
    assert 'kernel = "cugraph"' in (tmp_path / "run" / "job.toml").read_text()


def check_laws(store, graph) -> None:
    """Every edge is one of the graph's, in no row twice, in the right number; and all minibatches are there."""
    queue, seen = open_queue(store), 0
    for minibatch in queue:
        minibatch.check()
        seen += len(minibatch.seeds)
        for h, block in enumerate(reversed(minibatch.blocks)):
            before = 0 if not h else list(reversed(minibatch.blocks))[h - 1].num_dst
            for row in range(before, block.num_dst):
                v = block.src[row]
                drawn = block.src[block.indices[block.indptr[row] : block.indptr[row + 1]]]
                neighbours = graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
                assert len(set(drawn)) == len(drawn) == min(FANOUT[h], len(neighbours))
                assert np.isin(drawn, neighbours).all()
    queue.close()
    assert seen == 2 * len(mr.open_dataset(DATASET).split.train)


def sample(store, *more):
    return command("sample", "--dataset", DATASET, "--epochs", 2, *SMALL[2:4], *SMALL[6:], *more, "--out", store)


def test_its_samples_keep_the_laws_and_pass_for_no_others(tmp_path, gpu):
    code, _, err = sample(tmp_path / "theirs", *CUGRAPH)
    assert code == 0, err
    check_laws(tmp_path / "theirs", mr.open_dataset(DATASET).graph)
    assert sample(tmp_path / "ours")[0] == 0
    for store, kernel, fits in [
        ("theirs", "cugraph", True),
        ("theirs", "cpu", False),
        ("ours", "cugraph", False),
        ("ours", "cpu", True),
    ]:
        words = ("--samples", tmp_path / store, "--set", f"kernel={kernel}", "--out", tmp_path / f"{store}-{kernel}")
        code, _, err = command("run", "--dataset", DATASET, *SMALL, *words)
        assert code == (0 if fits else 2), err
        assert fits or "sampler" in err


def test_a_run_goes_on_with_its_kernel_alone(tmp_path, gpu):
    words = ("run", "--dataset", DATASET, *SMALL, "--out", tmp_path / "run")
    assert command(*words, *CUGRAPH)[0] == 0
    code, _, err = command(*words, "--epochs", 3, "--resume", "--set", "kernel=cpu")
    assert code == 2
    assert "kernel (was cugraph, now cpu)" in " ".join(err.split())
    code, _, err = command(*words, "--epochs", 3, "--resume", *CUGRAPH)
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "sampler.name=labor"), "the sampler is 'labor'"),
        (("--set", "sampler.name=ladies", "--set", "sampler.sizes=[8,8]"), "the sampler is 'ladies'"),
        (("--system", "sar", "--layers", 2), "system 'sar' samples nothing"),
        (("--set", "bulk.topology=partitioned", "--ranks", 2), "which samples from a whole graph"),
    ],
)
def test_what_pylibcugraph_cannot_do_is_refused(tmp_path, gpu, words, told):
    code, out, err = command("run", "--dataset", DATASET, "--epochs", 1, *words, *CUGRAPH, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert 'kernel is "cugraph"' in " ".join(err.split()) and told in " ".join(err.split())
    assert len(err.splitlines()) <= 4
    assert not (tmp_path / "run" / "checkpoints").exists() and not gpu


def test_stores_of_another_sampler_are_refused_before_they_are_made(tmp_path, gpu):
    code, _, err = sample(tmp_path / "store", *CUGRAPH, "--set", "sampler.name=labor")
    assert code == 2 and "the sampler is 'labor'" in " ".join(err.split())
    assert not (tmp_path / "store").exists()


def test_without_rapids_or_a_gpu_it_is_one_sentence(tmp_path, monkeypatch):
    words = ("run", "--dataset", DATASET, *SMALL, *CUGRAPH, "--out", tmp_path / "run")
    code, _, err = command(*words)
    assert code == 2 and not (tmp_path / "run").exists()
    assert (
        'kernel "cugraph" needs an NVIDIA GPU and RAPIDS, but cupy, pylibcugraph cannot be found; use kernel = "cpu"'
        in " ".join(err.split())
    )
    rapids.install(monkeypatch, 0)
    code, _, err = command(*words)
    assert code == 2 and "CUDA says cudaErrorInsufficientDriver" in " ".join(err.split())


def test_its_name_is_known_and_checked(gpu):
    assert kernels.sampling_backend("cugraph").neighbor is sample_rapids.neighbor
    with pytest.raises(InputError, match="expected one of cpu, cuda, matrix, cugraph; did you mean 'cugraph'"):
        kernels.sampling_backend("cugrap")


def test_several_gpus_share_a_graph_and_fill_a_store_together(tmp_path, monkeypatch):
    rapids.install(monkeypatch, 3)
    made, real = [], rapids.MGGraph.__init__
    monkeypatch.setattr(rapids.MGGraph, "__init__", lambda self, *a, **k: (real(self, *a, **k), made.append(self))[0])
    code, _, err = sample(tmp_path / "store", *CUGRAPH)
    assert code == 0, err
    graph = mr.open_dataset(DATASET).graph
    check_laws(tmp_path / "store", graph)
    assert sum(g.own_edges for g in made) == graph.num_edges and len(made) == 3
    assert max(g.own_edges for g in made) <= -(-graph.num_edges // 3), "no GPU has more than its share"
    # All is there: nobody is started again.
    assert sample(tmp_path / "store", *CUGRAPH)[0] == 0
    assert len(made) == 3
    run = command(
        "run", "--dataset", DATASET, *SMALL, *CUGRAPH, "--samples", tmp_path / "store", "--out", tmp_path / "run"
    )
    assert run[0] == 0, run[2]


def test_an_interrupted_round_leaves_bulks_that_are_kept(tmp_path, monkeypatch):
    rapids.install(monkeypatch, 2)
    real, calls = rapids.neighbor_sample, []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            rapids.end_calls()
            raise RuntimeError("out of memory")
        return real(*args, **options)

    monkeypatch.setattr("pylibcugraph.neighbor_sample", failing)
    code, _, err = sample(tmp_path / "store", *CUGRAPH)
    assert code == 3 and "sampling by cuGraph failed" in " ".join(err.split())
    monkeypatch.setattr("pylibcugraph.neighbor_sample", real)
    queue = open_queue(tmp_path / "store")
    there = sum(len(queue.committed(e)) for e in range(2))
    queue.close()
    assert 0 < there < 4
    assert sample(tmp_path / "store", *CUGRAPH)[0] == 0
    check_laws(tmp_path / "store", mr.open_dataset(DATASET).graph)


@pytest.mark.parametrize(("gpus", "stored"), [(1, True), (2, False)])
def test_a_cluster_of_dask_cuda_that_is_named_samples(tmp_path, monkeypatch, gpus, stored):
    """No other is started; after a failure its workers are free again."""
    dataset, made, real = DATASET, [], rapids.MGGraph.__init__
    monkeypatch.setattr(rapids.MGGraph, "__init__", lambda self, *a, **k: (real(self, *a, **k), made.append(self))[0])
    if stored:
        dataset = tmp_path / "data"
        write_dataset(dataset, mr.open_dataset(DATASET))
    monkeypatch.chdir(tmp_path)
    with rapids.named_cluster(monkeypatch, gpus) as (own, _):
        words = ("sample", "--dataset", dataset, "--epochs", 2, *SMALL[2:4], *SMALL[6:], *CUGRAPH, "--out", "store")
        words += ("--set", f"cluster.scheduler={own.scheduler_address}")
        with monkeypatch.context() as patch:
            patch.setattr(ZarrQueue, "put", lambda *_: 1 / 0)
            code, _, err = command(*words)
            assert code == 3 and "division by zero; fix that and give the command again" in " ".join(err.split())
            assert "restart" not in err
        code, _, err = command(*words)
        assert code == 0, err
    assert [g.own_edges for g in made[gpus:]] == [mr.open_dataset(DATASET).graph.num_edges // gpus] * gpus
    check_laws(tmp_path / "store", mr.open_dataset(DATASET).graph)
    assert not [*tmp_path.glob(".sampling*")], "the copy of the data is gone"


def test_a_named_cluster_that_cannot_sample_is_told_so(tmp_path, monkeypatch):
    with rapids.named_cluster(monkeypatch, 2, threads=2) as (own, client):
        more = ("--set", f"cluster.scheduler={own.scheduler_address}")
        code, _, err = sample(tmp_path / "store", *CUGRAPH, *more)
        assert code == 2 and "has 2 threads" in " ".join(err.split()) and "--nthreads 1" in err
        hangs, never = Event("hangs", client=client), Event("let go", client=client)
        monkeypatch.setattr(sample_multi_gpu, "LEAVE_S", 0.5)
        on = [partial(client.submit, workers=[w], pure=False) for w in client.scheduler_info()["workers"]]
        stuck = [submit(_hang) for submit in (*on, *on)]
        hangs.wait()
        assert not sample_multi_gpu._all_left(on), "all threads wait in a call that another one has left"
        never.set()
        client.gather(stuck)
        assert sample_multi_gpu._all_left(on)


def _hang() -> None:
    Event("hangs").set()
    Event("let go").wait()


def test_a_lost_process_ends_the_wait_for_the_others(monkeypatch):
    monkeypatch.setattr(sample_multi_gpu, "LOOK_S", 0.1)
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster, Client(cluster) as client:
        never = Event("never", client=client)
        waiting = client.submit(lambda: Event("never").wait(), pure=False)
        with pytest.raises(RunError, match="a process that sampled on a GPU is gone"):
            sample_multi_gpu._together(client, [*client.scheduler_info()["workers"], "tcp://127.0.0.1:9"], [waiting])
        never.set()
