"""``device = "cuda"``: whatever the job, the run is the one that processors would have made, on a GPU or on a
pretended device."""

import copy
import dataclasses
import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.cluster.rank_server import serving
from millrace.pipeline.config.capabilities import OF_SYSTEM
from millrace.pipeline.config.schema import ClusterOptions
from millrace.pipeline.config.systems import SYSTEMS
from millrace.pipeline.machine.gpus import VISIBLE
from millrace.pipeline.machine.malloc import allocator
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.telemetry.events import EpochDone, StepDone
from millrace.pipeline.training import evaluation
from millrace.stages.capabilities import Cannot, Need
from millrace.stages.neighbourhood.base import destinations
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.features import ArrayFeatures
from millrace.tests.contracts import dask_cuda, pretended_device
from millrace.tests.contracts.bulk_ranks import train_bulk
from millrace.tests.contracts.forked_cluster import PRETENDED
from millrace.tests.contracts.fresh_python import run_python
from millrace.tests.contracts.typed import typed_dataset

pytest.importorskip("triton")

from millrace.stages.fetch import gather_cuda
from millrace.stages.kernels.minibatch_cuda.rows import gather_rows

DEVICES = ("cpu", "cuda")
JOB: dict[str, Any] = {
    "epochs": 2, "seed": 3, "threads": 1, "dtype": "float64", "check": True, "queue": {"bulk_size": 2}, "hidden": 6,
    "dropout": 0.3,
    "fanout": [3, 2], "batch_size": 5, "lr": 0.02,
}  # fmt: skip
"""Three minibatches an epoch, in two bulks."""
NODES = 36
DATASET = f"sbm:nodes={NODES},classes=3,degree=6,features=5,train=0.3"

pytestmark = pytest.mark.usefixtures("one_thread", "on_device")


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset(DATASET, seed=1)


@pytest.fixture(scope="module")
def weighted(sbm):
    graph = sbm.graph
    # Of both directions of an edge alike.
    row = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    weight = (1 + (row + graph.indices) % 5).astype(np.float32)
    return mr.Dataset(
        "weighted", mr.Graph(graph.indptr, graph.indices, edge_weight=weight), sbm.features, sbm.labels, sbm.split, 3
    )


def train(data, out, device, **options):
    """Losses of all steps and accuracies of all epochs, and the result."""
    seen = []

    def emit(event):
        if isinstance(event, StepDone):
            seen.append(event.loss)
        if isinstance(event, EpochDone):
            seen.append(event.val_accuracy)

    options = {key: value for key, value in {**JOB, **options}.items() if value is not None}
    model = copy.deepcopy(options.pop("model", None))
    result = mr.run(data, out=out / device, device=device, emit=emit, model=model, **options)
    assert result.device == device
    return np.array(seen), result


def agree(data, out, rel=1e-9, there=None, **options):
    """Train on both, or compare with what `train` gave `there` on the host; what the device has seen, and its
    result."""
    losses, host = there or train(data, out, "cpu", **options)
    seen, result = train(data, out, "cuda", **options)
    assert len(losses) > 1 and np.isfinite(losses).all()
    np.testing.assert_allclose(seen, losses, rtol=rel)
    assert (result.test_accuracy, result.best_epoch) == (host.test_accuracy, host.best_epoch)
    assert (result.minibatches, result.sampled_edges) == (host.minibatches, host.sampled_edges)
    learnt, wanted = (torch.load(f"{run.out}/model.pt", weights_only=True) for run in (result, host))
    for name, value in wanted.items():
        torch.testing.assert_close(learnt[name], value, rtol=1e3 * rel, atol=rel)
    return losses, result


@pytest.fixture(scope="module")
def on_host(sbm, tmp_path_factory):
    """Values that the host sees in an epoch, and its result, by type: wherever rows and lists lie."""
    folder = tmp_path_factory.mktemp("host")
    return {dtype: train(sbm, folder / dtype, "cpu", dtype=dtype, epochs=1) for dtype in ("float64", "float32")}


@pytest.mark.parametrize(
    "sampler",
    [
        {"name": "neighbor", "fanout": [2, -1]},
        {"name": "neighbor", "fanout": [3, 2], "weighted": True},
        {"name": "labor", "fanout": [3, 2], "poisson": True},
        {"name": "ladies", "sizes": [8, 6]},
        {"name": "fastgcn", "sizes": [8, 6]},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_samplers(weighted, tmp_path, sampler):
    agree(weighted, tmp_path, fanout=None, sampler=sampler, epochs=1)


def test_a_sampler_without_kernels_for_gpus_draws_on_processors(sbm, tmp_path):
    sampler = {"name": "ppr", "nodes": 4}
    agree(sbm, tmp_path, fanout=None, sampler=sampler, kernel="cpu", layers=2, epochs=1)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ({"name": "sage", "aggregator": "max"}, "float64"),
        ({"name": "gcn", "norm": "layer"}, "float64"),
        ({"name": "gat", "heads": 2, "attention_dropout": 0.4}, "float64"),
        ({"name": "gin", "norm": "batch"}, "float64"),
        ({"name": "sage"}, "float32"),
    ],
    ids=lambda x: x if isinstance(x, str) else x["name"],
)
def test_models(sbm, tmp_path, model, dtype):
    """Dropout drops the same everywhere, of activations and of attention."""
    agree(sbm, tmp_path, rel=1e-9 if dtype == "float64" else 1e-4, model=model, dtype=dtype, epochs=1)


@pytest.mark.parametrize("model", ["rgat", "of PyG"])
def test_node_types_and_relations(tmp_path, model):
    """Minibatches are drawn by the device, or by the host; attention reads features of edges too."""
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    sums = {
        ("author", "writes", "paper"): (3, 5),
        ("paper", "cites", "paper"): 5,
        ("paper", "written_by", "author"): (5, 3),
    }
    conv = pyg.HeteroConv({relation: pyg.SAGEConv(width, 3) for relation, width in sums.items()})
    theirs = {"model": mr.HeteroPyGModel([conv]).double(), "hidden": None, "dropout": None}
    ours = {"model": {"name": "rgat", "heads": 1, "layers": 1}, "hidden": 4}
    options = {"fanout": [2], "batch_size": 6, "epochs": 1}
    options |= ours if model == "rgat" else theirs | {"kernel": "cpu"}
    agree(typed_dataset(degree=20, edge_features=True), tmp_path, **options)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"name": "gine"}, {}),
        ({"name": "gatv2", "heads": 2}, {"gpu": {"features": "pinned"}, "kernel": "cpu"}),
        ({"name": "gcn", "edge_width": -1}, {"sampler": {"name": "labor", "fanout": [2]}, "fanout": None}),
    ],
    ids=lambda x: x.get("name"),
)
def test_features_of_edges(sbm, tmp_path, model, options):
    """Minibatches are drawn by the device, or by the host; rows of edges lie in either's memory."""
    rows = np.random.default_rng(0).standard_normal((sbm.graph.num_edges, 2)).astype(np.float32)
    data = dataclasses.replace(sbm, graph=dataclasses.replace(sbm.graph, edge_features=ArrayFeatures(rows)))
    given = {"fanout": [2], "batch_size": 9, "hidden": 4, "epochs": 1, **options}
    agree(data, tmp_path, model={**model, "layers": 1}, **given)


def test_multi_label(sbm, tmp_path):
    labels = np.stack([sbm.labels == 0, sbm.labels != 1, sbm.labels > 0, sbm.labels < 3], 1).astype(np.float32)
    agree(mr.Dataset("multi", sbm.graph, sbm.features, labels, sbm.split, 4, "multilabel"), tmp_path, epochs=1)


class Own(torch.nn.Module):
    """A user's own layers, with a message of their own and batch normalisation."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = torch.nn.Linear(10, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)

    def layer(self, i, neighbourhood, h):
        if i == 0:
            return torch.relu(self.norm(self.a(torch.cat([destinations(neighbourhood, h), neighbourhood.max(h)], 1))))
        return self.b(
            destinations(neighbourhood, h)
            + neighbourhood.apply(lambda src, dst, w: w[:, None] * src * torch.sigmoid(dst), h, reduce="mean")
        )

    def forward(self, neighbourhoods, h):
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return h


def test_a_module_of_ones_own(weighted, tmp_path):
    agree(weighted, tmp_path, model=Own().double(), hidden=None, dropout=None, epochs=1)


def test_several_minibatches_a_step(sbm, tmp_path):
    agree(sbm, tmp_path, batch_size=2, minibatches_per_step=3, epochs=1)


# --- where rows and lists lie ---


@pytest.fixture
def gathers(monkeypatch):
    """Rows in the cache at each time that rows were gathered from the host's memory."""
    told = []

    def gather(base, ids, cache=None):
        told.append(0 if cache is None else len(cache.rows))
        return gather_rows(base, ids, cache)

    monkeypatch.setattr(gather_cuda, "gather_rows", gather)
    return told


ROW_BYTES = 5 * 8


@pytest.mark.parametrize(("cache_bytes", "cached"), [(0, 0), (20 * ROW_BYTES, 20), (1 << 30, NODES)])
def test_rows_and_lists_in_the_hosts_memory(sbm, on_host, tmp_path, gathers, cache_bytes, cached):
    gpu = {"features": "pinned", "topology": "pinned", "cache_bytes": cache_bytes}
    _, result = agree(sbm, tmp_path, there=on_host["float64"], gpu=gpu, epochs=1)
    assert gathers == [cached] * result.minibatches
    assert result.bytes["store"]["features"] == NODES * ROW_BYTES
    assert result.bytes["evaluation"]["features"] > 0


@pytest.mark.parametrize(
    ("features", "dtype", "where"),
    [
        ("zarr", "float32", "device"),
        ("zarr", "float64", "pinned"),
        ("mapped", "float32", "pinned"),
        ("mapped", "float64", "device"),
    ],
)
def test_rows_from_disk(sbm, on_host, tmp_path, monkeypatch, features, dtype, where):
    monkeypatch.setattr(gather_cuda, "UPLOAD_BYTES", 1000)
    mr.write_dataset(tmp_path / "store", sbm, features_format="npy" if features == "mapped" else "zarr")
    seen, result = train(
        tmp_path / "store", tmp_path, "cuda", features=features, dtype=dtype, gpu={"features": where}, epochs=1
    )
    np.testing.assert_allclose(seen, on_host[dtype][0], rtol=1e-9 if dtype == "float64" else 1e-4)
    assert result.bytes["store"]["features"] == NODES * 5 * np.dtype(dtype).itemsize


@pytest.fixture(scope="module")
def all_rows(sbm, tmp_path_factory):
    """The parameters that a rank learns which has all rows on its device."""
    return train(sbm, tmp_path_factory.mktemp("whole"), "cuda", epochs=1)[1].parameters_sha256


@pytest.mark.parametrize("where", ["device", "pinned"])
@pytest.mark.parametrize(
    "options", [{"features": "owned"}, {"bulk": {"topology": "partitioned"}}], ids=["owned rows", "block rows"]
)
def test_rows_that_ranks_own(sbm, on_host, all_rows, tmp_path, options, where):
    """One rank reads all rows: the same bits as if every rank had all of them."""
    gpu = {"features": where, "cache_bytes": 20 * ROW_BYTES}
    _, result = agree(sbm, tmp_path, there=on_host["float64"], gpu=gpu, epochs=1, **options)
    assert result.parameters_sha256 == all_rows
    assert result.bytes["store"]["features"] == NODES * ROW_BYTES
    assert result.hot_rows is not None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sampler": {"name": "labor", "fanout": [3, 2]}}, "for neighbor only, but the sampler is labor; leave kernel"),
    ],
)
def test_owners_that_cannot_draw_on_their_devices(sbm, tmp_path, options, why):
    """Asked for, it is refused in a sentence; by default they draw on the host."""
    given = {**JOB, "kernel": "cuda", **options, "bulk": {"topology": "partitioned", **options.get("bulk", {})}}
    given |= {"fanout": None} if "sampler" in options else {}
    given = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(mr.InputError, match=why) as refused:
        mr.run(sbm, device="cuda", out=tmp_path / "run", **given)
    assert "\n" not in str(refused.value)
    del given["kernel"]
    agree(sbm, tmp_path, epochs=1, fanout=None, **options | {"bulk": given["bulk"]})


@pytest.mark.parametrize("queue", [{}, {"kind": "zarr", "max_bytes": 1}], ids=["memory", "disk"])
@pytest.mark.parametrize("algorithm", ["owners", "1.5d"])
def test_owners_draw_on_their_devices_by_default(sbm, tmp_path, monkeypatch, algorithm, queue):
    """Into a queue on disk, too, and by 1.5D products; there is no room for a second bulk."""
    bulk, drawn, plain = (
        {"topology": "partitioned", "algorithm": algorithm},
        [],
        NeighborSampler.sample_by_owners_on_device,
    )
    monkeypatch.setattr(
        NeighborSampler, "sample_by_owners_on_device", lambda *a: (drawn.append(a[2].number), plain(*a))[1]
    )
    agree(sbm, tmp_path, epochs=1, bulk=bulk, queue={"bulk_size": 2, **queue})
    assert drawn == [0, 1]


def test_validation_reads_the_rows_that_are_there(sbm, on_host, tmp_path, gathers):
    """There is one copy of them, and the store is read once."""
    _, result = agree(sbm, tmp_path, there=on_host["float64"], epochs=1)
    assert gathers == []
    assert result.bytes["store"]["features"] == NODES * ROW_BYTES
    assert not result.bytes["evaluation"].get("features")


# --- where minibatches come from ---


@pytest.mark.parametrize(
    "sampler", [{"name": "neighbor", "weighted": True}, {"name": "ladies", "sizes": [8, 6]}], ids=lambda s: s["name"]
)
def test_minibatches_from_a_queue_on_disk(weighted, tmp_path, sampler):
    fanout = None if "sizes" in sampler else [3, 2]
    agree(
        weighted,
        tmp_path,
        sampler=sampler,
        fanout=fanout,
        queue={"kind": "zarr", "keep": "none", "bulk_size": 2, "max_bytes": 1},
    )


def test_minibatches_that_were_sampled_before(sbm, tmp_path):
    spec = {
        "dataset": DATASET,
        **JOB,
        "queue": {"bulk_size": 2, "reuse": "cycle"},
    }
    job = configure({}, **spec, device="cuda")
    live, _ = train(mr.open_dataset(job.dataset, seed=3), tmp_path / "live", "cpu")
    precompute(job.model_copy(update={"epochs": 1}), tmp_path / "samples", emit=lambda e: None, stop=lambda: False)
    runs = {}
    for device in DEVICES:
        losses = runs[device] = []
        given = job.model_copy(update={"device": device, "kernel": "cpu" if device == "cpu" else "cuda"})
        emit = lambda e, losses=losses: losses.append(e.loss) if isinstance(e, StepDone) else None  # noqa: E731
        mr.run(config=given, samples=tmp_path / "samples", out=tmp_path / f"replayed-{device}", emit=emit)
    np.testing.assert_allclose(runs["cuda"], runs["cpu"], rtol=1e-9)
    np.testing.assert_allclose(runs["cuda"][:3], live[:3], rtol=1e-9)


# --- other systems ---


@pytest.mark.parametrize("correction", ["batch", "node"])
def test_isolated_parts(sbm, tmp_path, correction):
    grappa = {"repartition_every": 1, "chunks": 2, "halo": 0.5, "correction": correction}
    agree(sbm, tmp_path, system="grappa", grappa=grappa, partition={"method": "hash"})


@pytest.mark.parametrize(
    "model", [{"name": "gat", "heads": 2}, {"name": "sage", "norm": "batch"}], ids=lambda m: m["name"]
)
def test_full_batches(sbm, tmp_path, model):
    sampled = dict.fromkeys(("fanout", "batch_size", "queue"))
    agree(sbm, tmp_path, system="sar", model={**model, "layers": 2}, **sampled)


def test_clients_of_a_rank(sbm, tmp_path):
    """Each takes steps of its own on the device."""
    sampled = dict.fromkeys(("fanout", "batch_size", "queue"))
    retexo = {"clients": 3, "local_steps": 2, "rounding": "int8"}
    _, result = agree(sbm, tmp_path, system="retexo", retexo=retexo, layers=2, epochs=1, **sampled)
    assert result.clients["count"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_two_ranks(sbm, tmp_path, monkeypatch):
    """A stand-in for dask-cuda deals GPUs that are not there."""
    if not pretended_device.is_pretended():
        pytest.skip("there is a GPU")
    dask_cuda.install_for_ranks(monkeypatch, tmp_path / "imports")
    monkeypatch.setenv(PRETENDED, "1")
    # As torch would, between the start of the servers and that of the workers.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    mr.write_dataset(tmp_path / "store", sbm)
    common = {"ranks": 2, "cluster": {"backend": "gloo", "dashboard_port": 0}, "epochs": 1}
    common |= {"minibatches_per_step": 4, "batch_size": 2}
    # Ranks that start from scratch are those of planning/test_forecast.py.
    of_ranks = {"RAPIDS_NO_INITIALIZE": "True", **allocator(ClusterOptions().keep_freed_bytes)}
    with serving(*({**of_ranks, VISIBLE: gpu} for gpu in "01")):
        _, whole = train(tmp_path / "store", tmp_path, "cuda", **common)
    assert whole.ranks == 2
    assert whole.bytes["network"]["gradients"] > 0
    assert whole.bytes["network"]["features"] == 0
    job = configure({}, **{**JOB, **common, "cluster": {}})
    host = train_bulk(str(tmp_path / "store"), tmp_path / "host", job.model_dump(exclude_none=True))
    # Not every step's loss reaches the driver, so the epoch's is compared.
    assert whole.train_loss == pytest.approx(host[0]["history"][-1]["train_loss"], rel=1e-9)
    assert whole.test_accuracy == host[0]["test_accuracy"]
    assert whole.sampled_edges == sum(r["sampled_edges"] for r in host)
    # Rows that ranks own are exchanged on devices in test_exchange.py.


# --- going on ---


def test_resumed_in_mid_epoch(sbm, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "STOP_S", float("inf"))  # only steps ask whether to stop
    whole = train(sbm, tmp_path / "whole", "cuda", epochs=3)
    asked = iter(range(1000))
    assert train(sbm, tmp_path / "parts", "cuda", epochs=3, stop=lambda: next(asked) == 3)[1].status == "stopped"
    shutil.copytree(tmp_path / "parts", tmp_path / "on the host")
    shutil.move(tmp_path / "on the host" / "cuda", tmp_path / "on the host" / "cpu")
    for folder, device in (("parts", "cuda"), ("on the host", "cpu")):
        seen, result = train(sbm, tmp_path / folder, device, epochs=3, resume=True)
        # Of two epochs' three steps and a validation each, four steps and one validation were before.
        np.testing.assert_allclose(seen, whole[0][5:], rtol=1e-9)
        assert result.train_loss == pytest.approx(whole[1].train_loss, rel=1e-9)
        assert (result.minibatches, result.test_accuracy) == (whole[1].minibatches, whole[1].test_accuracy)
        a, b = (
            torch.load(f / "model.pt", weights_only=True)
            for f in (tmp_path / "whole" / "cuda", tmp_path / folder / device)
        )
        for name in a:
            assert a[name].device.type == "cpu", "whoever has no GPU can read it"
            torch.testing.assert_close(a[name], b[name], rtol=1e-7, atol=1e-12)


def test_layers_that_are_trained_in_turn_go_on_anywhere(weighted, tmp_path):
    """Rows and a checkpoint of the second layer's first epoch, from either device, are gone on from on the other."""
    options = dict.fromkeys(("fanout", "batch_size", "queue"))
    options |= {"system": "retexo", "layers": 2, "model": {"name": "sage", "aggregator": "max"}}
    losses, whole = agree(weighted, tmp_path / "whole", **options)
    for first, second in (DEVICES, DEVICES[::-1]):
        asked, folder = iter(range(1000)), tmp_path / first
        stopped = train(weighted, folder, first, stop=lambda asked=asked: next(asked) == 2, **options)
        assert stopped[1].status == "stopped"
        shutil.move(folder / first, folder / second)
        seen, result = train(weighted, folder, second, resume=True, **options)
        np.testing.assert_allclose(np.concatenate([stopped[0], seen]), losses, rtol=1e-9)
        assert [p["name"] for p in result.phases] == [p["name"] for p in whole.phases]
        assert (result.test_accuracy, result.best_epoch) == (whole.test_accuracy, whole.best_epoch)


def test_a_system_of_another_package_may_refuse_the_device(sbm, tmp_path, monkeypatch):
    retexo = SYSTEMS.find("retexo")
    row = Cannot(OF_SYSTEM, Need.DEVICE, "trains on CPUs only in this version")
    monkeypatch.setattr(type(retexo), "cannot", (*retexo.cannot, row))
    with pytest.raises(mr.InputError, match=r"'retexo' trains on CPUs only .*; use bulk or grappa or sar, or"):
        mr.run(sbm, system="retexo", device="cuda", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("system", SYSTEMS.available())
def test_every_system_refuses_the_device_where_there_is_none(sbm, monkeypatch, system):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(mr.InputError, match='device is "cuda", but torch sees no GPU here') as refused:
        mr.dry_run(sbm, system=system, device="cuda")
    assert "\n" not in str(refused.value)


def without_gpu(*words):
    """The command in a process that has neither a GPU nor Triton's interpreter."""
    variables = {"TRITON_INTERPRET": None, "CUDA_VISIBLE_DEVICES": ""}
    return run_python("-m", "millrace.pipeline", *words, variables=variables)


def test_a_model_from_a_device_is_read_without_one(sbm, tmp_path):
    mr.write_dataset(tmp_path / "store", sbm)
    _, result = train(tmp_path / "store", tmp_path, "cuda")
    code, out, err = without_gpu("evaluate", tmp_path / "cuda", "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"]["test"] == pytest.approx(result.test_accuracy)
    flags = [
        "--set",
        f"start_from={tmp_path / 'cuda'}",
        "--hidden",
        6,
        "--fanout",
        "3,2",
        "--epochs",
        1,
        "--set",
        "dtype=float64",
    ]
    code, out, err = without_gpu("run", "--dataset", tmp_path / "store", *flags, "--out", tmp_path / "on", "--json")
    assert code == 0, err
    assert json.loads(out)["device"] == "cpu"


def test_without_a_gpu_the_device_is_refused(tmp_path):
    code, out, err = without_gpu("train", "--dataset", "digits", "--device", "cuda", "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert 'device is "cuda", but' in err
    reason = "is built without CUDA; install one with it" if torch.version.cuda is None else "torch sees no GPU here"
    assert reason in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("system", ["bulk", "grappa"])
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("name", ["ladies", "saint", "neighbor"])
def test_samplers_that_need_the_topology_there_draw_on_the_host(tmp_path, name, links, system):
    """By default, where the job keeps it in the host's memory; a kernel by name is refused at once."""
    data = mr.open_dataset(DATASET, seed=1)
    data = mr.link_dataset(data, seed=1) if links else data
    sampler = {"name": name, **({"sizes": [10, 10]} if name == "ladies" else {})}
    options = {
        "system": system, "device": "cuda", "sampler": sampler, "gpu": {"topology": "pinned"}, "epochs": 1, "layers": 2,
        "hidden": 4, "threads": 1, "verbose": False,
    }  # fmt: skip
    mr.run(data, out=tmp_path / "run", **options)
    chosen = mr.load(tmp_path / "run").config.kernel
    assert chosen == ("cuda" if name == "neighbor" else "cpu")
    if name != "neighbor":
        with pytest.raises(mr.InputError, match=f"the sampler {name} reads neighbour lists in the GPU's memory only"):
            mr.run(data, out=tmp_path / "refused", kernel="cuda", **options)
        assert not (tmp_path / "refused").exists()
