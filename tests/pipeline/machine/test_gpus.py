"""Runs on GPUs: which GPU each rank has, what dask-cuda is asked for, and the sentences where something is missing."""

import sys
import tomllib

import pytest
import torch
import torch.distributed as dist

import millrace as mr
from millrace.pipeline import ready
from millrace.pipeline.cluster import dask_cluster
from millrace.pipeline.config.load import resolve
from millrace.pipeline.machine import gpus
from millrace.pipeline.setup import prepare
from millrace.pipeline.supervision import rank_places, rank_tasks
from millrace.stages.kernels.runtime import triton_rng
from millrace.storage.errors import InputError, MissingExtraError
from millrace.tests.contracts import dask_cuda

DATASET = "sbm:nodes=60,classes=2,features=4,seed=1"
ONE = {"device": "cuda"}
TWO = {"device": "cuda", "ranks": 2, "cluster": {"dashboard_port": 0}}
AT = "tcp://127.0.0.1:8786"

pytestmark = pytest.mark.usefixtures("forked_workers")


def merged(table, **cluster_keys):
    return resolve({**table, "cluster": {**table.get("cluster", {}), **cluster_keys}})


# --- what is missing ---


@pytest.fixture
def bare(monkeypatch):
    """A machine where nothing is missing, to take things from."""
    monkeypatch.setattr(triton_rng, "INTERPRETED", False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", object, raising=False)
    dask_cuda.install(monkeypatch, "0,1")
    for job in (ONE, TWO):
        gpus.check_gpus(resolve(job))
    return monkeypatch


def test_a_torch_without_cuda_is_named(bare):
    bare.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(
        InputError, match=r'device is "cuda", but this torch \(2\..*\) is built without CUDA; install one with it'
    ):
        gpus.check_gpus(resolve(ONE))


def test_a_machine_without_a_driver_is_named(bare):
    def absent():
        raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have a GPU")

    bare.setattr(torch.cuda, "is_available", lambda: False)
    bare.setattr(torch.cuda, "init", absent)
    with pytest.raises(
        InputError, match=r"torch sees no GPU here \(Found no NVIDIA driver on your system\); `millrace doctor` says"
    ):
        gpus.check_gpus(resolve(ONE))
    bare.setattr(torch.cuda, "init", lambda: None)
    with pytest.raises(InputError, match=r"torch sees no GPU here \(they are hidden or busy\)"):
        gpus.check_gpus(resolve(ONE))


def test_triton_may_be_absent(bare):
    bare.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match="Triton is not installed, which its kernels are written in"):
        gpus.check_gpus(resolve(ONE))


def test_dask_cuda_is_needed_for_a_cluster_that_is_started_here(bare):
    bare.setitem(sys.modules, "dask_cuda", None)
    gpus.check_gpus(resolve(ONE))
    with pytest.raises(
        MissingExtraError, match=r"dask-cuda is not installed, which starts a worker for each GPU; pip install .*gpu"
    ):
        gpus.check_gpus(resolve(TWO))
    gpus.check_gpus(merged(TWO, scheduler=AT))


def test_nccl_is_needed_where_it_is_used(bare):
    bare.delattr(dist, "ProcessGroupNCCL")
    gpus.check_gpus(resolve(ONE))
    with pytest.raises(InputError, match=r'built without it.*cluster\.backend = "gloo"'):
        gpus.check_gpus(resolve(TWO))
    gpus.check_gpus(merged(TWO, backend="gloo"))


def test_the_driver_of_ranks_elsewhere_needs_no_gpu(bare):
    bare.setattr(torch.backends.cuda, "is_built", lambda: False)
    gpus.check_gpus(merged(TWO, scheduler=AT))
    bare.setattr(torch.cuda, "is_available", lambda: False)
    prepare.checks.check_available(resolve({"ranks": 2, "kernel": "cuda", "cluster": {"scheduler": AT}}))
    with pytest.raises(InputError, match="torch sees no GPU here"):
        prepare.checks.check_available(resolve({"ranks": 2, "kernel": "cuda"}))


def test_the_interpreter_is_a_device_of_its_own(monkeypatch):
    monkeypatch.setattr(triton_rng, "INTERPRETED", True)
    assert gpus.take() == torch.device("cpu")


def test_a_rank_takes_the_one_gpu_that_it_sees(bare):
    taken = []
    bare.setattr(torch.cuda, "set_device", taken.append)
    assert gpus.take() == torch.device("cuda", 0)
    assert taken == [torch.device("cuda", 0)]


# --- options of the cluster ---


@pytest.mark.parametrize(
    ("job", "backend"),
    [
        ({"ranks": 2}, "gloo"),
        (TWO, "nccl"),
        ({**TWO, "cluster": {"on_rank_loss": "continue"}}, "gloo"),
        ({**TWO, "cluster": {"backend": "gloo"}}, "gloo"),
    ],
)
def test_what_ranks_talk_over(job, backend):
    assert gpus.backend(resolve(job)) == backend


UCX = {"cuda": {"protocol": "ucx"}}


@pytest.mark.parametrize(
    ("job", "section", "match"),
    [
        ({"ranks": 2}, {"backend": "nccl"}, r'cluster\.backend is "nccl", but device is "cpu"'),
        (
            TWO,
            {"backend": "nccl", "on_rank_loss": "continue"},
            r'which sum it broke, and NCCL does not say; use cluster\.backend = "gloo"',
        ),
        (
            {"ranks": 2},
            {"cuda": {"rmm_pool_size": "2GB"}},
            r'cluster\.cuda\.rmm_pool_size is given, but device is "cpu"',
        ),
        (
            TWO,
            {**UCX, "scheduler": AT},
            r"cluster\.cuda\.protocol is given, but the workers of tcp://127\.0\.0\.1:8786 run already",
        ),
        (TWO, {**UCX, "tls_ca": "ca.pem"}, "UCX, which knows no TLS, and TLS files are given"),
        (TWO, UCX, r"every user of this machine could run code as you; .* cluster\.insecure = true"),
        (
            TWO,
            {"cuda": {"rmm_pol_size": "2GB"}},
            r"rmm_pol_size is given, but is no option .* 'rmm_pool_size'.*; expected .*, protocol",
        ),
        (
            TWO,
            {"cuda": {"n_workers": 3}},
            r"cluster\.cuda\.n_workers is given, but is no option of dask-cuda that can be set",
        ),
        (
            {**TWO, "ranks": 3},
            {},
            r"3 ranks want a GPU each under NCCL, but this machine has 2; use ranks = 2, .* share them",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(bare, job, section, match):
    with pytest.raises(InputError, match=match):
        gpus.check_cluster(merged(job, **section))


def test_a_machine_whose_gpus_are_hidden(bare):
    for hidden in ("", "-1", "-1,0"):
        bare.setenv(gpus.VISIBLE, hidden)
        with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES names no GPU"):
            gpus.check_cluster(resolve(TWO))


@pytest.mark.parametrize(
    ("options", "module", "what"),
    [
        ({"protocol": "ucx"}, "distributed_ucxx", "UCX"),
        ({"enable_nvlink": True}, "distributed_ucxx", "UCX"),
        ({"rmm_async": True}, "rmm", "RMM"),
        ({"rmm_pool_size": 0.25}, "rmm", "RMM"),
    ],
)
def test_what_options_need_is_asked_for(bare, options, module, what):
    bare.setitem(sys.modules, module, None)
    (name,) = options
    with pytest.raises(MissingExtraError, match=rf"cluster\.cuda\.{name} needs {what}, but {module} is not installed"):
        gpus.check_cluster(merged(TWO, cuda=options, insecure=True))
    dask_cuda.install(bare, "0,1", module)
    gpus.check_cluster(merged(TWO, cuda=options, insecure=True))


def test_options_reach_dask_cuda_as_they_are():
    options = {"rmm_pool_size": "4GB", "enable_cudf_spill": True, "rmm_maximum_pool_size": 0.5}
    job = merged(TWO, cuda=options)
    assert job.cluster.cuda == options
    assert resolve(tomllib.loads(job.to_toml())).cluster.cuda == options


# --- who has which GPU ---

A, B, C = "tcp://a:1", "tcp://a:2", "tcp://b:1"


@pytest.mark.parametrize(
    ("ranks", "seen", "places"),
    [
        (2, {A: ["0", "1"], B: ["1", "0"]}, [(A, "0"), (B, "1")]),
        (2, {A: ["0", "1"], B: ["0", "1"]}, [(A, "0"), (B, "1")]),
        (3, {A: ["0"], C: ["0", "1"]}, [(A, "0"), (C, "0"), (C, "1")]),
        (1, {A: [], C: ["GPU-7"]}, [(C, "GPU-7")]),
        (3, {A: ["0", "1"], C: ["0", "1"]}, [(A, "0"), (C, "0"), (A, "1")]),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(ranks, seen, places):
    assert gpus.assign_gpus(ranks, seen, shared=False) == gpus.assign_gpus(ranks, seen, shared=True) == places


def test_ranks_may_share_gpus_evenly():
    assert gpus.assign_gpus(4, {A: ["0", "1"]}, shared=True) == [(A, "0"), (A, "1")] * 2


def test_too_few_gpus_are_refused():
    with pytest.raises(
        InputError, match=r"3 ranks want a GPU each under NCCL, but the cluster .* has 2; use ranks = 2"
    ):
        gpus.assign_gpus(3, {A: ["0", "1"], B: ["1", "0"]}, shared=False)
    for shared in (False, True):
        with pytest.raises(InputError, match=r"none of the 2 workers sees a GPU; start them by dask-cuda"):
            gpus.assign_gpus(1, {A: [], B: []}, shared)


def test_gpus_are_those_that_cuda_would_see(monkeypatch):
    for said, names in (("2, 0", ["2", "0"]), ("GPU-1,MIG-2", ["GPU-1", "MIG-2"]), ("1,-1,2", ["1"]), ("", [])):
        monkeypatch.setenv(gpus.VISIBLE, said)
        assert gpus.visible() == names
    monkeypatch.delenv(gpus.VISIBLE)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus.visible() == ["0", "1", "2"]


# --- dask-cuda's cluster, with worker processes ---


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_for_each_gpu(monkeypatch):
    dask_cuda.install(monkeypatch, "0,1,2")
    # A stand-in cluster that another test has started leaves it.
    monkeypatch.delenv("RAPIDS_NO_INITIALIZE", raising=False)
    options = {"protocol": "ucx", "enable_tcp_over_ucx": True, "rmm_pool_size": 0.25, "rmm_managed_memory": True}
    job = merged(TWO, backend="gloo", cuda=options)
    with dask_cluster.opened(job, lambda e: None, workers=3) as client:
        told = client.run(dask_cuda.seen)
        assert sorted(gpus_ for gpus_, _ in told.values()) == ["0,1,2", "1,2,0"], (
            "as many as ranks, each with its own first"
        )
        assert len({pid for _, pid in told.values()}) == 2
        placed, left = rank_places.gpus_of_ranks(client, 2, shared=False)
        assert sorted(gpu for _, gpu in placed) == ["0", "1"] and left == []
        assert {a: told[a][0].split(",")[0] for a, _ in placed} == dict(placed)
        with pytest.raises(InputError, match="4 ranks want a GPU each"):
            rank_places.gpus_of_ranks(client, 4, shared=False)
        assert len(rank_places.gpus_of_ranks(client, 4, shared=True)[0]) == 4
    given = dask_cuda.LocalCUDACluster.given
    assert {k: given[k] for k in options} == options
    assert (given["n_workers"], given["threads_per_worker"], given["memory_limit"], given["host"]) == (
        2,
        1,
        None,
        "127.0.0.1",
    )
    assert "RAPIDS_NO_INITIALIZE" not in sys.modules["os"].environ, "this process's environment is as it was"


@pytest.mark.parametrize(
    ("options", "protocol"),
    [
        ({"enable_nvlink": True}, "ucx"),
        ({"enable_infiniband": True, "enable_rdmacm": True}, "ucx"),
        ({}, None),
        ({"protocol": "tcp"}, "tcp"),
    ],
)
def test_dask_cuda_chooses_the_protocol_that_options_need(monkeypatch, options, protocol):
    dask_cuda.install(monkeypatch, "0,1")
    # Its checks are what matters here, not the workers.
    monkeypatch.setattr(dask_cuda.LocalCluster, "__init__", lambda self, **_: None)
    monkeypatch.setattr(dask_cuda.LocalCUDACluster, "scale", lambda self, n: None)
    monkeypatch.setattr(dask_cuda.LocalCUDACluster, "sync", lambda self, f: None)
    assert dask_cluster._local(merged(TWO, cuda=options), 2, None, "", 0).travels_by == protocol


def test_what_dask_cuda_refuses_is_passed_on(monkeypatch):
    dask_cuda.install(monkeypatch, "0,1")
    job = merged(TWO, cuda={"rmm_release_threshold": "2GB"})
    with (
        pytest.raises(
            InputError,
            match=r"dask-cuda cannot start workers .*ValueError: .*requires `rmm_async`.*; correct cluster\.cuda",
        ),
        dask_cluster.opened(job, lambda e: None, workers=2),
    ):
        pass


def test_dask_cuda_may_be_broken(monkeypatch):
    monkeypatch.setenv(gpus.VISIBLE, "0,1")
    monkeypatch.setitem(sys.modules, "dask_cuda", None)
    with (
        pytest.raises(MissingExtraError, match="dask-cuda cannot be imported"),
        dask_cluster.opened(resolve(TWO), lambda e: None, workers=2),
    ):
        pass


def test_an_address_that_is_not_here_is_named_as_on_a_processor(monkeypatch):
    dask_cuda.install(monkeypatch, "0,1")
    job = merged(TWO, host="192.0.2.1", insecure=True)
    with (
        pytest.raises(InputError, match=r"cannot start a cluster on 192\.0\.2\.1"),
        dask_cluster.opened(job, lambda e: None, workers=2),
    ):
        pass


@pytest.fixture
def let_through(monkeypatch):
    """A machine with two GPUs, as far as the driver is concerned."""
    dask_cuda.install(monkeypatch, "0,1")
    monkeypatch.setattr(ready, "check_available", lambda job: None)
    monkeypatch.setattr(prepare.checks, "check_available", lambda job: None)
    return monkeypatch


def test_a_rank_starts_with_one_gpu_in_its_environment(let_through, tmp_path):
    let_through.setattr(rank_tasks, "hold_rank", dask_cuda.tell_gpu)
    with pytest.raises(mr.RunError, match=r"rank (0|1) failed: sees (\d) on a worker of \2,"):
        mr.run(DATASET, out=tmp_path / "run", epochs=1, **TWO)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_rank_without_its_gpu_says_so(let_through, tmp_path):
    let_through.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(
        mr.RunError, match=r'rank \d failed: device is "cuda", but (this torch .* is built without CUDA|torch sees no)'
    ) as e:
        mr.run(DATASET, out=tmp_path / "run", epochs=1, **TWO)
    assert e.value.exit_code == 2
