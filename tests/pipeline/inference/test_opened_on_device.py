"""Predictions by time on a GPU, or on a pretended one: those of processors, from samples that the device has drawn."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.inference import opened
from millrace.pipeline.telemetry.events import Note
from millrace.stages.evaluate import chunks, cuda, layerwise, temporal
from millrace.stages.kernels.runtime import triton_rng
from millrace.stages.sample.temporal import TemporalSampler
from millrace.tests.contracts.command import command
from millrace.tests.contracts.digests import minibatch_digest
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.whole_runs.test_temporal_on_device import SPEC, no_draws_on_the_host, with_edge_rows, with_times

pytest.importorskip("triton")

from millrace.stages.evaluate.temporal_cuda import DeviceChunks

pytestmark = pytest.mark.usefixtures("one_thread", "on_device")
JOB: dict[str, Any] = {
    "sampler": {"name": "temporal", "fanout": [3, 2]}, "epochs": 1, "batch_size": 40, "hidden": 5, "dtype": "float64",
    "threads": 1, "lr": 0.02,
}  # fmt: skip
STRATEGIES = {
    "uniform": {},
    "last": {"sampler": {"name": "temporal", "fanout": [2, -1], "strategy": "last"}},
    "replace": {"sampler": {"name": "temporal", "fanout": [4, 2], "replace": True}},
}
PLACES = {"there": {}, "locked": {"gpu": {"features": "pinned", "topology": "pinned"}}}


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few seeds at a time, so that rows are put where the device reads them, and chunks share them."""
    monkeypatch.setattr(temporal, "CHUNK", 17)


@pytest.fixture(scope="module")
def timed() -> mr.Dataset:
    return mr.open_dataset(SPEC, seed=1)


def trained(data: mr.Dataset, out: Any, **more: Any) -> mr.Result:
    return mr.run(data, out=out, verbose=False, **{**JOB, **more})


def both(result: mr.Result) -> tuple[mr.TrainedRun, mr.TrainedRun]:
    """A run with its model on the host, and on the device."""
    host, there = (mr.load(result, device=device) for device in ("cpu", "cuda"))
    assert (host.config.device, there.config.device) == ("cpu", "cuda")
    return host, there


def close(seen: Any, want: Any) -> None:
    np.testing.assert_allclose(seen, want, rtol=1e-9, atol=1e-12)


def evaluated(result: mr.Result, data: mr.Dataset, device: str) -> dict[str, Any]:
    found = mr.evaluate(mr.load(result, device=device), data)
    return {key: found[key] for key in ("accuracy", "metrics") if key in found}


def same_scores(result: mr.Result, data: mr.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """`millrace evaluate` finds on the device what it finds on the host."""
    want = evaluated(result, data, "cpu")
    with monkeypatch.context() as patch:
        no_draws_on_the_host(patch)
        seen = evaluated(result, data, "cuda")
    assert seen.get("accuracy") == want.get("accuracy")
    for split, values in want.get("metrics", {}).items():
        assert seen["metrics"][split] == pytest.approx(values, rel=1e-9)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nodes(timed, tmp_path, strategy, place, monkeypatch) -> None:
    """Of a graph with weights, and features of edges, by a model that reads them."""
    rng = np.random.default_rng(0)
    data = with_edge_rows(timed)
    data = replace(data, graph=replace(data.graph, edge_weight=rng.random(data.graph.num_edges).astype(np.float32)))
    result = trained(data, tmp_path / "run", model={"name": "gine"}, **STRATEGIES[strategy], **PLACES[place])
    host, there = both(result)
    nodes = [40, 3, 3, *range(30)]
    want, rows = mr.predict(host, data, nodes).logits, mr.embed(host, data).rows
    same_scores(result, data, monkeypatch)
    gathers: list[Any] = []
    monkeypatch.setattr(type(data.features), "gather", lambda *_, **__: gathers.append(1))
    monkeypatch.setattr(type(data.graph.edge_features), "gather", lambda *_, **__: gathers.append(1))
    no_draws_on_the_host(monkeypatch)
    close(mr.predict(there, data, nodes).logits, want)
    close(mr.embed(there, data).rows, rows)
    assert not gathers


def test_degrees_and_one_chunk_whose_rows_are_read_from_the_store(timed, tmp_path, monkeypatch) -> None:
    """Layers of `gcn` read degrees until the moments. Nothing is uploaded whole for so few nodes."""
    result = trained(timed, tmp_path / "run", model={"name": "gcn"})
    host, there = both(result)
    want = mr.predict(host, timed, range(9)).logits
    no_draws_on_the_host(monkeypatch)
    monkeypatch.setattr(opened, "_device_rows", None)
    close(mr.predict(there, timed, range(9)).logits, want)


def test_rows_for_which_neither_has_room_are_read_from_the_store(timed, tmp_path, monkeypatch) -> None:
    result = trained(timed, tmp_path / "run", model={"name": "gcn"}, gpu={"features": "pinned"})
    host, there = both(result)
    want = mr.predict(host, timed).logits
    gather, read = type(timed.features).gather, []
    monkeypatch.setattr(type(timed.features), "gather", lambda *a: read.append(len(a[1])) or gather(*a))
    monkeypatch.setattr(opened, "fits_in_memory", lambda num_bytes: num_bytes < 60 * 5 * 4)
    close(mr.predict(there, timed).logits, want)
    assert len(read) == 4


def test_the_samples_are_the_hosts_to_the_bit(timed, tmp_path, monkeypatch) -> None:
    drawn, real = [], TemporalSampler.sample
    compute = DeviceChunks.__call__

    def compared(self: Any, model: Any, graph: Any, features: Any, sampler: Any, request: Any) -> Any:
        (want,) = real(sampler, graph, request, None).minibatches
        (seen,) = sampler.sample_on_device(self.graph, request).minibatches
        drawn.append(minibatch_digest(seen) == minibatch_digest(want))
        return compute(self, model, graph, features, sampler, request)

    result = trained(timed, tmp_path / "run")
    monkeypatch.setattr(DeviceChunks, "__call__", compared)
    mr.predict(mr.load(result, device="cuda"), timed)
    assert len(drawn) == 4 and all(drawn)


def test_types_and_features_of_edges(tmp_path, monkeypatch) -> None:
    data = with_times(typed_dataset(degree=20, edge_features=True))
    model = {"name": "rgat", "heads": 1}
    result = trained(data, tmp_path / "run", model=model, batch_size=6)
    host, there = both(result)
    want, rows = mr.predict(host, data).logits, mr.embed(host, data).rows
    same_scores(result, data, monkeypatch)
    no_draws_on_the_host(monkeypatch)
    close(mr.predict(there, data).logits, want)
    close(mr.embed(there, data).rows, rows)


def test_learnt_features(timed, tmp_path, monkeypatch) -> None:
    result = trained(timed, tmp_path / "run", learned={"width": 3, "beside": True})
    host, there = both(result)
    want = mr.predict(host, timed).logits
    no_draws_on_the_host(monkeypatch)
    close(mr.predict(there, timed).logits, want)


def links_of_one_type() -> mr.Dataset:
    data = mr.open_dataset("ratings:users=20,items=30,genres=4,degree=6,days=9,features=5")
    return mr.link_dataset(data, split="time:0.7,0.1")


def links_of_relations() -> mr.Dataset:
    rng, buys = np.random.default_rng(0), ("user", "buys", "item")
    user, item, time = (rng.integers(0, n, 150) for n in (20, 15, 40))
    x = {"item": rng.standard_normal((15, 4)), "user": rng.standard_normal((20, 3))}
    data = mr.from_relations({buys: (user, item)}, features=x, edge_times={buys: time}, add_reverse=True)
    return mr.link_dataset(data, relation="buys", split="time:0.7,0.1")


@pytest.mark.parametrize("make", [links_of_one_type, links_of_relations])
def test_pairs(tmp_path, make, monkeypatch) -> None:
    data = make()
    result = trained(
        data, tmp_path / "run", **STRATEGIES["last"], model={"name": "sage" if data.graph.types.is_single else "rsage"}
    )
    host, there = both(result)
    pairs, times = [[0, 3], [4, 1], [0, 3], [7, 9]], [3, 9, 5, 2.5]
    scores = [mr.predict_links(host, pairs, data, times=t).scores for t in (None, times)]
    best = mr.recommend(host, 4, dataset=data, time=6)
    same_scores(result, data, monkeypatch)
    no_draws_on_the_host(monkeypatch)
    for want, t in zip(scores, (None, times)):
        close(mr.predict_links(there, pairs, data, times=t).scores, want)
    seen = mr.recommend(there, 4, dataset=data, time=6)
    close(seen.scores, best.scores)
    assert np.array_equal(seen.destinations, best.destinations)


def test_labelled_edges(tmp_path, monkeypatch) -> None:
    data = mr.open_dataset("payments:accounts=60,degree=4,features=5", split="time:0.6,0.2")
    result = trained(data, tmp_path / "run")
    host, there = both(result)
    want, at = mr.predict_edges(host, "test", data), {"times": [4, 2], "features": data.pair_features[:2]}
    own = mr.predict_edges(host, [[0, 1], [5, 2]], data, **at)
    same_scores(result, data, monkeypatch)
    no_draws_on_the_host(monkeypatch)
    close(mr.predict_edges(there, "test", data).logits, want.logits)
    close(mr.predict_edges(there, [[0, 1], [5, 2]], data, **at).logits, own.logits)


def test_a_run_on_a_gpu_says_who_draws(timed, tmp_path, monkeypatch) -> None:
    """By itself the GPU; with `kernel = "cpu"` the host. A queue on disk has samples of the host, predictions not."""
    ways: dict[str, dict[str, Any]] = {
        "memory": {}, "disk": {"queue": {"kind": "zarr"}}, "host": {"kernel": "cpu"},
    }  # fmt: skip
    runs = {name: trained(timed, tmp_path / name, device="cuda", **way) for name, way in ways.items()}
    want = {name: mr.predict(mr.load(run, device="cpu"), timed).logits for name, run in runs.items()}
    with monkeypatch.context() as patch:
        patch.setattr(TemporalSampler, "sample_on_device", None)
        close(mr.predict(runs["host"], timed).logits, want["host"])
    no_draws_on_the_host(monkeypatch)
    for name in ("memory", "disk"):
        close(mr.predict(runs[name], timed).logits, want[name])


def only_there(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, a layer of exact evaluation that gets or returns rows elsewhere fails; those that ran."""
    ran, real = [], layerwise.apply_layer

    def check(model: Any, i: int, neighbourhood: Any, h: Any) -> Any:
        out = real(model, i, neighbourhood, h)
        assert h.is_cuda and out.is_cuda
        ran.append(i)
        return out

    for module in (chunks, layerwise):
        monkeypatch.setattr(module, "apply_layer", check)
    return ran


EXACT = {"fanout": [2, 2], "sampler": {"name": "neighbor"}}


@pytest.fixture(scope="module", params=["sage", "gat", "gine", "of PyG", "rgat", "links", "labelled edges"])
def exact(request, timed, tmp_path_factory) -> SimpleNamespace:
    """A run of a model, its data, and what the host finds by it: rows and outputs."""
    model = request.param
    by_name = {"rgat": {"name": "rgat", "heads": 1}, "gat": {"name": "gat", "heads": 1}, "gine": {"name": "gine"}}
    name: Any = by_name.get(model, {"name": "sage"})
    data = replace(timed, graph=replace(timed.graph, edge_time=None, node_time=None))
    data = with_edge_rows(data) if model == "gine" else data
    if model == "of PyG":
        convs = pytest.importorskip("torch_geometric.nn")
        name = mr.PyGModel([convs.SAGEConv(5, 5), convs.SAGEConv(5, 3)])
    if model == "rgat":
        data = typed_dataset(degree=5)
    if model == "links":
        data = mr.link_dataset(mr.open_dataset("ratings:users=20,items=30,features=5"), split="fraction:0.8,0.1")
    if model == "labelled edges":
        data = mr.open_dataset("payments:accounts=60,degree=4,features=5", split="fraction:0.6,0.2")
    shape: dict[str, Any] = {"hidden": None} if model == "of PyG" else {}
    if model in ("links", "labelled edges"):
        shape = {"link": {"width": 5}}
    given = {k: v for k, v in {**JOB, **EXACT, **shape}.items() if v is not None}
    result = mr.run(data, out=tmp_path_factory.mktemp("exact") / "run", verbose=False, model=name, **given)

    def loaded(device: str) -> mr.TrainedRun:
        return mr.load(result, device=device, model=name if model == "of PyG" else None)

    def outputs(run: mr.TrainedRun) -> Any:
        if model == "links":
            return mr.recommend(run, 3, dataset=data).scores
        return (mr.predict_edges(run, "test", data) if model == "labelled edges" else mr.predict(run, data)).logits

    def found(run: mr.TrainedRun) -> Any:
        return mr.embed(run, data).rows, outputs(run)

    return SimpleNamespace(model=model, loaded=loaded, found=found, want=found(loaded("cpu")))


@pytest.mark.parametrize("fit", ["all", "rows", "nothing"])
def test_exact_layers_are_computed_there(exact, fit, monkeypatch) -> None:
    """All at once, in chunks over rows there, or in chunks that travel."""
    room = {"all": 1 << 30, "rows": 24_000, "nothing": 100}[fit]
    there, budget = exact.loaded("cuda"), cuda.DeviceBudget(torch.device("cuda", 0), room)
    monkeypatch.setattr(cuda.DeviceBudget, "from_free_memory", classmethod(lambda *_: budget))
    ran = only_there(monkeypatch)
    if fit != "nothing":
        monkeypatch.setattr(layerwise, "HostSink", None)
    for seen, of_host in zip(exact.found(there), exact.want, strict=True):
        close(seen, of_host)
    assert set(ran) == {0, 1}
    # Each layer at once, or in chunks.
    assert fit == "nothing" or exact.model == "rgat" or len(ran) < 10


def told(notes: list[Any]) -> list[str]:
    return [event.text for event in notes if isinstance(event, Note)]


def test_whoever_works_on_the_host_says_so(timed, tmp_path, monkeypatch) -> None:
    result = trained(timed, tmp_path / "run", device="cuda", sampler={"name": "neighbor", "fanout": [2, 2]})
    notes: list[Any] = []
    monkeypatch.setattr(opened, "outputs_in_files", lambda *_, **__: torch.zeros(60, 3))
    mr.predict(result, timed, workers=2, emit=notes.append)
    assert told(notes) == [
        "workers compute on processors; without them (workers, scheduler) this process would use the GPU"
    ]
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(triton_rng, "INTERPRETED", False)
        notes.clear()
        mr.predict(result, timed, emit=notes.append)
        (text,) = told(notes)
        assert text == f"{result.out} was trained on a GPU, but torch sees none here; processors do the work"
        notes.clear()
        mr.predict(mr.load(result, device="cpu", emit=notes.append), timed, emit=notes.append)
        assert not told(notes)
        with pytest.raises(mr.InputError, match='device is "cuda", but torch sees no GPU here'):
            mr.load(result, device="cuda")
    with pytest.raises(mr.InputError, match="device is 'gpu'; expected cpu or cuda"):
        mr.load(result, device="gpu")


@pytest.mark.parametrize("sampler", ["temporal", "neighbor"])
def test_rows_that_do_not_fit_there_are_read_on_the_host(tmp_path, sampler, monkeypatch) -> None:
    data = links_of_one_type()
    if sampler == "neighbor":
        graph = replace(data.graph, edge_time=None)
        data = mr.link_dataset(replace(mr.open_dataset("ratings:users=20,items=30"), graph=graph))
    result = trained(data, tmp_path / "run", sampler={"name": sampler, "fanout": [2, 2]})
    host, there = both(result)
    want = mr.recommend(host, 3, dataset=data)
    budget = cuda.DeviceBudget(torch.device("cuda", 0), 400)
    monkeypatch.setattr(cuda.DeviceBudget, "from_free_memory", classmethod(lambda *_: budget))
    notes: list[Any] = []
    seen = mr.recommend(there, 3, dataset=data, emit=notes.append)
    close(seen.scores, want.scores)
    (text,) = told(notes)
    assert text.startswith("the rows of 50 nodes do not fit on the GPU beside the layers; they are on the host")


def test_the_command_line(timed, tmp_path, monkeypatch) -> None:
    mr.write_dataset(tmp_path / "store", timed)
    result = trained(str(tmp_path / "store"), tmp_path / "run")
    want = mr.predict(result).logits
    no_draws_on_the_host(monkeypatch)
    code, _, error = command("predict", result.out, "--device", "cuda", "--out", tmp_path / "there.npy")
    assert code == 0, error
    close(np.load(tmp_path / "there.npy"), torch.from_numpy(want).softmax(1).numpy())
    code, said, error = command("evaluate", result.out, "--device", "cuda", "--json")
    assert code == 0 and '"accuracy"' in said, error
    for more in (["--workers", 2], ["--scheduler", "tcp://127.0.0.1:1"]):
        code, _, error = command("evaluate", result.out, "--device", "cuda", *more)
        assert code == 2 and f"--device cuda and {more[0]} are given" in error and error.count("\n") == 1
