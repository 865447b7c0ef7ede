"""Clusters of GPUs, with RAPIDS stood in for: who may connect, and what each process of one must have."""

import sys

import pytest
from distributed import Client

from millrace.stages import rapids as machine
from millrace.storage.errors import InputError, MissingExtraError
from millrace.tests.contracts import rapids

CUT = (*machine.NEEDED, "dask_cuda")


@pytest.mark.parametrize("gpus", [1, 2])
def test_nobody_else_reaches_a_cluster_that_is_started(monkeypatch, gpus):
    rapids.install(monkeypatch, gpus)
    with machine.gpu_cluster(gpus) as client:
        address = client.scheduler.address
        assert address.startswith("tls://") and client.submit(int, "7").result() == 7
        for other in (address, address.replace("tls", "tcp")):
            with pytest.raises((OSError, TypeError)):
                Client(other, timeout=2).close()


class Cluster:
    """A client's view of a cluster whose processes lack these modules."""

    def __init__(self, scheduler=(), worker=()):
        self.lacks = {"scheduler": scheduler, "tcp://a:1": worker, "tcp://b:1": ()}

    def run(self, function, *args):
        if function is machine._own_gpu:
            return {w: (w, "0") for w in self.lacks if w != "scheduler"}
        return {w: self._ran(w, function, *args) for w in self.lacks if w != "scheduler"}

    def run_on_scheduler(self, function, *args):
        return self._ran("scheduler", function, *args)

    def _ran(self, process, function, *args):
        with pytest.MonkeyPatch.context() as m:
            for name in self.lacks[process]:
                m.delitem(sys.modules, name)
            return function(*args)


@pytest.mark.parametrize(
    ("cluster", "needed", "told"),
    [
        (Cluster(scheduler=["raft_dask"]), CUT, "the scheduler cannot find raft_dask"),
        (Cluster(worker=["raft_dask"]), CUT, "the worker tcp://a:1 cannot find raft_dask"),
        (Cluster(worker=["dask_cudf"]), machine.TO_READ, "the worker tcp://a:1 cannot find dask_cudf"),
        (Cluster(scheduler=["raft_dask"]), machine.TO_READ, None),
        (Cluster(), CUT, None),
    ],
)
def test_each_process_of_a_named_cluster_is_asked(monkeypatch, cluster, needed, told):
    rapids.install(monkeypatch, 1)
    with machine.named_cluster(cluster):
        if told is None:
            assert machine.count_gpus("it", "less", needed) == 2
            return
        with pytest.raises(MissingExtraError, match=f"it on several GPUs needs RAPIDS .*, but {told}; use less"):
            machine.count_gpus("it", "less", needed)


@pytest.mark.parametrize("needed", [CUT, machine.TO_READ, machine.TO_SAMPLE])
def test_a_driver_without_a_gpu_may_only_sample_on_several_of_others(monkeypatch, needed):
    rapids.install(monkeypatch, 0)
    with machine.named_cluster(Cluster()):
        if needed is machine.TO_SAMPLE:
            assert machine.count_gpus("it", "less", needed) == 2
            return
        with pytest.raises(InputError, match="it needs an NVIDIA GPU, but CUDA says"):
            machine.count_gpus("it", "less", needed)
