"""One dask-cuda cluster for all stages of a command, with stand-ins for RAPIDS, dask-cuda and NCCL, on the pretended
device: it cuts, and then deals parts, samples or holds ranks. Its workers are processes, with a GPU each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed.deploy.spec import SpecCluster

import millrace as mr
from millrace.pipeline.cluster.rank_server import serving
from millrace.pipeline.config.schema import ClusterOptions
from millrace.pipeline.machine.gpus import VISIBLE
from millrace.pipeline.machine.malloc import allocator
from millrace.pipeline.telemetry.events import Note
from millrace.stages.partition.clustered import Leiden
from millrace.storage.dataset_store import open_dataset_store, write_dataset
from millrace.storage.partition.book import open_book
from millrace.tests.contracts import dask_cuda, pretended_device, rapids
from millrace.tests.contracts.command import command
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.forked_cluster import PRETENDED
from millrace.tests.contracts.nccl import InPlaceOfNccl

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device", "forked_workers", "by_value")
SBM = "sbm:nodes=120,classes=3,degree=6,features=5,train=0.4"
CUT = ("--method", "leiden", "--set", "executor=dask")
JOB: dict[str, Any] = {
    "epochs": 2, "seed": 4, "threads": 1, "dtype": "float64", "hidden": 6, "layers": 2, "lr": 0.02, "fanout": [3, 2],
    "batch_size": 5, "minibatches_per_step": 2, "bulk": {"topology": "partitioned"},
}  # fmt: skip


class Asked(mr.Callback):
    """Writes what a rank has begun over NCCL."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_end(self, run: Any) -> None:
        assert all(p.is_cuda for p in run.model.parameters())
        asked = {call for group in InPlaceOfNccl.living for call in group.asked}
        (self.folder / f"asked-{run.rank}").write_text(" ".join(sorted(asked)))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Clusters that are started here."""
    found, real = [], SpecCluster.__init__

    def start(self: Any, *args: Any, **options: Any) -> None:
        found.append(type(self))
        real(self, *args, **options)

    monkeypatch.setattr(SpecCluster, "__init__", start)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "data"
    write_dataset(path, mr.open_dataset(SBM))
    return path


def test_the_workers_of_a_command_that_cuts_find_the_communities(store, started, tmp_path, monkeypatch):
    """Of a store or data in memory, into parts or a renumbered store: no second cluster, and one dashboard."""
    data = mr.open_dataset(store)
    rapids.install(monkeypatch, 1, processes=True)
    book = Leiden().assign(data.graph, 2, 0)
    for number, source, into in ((0, store, "--out"), (1, SBM, "--out"), (2, store, "--into")):
        started.clear()
        code, _, err = command("partition", source, "--parts", 2, *CUT, into, tmp_path / f"{number}")
        assert code == 0, err
        assert started == [dask_cuda.LocalCUDACluster] and err.count("note: dashboard:") == 1
    for number in (0, 1):
        found = open_book(tmp_path / f"{number}" / "book")
        assert np.array_equal(found.part(np.arange(120)), book.part(np.arange(120)))
    want, got = mr.reorder(data, book), open_dataset_store(tmp_path / "2")
    assert np.array_equal(want.graph.indices, got.graph.indices) and np.array_equal(want.labels, got.labels)


@pytest.mark.parametrize("verb", ["run", "sample"])
def test_ranks_on_processors_are_held_by_the_workers_that_cut(store, started, tmp_path, monkeypatch, verb):
    rapids.install(monkeypatch, 1, processes=True)
    table = {**JOB, "dataset": str(store), "ranks": 2, "epochs": 1, "partition.method": "leiden", "executor": "dask"}
    sets = [
        w for k, v in {**table, "bulk.topology": "partitioned"}.items() if k != "bulk" for w in ("--set", f"{k}={v}")
    ]
    code, _, err = command(verb, *sets, "--out", tmp_path / "out")
    assert code == 0, err
    assert started == [dask_cuda.LocalCUDACluster] and err.count("note: dashboard:") == 1


def test_samples_of_a_store_are_drawn_on_the_gpus_of_one_cluster(store, started, tmp_path, monkeypatch):
    """The processors' bits, by the workers of dask-cuda."""
    rapids.install(monkeypatch, 1, processes=True)
    monkeypatch.setattr("millrace.stages.comm.nccl.check_nccl", lambda: None)
    sets = ("--fanout", "3,2", "--batch-size", 5, "--epochs", 1, "--set", "queue.bulk_size=4", "--dataset", store)
    for name, more in (("there", ("--device", "cuda", "--executor", "dask")), ("host", ())):
        code, _, err = command("sample", *sets, *more, "--out", tmp_path / name)
        assert code == 0, err
    assert started == [dask_cuda.LocalCUDACluster]
    drawn = [[minibatch_digest(m) for m in mr.open_queue(tmp_path / name)] for name in ("there", "host")]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 10


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
def test_one_cluster_cuts_samples_into_the_queue_and_holds_ranks(store, started, tmp_path, monkeypatch, gpus):
    """From a store to a model by one command: the parameters of ranks on processors with the same cut."""
    if not pretended_device.is_pretended():
        pytest.skip("there is a GPU")
    dask_cuda.install_for_ranks(monkeypatch, tmp_path / "imports")
    monkeypatch.setenv(VISIBLE, ",".join("01"[:gpus]))
    monkeypatch.setenv(PRETENDED, "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr("millrace.stages.comm.nccl.check_nccl", lambda: None)
    rapids.install(monkeypatch, gpus, processes=True)
    job = {**JOB, "ranks": gpus, "executor": "dask", "queue": {"kind": "zarr", "bulk_size": 2, "keep": "all"}}
    job["cluster"] = {"dashboard_port": 0}
    of_ranks, said = {"RAPIDS_NO_INITIALIZE": "True", **allocator(ClusterOptions().keep_freed_bytes)}, []
    with serving(*({**of_ranks, VISIBLE: gpu} for gpu in "01"[:gpus])):
        got = mr.run(
            config={**job, "dataset": str(store), "device": "cuda", "partition": {"method": "leiden"}},
            out=tmp_path / "there", emit=said.append, callbacks=Asked(tmp_path), verbose=False,
        )  # fmt: skip
    assert started == [dask_cuda.LocalCUDACluster]
    told = [event.text for event in said if isinstance(event, Note)]
    assert sum(text.startswith("dashboard: ") for text in told) == 1
    asked = {name for rank in range(gpus) for name in (tmp_path / f"asked-{rank}").read_text().split()}
    assert asked >= {"allreduce", "alltoall_base"}
    monkeypatch.delenv(PRETENDED)
    want = mr.run(
        config={**job, "dataset": str(store), "partition": {"owners": str(tmp_path / "there" / "parts")}},
        out=tmp_path / "host", verbose=False,
    )  # fmt: skip
    queues = [mr.open_queue(tmp_path / name / "queue") for name in ("there", "host")]
    drawn = [[minibatch_digest(minibatch) for minibatch in queue] for queue in queues]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 2 * 10
    assert (got.sampled_edges, got.test_accuracy) == (want.sampled_edges, want.test_accuracy)
    a, b = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("there", "host"))
    for key, value in b.items():
        torch.testing.assert_close(a[key], value, rtol=1e-9, atol=1e-12)
