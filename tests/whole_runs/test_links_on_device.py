"""Links on GPUs, which are pretended where there are none: the runs that processors would have made."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.config.load import BULK_ON_GPU, resolve
from millrace.pipeline.config.schema import Queue
from millrace.pipeline.precompute import precompute
from millrace.pipeline.setup import device_policies
from millrace.pipeline.setup.checks import check_links
from millrace.pipeline.setup.model import Outline
from millrace.pipeline.setup.open_queue import QueueEnd, own_queue
from millrace.pipeline.setup.prepare import CutData, prepare, prepare_part
from millrace.pipeline.telemetry.control import Control
from millrace.pipeline.telemetry.events import Note, silent
from millrace.pipeline.telemetry.timers import Clock
from millrace.pipeline.training.context import Member
from millrace.pipeline.training.trainer import train_and_evaluate
from millrace.stages.evaluate import best_links
from millrace.stages.evaluate import links as ranking
from millrace.stages.evaluate.cuda import DeviceBudget
from millrace.stages.links.exclude import WithoutOwnEdges
from millrace.stages.partition.base import Cut
from millrace.stages.partition.stage import cut_dataset
from millrace.storage.errors import InputError
from millrace.storage.features import ArrayFeatures
from millrace.storage.ledger import Ledger
from millrace.tests.contracts import nccl, pretended_device
from millrace.tests.contracts.bulk_ranks import last_parameters
from millrace.tests.contracts.graphs import links_of_multi_edges
from millrace.tests.contracts.process_ranks import run_ranks
from millrace.tests.whole_runs.test_parts_on_device import Dies
from millrace.tests.whole_runs.test_temporal_on_device import no_draws_on_the_host as no_temporal_draws_on_the_host

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "on_device")

DEVICES = ("cpu", "cuda")
JOB = {
    "epochs": 2, "seed": 3, "threads": 1, "system": "bulk", "dtype": "float64", "check": True,
    "train": {"batch_size": 24, "lr": 0.02, "minibatches_per_step": 2},
    "link": {"width": 8, "num_negatives": 2, "decoder": "mlp"}, "sampler": {"fanout": [3, -1]},
    "model": {"name": "gcn", "hidden": 8, "layers": 2, "dropout": 0.2}, "queue": {"bulk_size": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def links():
    return links_of_multi_edges(60)


def trained(data, out, device, samples=None, **more):
    """A run's result, and its parameters."""
    result = mr.run(data, config={**JOB, **more, "device": device}, samples=samples, out=out, verbose=False)
    return result, torch.load(out / "model.pt", weights_only=True)


def agree(data, out, there=None, host=None, **more):
    """Train on both, or compare with what `trained` gave of the host; the job of the device's run."""
    a, here = host or trained(data, out / "cpu", "cpu", **more)
    b, far = trained(data, out / "cuda", "cuda", **{**more, **(there or {})})
    assert (b.minibatches, b.sampled_edges, b.best_epoch) == (a.minibatches, a.sampled_edges, a.best_epoch)
    assert b.train_loss == pytest.approx(a.train_loss, rel=1e-10)
    assert set(b.test_metrics) == {"mrr", "auc", "average_precision", "hits@10"}
    assert b.test_metrics == pytest.approx(a.test_metrics, rel=1e-9)
    for name, value in here.items():
        torch.testing.assert_close(far[name], value, rtol=1e-9, atol=1e-11)
    return tomllib.loads((out / "cuda" / "job.toml").read_text())


@pytest.fixture(scope="module")
def on_host(links, tmp_path_factory):
    """The run of processors, wherever minibatches wait and rows lie."""
    return trained(links, tmp_path_factory.mktemp("host") / "run", "cpu")


@pytest.fixture
def no_draws_on_the_host(monkeypatch):
    """Whoever draws links on the host fails, from when this is called on."""

    def from_now_on() -> None:
        for name in ("sample", "sample_by_owners"):
            monkeypatch.delattr(WithoutOwnEdges, name)

    return from_now_on


@pytest.mark.parametrize("queue", [{}, {"bulk_size": 3}], ids=str)
def test_a_run_is_that_of_processors(links, on_host, tmp_path, queue, no_draws_on_the_host):
    """Degrees that layers read are those without own edges; the device draws, in bulks of its size."""
    no_draws_on_the_host()
    job = agree(links, tmp_path, host=on_host, queue=queue)
    assert job.get("kernel", "cuda") == "cuda" and job["queue"]["bulk_size"] == queue.get("bulk_size", BULK_ON_GPU)


@pytest.mark.parametrize(
    ("there", "kernel"),
    [
        ({"queue": {"kind": "zarr", "bulk_size": 2}}, "cuda"),
        ({"queue": {"kind": "zarr", "bulk_size": 2}, "kernel": "cpu"}, "cpu"),
        ({"kernel": "cpu"}, "cpu"),
    ],
    ids=str,
)
def test_who_draws_does_not_show(links, on_host, tmp_path, there, kernel):
    """GPUs fill a queue on disk, too, unless the job says otherwise."""
    job = agree(links, tmp_path, there, on_host)
    assert job.get("kernel", "cuda") == kernel
    assert job["queue"]["bulk_size"] == there.get("queue", {}).get("bulk_size", 2)


def test_samples_that_a_device_has_drawn_for_a_store(links, tmp_path):
    """They are those of processors; whoever trains on them copies them."""
    mr.write_dataset(tmp_path / "store", links)
    table = {**JOB, "dataset": str(tmp_path / "store"), "epochs": 1}
    job = resolve({**table, "device": "cuda", "kernel": "cuda"})
    precompute(job, tmp_path / "samples", emit=silent, stop=lambda: False)
    want = trained(None, tmp_path / "live", "cpu", **table)
    for device in DEVICES:
        _, seen = trained(None, tmp_path / device, device, samples=tmp_path / "samples", **table)
        for name, value in want[1].items():
            torch.testing.assert_close(seen[name], value, rtol=1e-9, atol=1e-11)


def test_drawn_by_a_device_for_processors(links, on_host, tmp_path):
    """Own edges are taken out on the host."""
    _, seen = trained(links, tmp_path / "run", "cpu", kernel="cuda")
    assert all(torch.equal(seen[name], value) for name, value in on_host[1].items())


@pytest.mark.parametrize(
    "sampler",
    [
        {"name": "neighbor", "fanout": [3, 2], "expand": "all"},
        {"name": "labor", "fanout": [2, 3]},
        {"name": "ladies", "sizes": [30, 20]},
        {"name": "fastgcn", "sizes": [30, 20]},
    ],
    ids=str,
)
def test_samplers(links, tmp_path, sampler):
    assert agree(links, tmp_path, sampler=sampler, epochs=1).get("kernel", "cuda") == "cuda"


def test_features_of_edges_and_rows_in_the_hosts_memory(tmp_path):
    data = mr.open_dataset("sbm:nodes=60,classes=4,degree=8,features=6")
    rows = np.random.default_rng(0).standard_normal((data.graph.num_edges, 2))
    graph = replace(data.graph, edge_features=ArrayFeatures(rows))
    data = mr.link_dataset(replace(data, graph=graph), seed=3)
    model, gpu = {"name": "gine", "hidden": 8, "layers": 2}, {"features": "pinned", "cache_bytes": 400}
    agree(data, tmp_path, {"gpu": gpu}, model=model, epochs=1)


def test_a_stopped_run_goes_on(links, on_host, tmp_path):
    asked = iter(range(1000))
    config = {**JOB, "device": "cuda"}
    result = mr.run(links, config=config, out=tmp_path / "cuda", stop=lambda: next(asked) == 4, verbose=False)
    assert result.status == "stopped"
    mr.run(links, out=tmp_path / "cuda", resume=True, verbose=False)
    for name, value in torch.load(tmp_path / "cuda" / "model.pt", weights_only=True).items():
        torch.testing.assert_close(value, on_host[1][name], rtol=1e-9, atol=1e-11)
    scores, want = (mr.predict_links(run, [[0, 1], [2, 3]]).scores for run in (tmp_path / "cuda", on_host[0].out))
    np.testing.assert_allclose(scores, want, rtol=1e-9)


@pytest.mark.parametrize("block", [(1024, 16384), (16, 20)], ids=str)
def test_the_best_destinations_are_found_there(links, on_host, tmp_path, monkeypatch, block):
    """In one block, and in many whose last ones are not full."""
    monkeypatch.setattr(ranking, "PAIRS_THERE", block[0])
    monkeypatch.setattr(ranking, "NODES_THERE", block[1])
    trained(links, tmp_path / "cuda", "cuda")
    want, merges, plain = mr.recommend(on_host[0], 9), [], best_links.merged

    def seen(*args):
        merges.append(args[2].device.type)
        return plain(*args)

    monkeypatch.setattr(best_links, "merged", seen)
    found = mr.recommend(tmp_path / "cuda", 9)
    assert set(merges) == {"cuda"}
    assert np.array_equal(found.destinations, want.destinations)
    np.testing.assert_allclose(found.scores, want.scores, rtol=1e-9)


def test_rows_that_do_not_fit_are_ranked_on_the_host(links, tmp_path, monkeypatch):
    monkeypatch.setattr(DeviceBudget, "from_free_memory", lambda device: DeviceBudget(device, 1000))
    agree(links, tmp_path, epochs=1)


def test_what_devices_do_not_draw_is_refused_or_drawn_by_processors(links, typed):
    """Refused where the job names the kernel."""
    by_edge = {"sampler": {"name": "labor", "fanout": [3, 2], "poisson": True, "iterations": 1}}
    by_relation = {**TYPED, "sampler": {"name": "ladies", "sizes": [30, 20]}}
    blocks = {"sampler": {"name": "labor", "fanout": [3, 2]}, "bulk": {"topology": "partitioned"}}
    for data, options, said in (
        (links, by_edge, "the sampler labor with importance iterations draws from a whole graph in host memory"),
        (typed[0], by_relation, "by which the sampler ladies draws no relations in this version"),
        (links, blocks, "for neighbor only, but the sampler is labor; leave kernel out"),
    ):
        table = {**JOB, **options, "device": "cuda"}
        prepared = prepare(resolve(table), data)
        assert (prepared.job.kernel, prepared.job.queue.bulk_size) == ("cpu", 2)
        del table["queue"]
        assert prepare(resolve(table), data).job.queue.bulk_size == Queue().bulk_size
        with pytest.raises(InputError, match=said) as refused:
            prepare(resolve({**table, "kernel": "cuda"}), data)
        assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match=r"^kernel is 'cugraph', which draws no samples of pairs in this version"):
        check_links(resolve(JOB).model_copy(update={"kernel": "cugraph"}), links)


@pytest.fixture(scope="module")
def gpus(start_cluster: Any) -> Any:
    """The address of a scheduler whose two workers have a GPU each."""
    if not pretended_device.is_pretended():
        pytest.skip("there is a GPU")
    with start_cluster(2, gpus=("0", "1")) as address:
        yield address


@pytest.mark.usefixtures("by_value")
def test_a_rank_that_is_killed_draws_again(gpus: str, links: mr.Dataset, tmp_path: Path) -> None:
    """Rows of features are owned by ranks, whose devices exchange them."""
    mr.write_dataset(tmp_path / "store", links)
    job, said = {**JOB, "epochs": 3, "checkpoint": {"every_epochs": 1}}, []
    want = mr.run(tmp_path / "store", config=job, out=tmp_path / "host", verbose=False)
    there = {**job, "ranks": 2, "device": "cuda", "features": "owned", "cluster": {"scheduler": gpus}}
    got = mr.run(tmp_path / "store", config=there, out=tmp_path / "there", emit=said.append, callbacks=Dies(tmp_path))
    assert sum("start again" in e.text for e in said if isinstance(e, Note)) == 1
    assert [(tmp_path / f"asked-{rank}").read_text() for rank in range(2)] == ["allreduce alltoall_base"] * 2
    assert tomllib.loads((tmp_path / "there" / "job.toml").read_text()).get("kernel", "cuda") == "cuda"
    assert got.test_metrics == pytest.approx(want.test_metrics, rel=1e-9) and got.best_epoch == want.best_epoch
    a, b = (torch.load(tmp_path / x / "model.pt", weights_only=True) for x in ("there", "host"))
    for key, value in b.items():
        torch.testing.assert_close(a[key], value, rtol=1e-9, atol=1e-11)


PLACES = [{}, {"features": "owned"}, {"bulk": {"topology": "partitioned"}}]
TYPED = {"model": {"name": "rgcn", "hidden": 8, "layers": 2, "dropout": 0.1}, "epochs": 1}


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Pairs of a relation, and the run of processors."""
    links = mr.link_dataset(mr.open_dataset("hsbm:nodes=40,classes=3,degree=4,features=6"), relation="likes", seed=3)
    return links, trained(links, tmp_path_factory.mktemp("typed") / "run", "cpu", **TYPED)


@pytest.mark.parametrize("options", PLACES, ids=str)
def test_types(typed, tmp_path, options, no_draws_on_the_host):
    """Only edges of the pairs' relation and its reverses are taken out, and lost by degrees."""
    links, host = typed
    no_draws_on_the_host()
    assert agree(links, tmp_path, host=host, **TYPED, **options).get("kernel", "cuda") == "cuda"


SEVERAL = {**TYPED, "link": {**JOB["link"], "decoder": "complex"}}


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Pairs of two relations, and the run of processors."""
    data = mr.open_dataset("hsbm:nodes=40,classes=3,degree=4,features=6")
    links = mr.link_dataset(data, relation=["sells", "likes"], seed=3)
    return links, trained(links, tmp_path_factory.mktemp("several") / "run", "cpu", **SEVERAL)


@pytest.mark.parametrize("options", PLACES, ids=str)
def test_several_relations(several, tmp_path, options, no_draws_on_the_host):
    """Decoders have a row for each, negatives are of its types, and rankings are within it."""
    links, host = several
    no_draws_on_the_host()
    assert agree(links, tmp_path, host=host, **SEVERAL, **options).get("kernel", "cuda") == "cuda"
    found = mr.load(tmp_path / "cuda").result.per_relation
    assert found.keys() == host[0].per_relation.keys()
    for name, values in found.items():
        assert values == pytest.approx(host[0].per_relation[name], rel=1e-9)


def test_links_of_a_relation_by_labor(tmp_path):
    links = mr.link_dataset(mr.open_dataset("hsbm:nodes=30,classes=3,degree=4,features=6"), relation="likes", seed=3)
    sampler = {"name": "labor", "fanout": [2, 3]}
    assert agree(links, tmp_path, **TYPED, sampler=sampler).get("kernel", "cuda") == "cuda"


@pytest.fixture(scope="module")
def timed():
    data = mr.open_dataset("ratings:users=20,items=30,genres=4,degree=6,days=9,features=5")
    return mr.link_dataset(data, split="time:0.7,0.1")


BY_TIME = {"sampler": {"name": "temporal", "fanout": [3, 2], "strategy": "last"}, "train": {"batch_size": 64}}


@pytest.mark.parametrize("there", [{}, {"kernel": "cpu"}, {"queue": {"kind": "zarr", "bulk_size": 2}}], ids=str)
def test_times(timed, tmp_path, there, monkeypatch):
    """Degrees are those before the pairs, which the device finds of what it has drawn."""
    more = {**BY_TIME, "epochs": 1}
    host = trained(timed, tmp_path / "cpu", "cpu", **more)
    if not there:
        no_temporal_draws_on_the_host(monkeypatch)
    assert agree(timed, tmp_path, there, host, **more).get("kernel", "cuda") == there.get("kernel", "cuda")


def test_times_of_relations(tmp_path, monkeypatch):
    rng, buys = np.random.default_rng(0), ("user", "buys", "item")
    user, item, time = (rng.integers(0, n, 150) for n in (20, 15, 40))
    x = {"item": rng.standard_normal((15, 4)), "user": rng.standard_normal((20, 3))}
    data = mr.from_relations({buys: (user, item)}, features=x, edge_times={buys: time}, add_reverse=True)
    links = mr.link_dataset(data, relation="buys", split="time:0.7,0.1")
    host = trained(links, tmp_path / "cpu", "cpu", **{**TYPED, **BY_TIME})
    no_temporal_draws_on_the_host(monkeypatch)
    assert agree(links, tmp_path, host=host, **{**TYPED, **BY_TIME}).get("kernel", "cuda") == "cuda"


def test_isolated_ranks_by_one(links, tmp_path):
    grappa = {"repartition_every": 1, "chunks": 2, "correction": "node"}
    more = {"system": "grappa", "grappa": grappa, "partition": {"method": "hash"}, "train": {"batch_size": 24}}
    job = agree(links, tmp_path, **more)
    assert job.get("kernel", "cuda") == "cuda"


@pytest.mark.parametrize("options", PLACES[1:], ids=str)
def test_rows_that_ranks_own_by_one(links, on_host, tmp_path, options, no_draws_on_the_host):
    no_draws_on_the_host()
    agree(links, tmp_path, host=on_host, **options)


WHOLE = {**JOB, "epochs": 1}
WAYS = {
    "whole": WHOLE,
    "owned": {**WHOLE, "features": "owned", "bulk": {"cache_fraction": 0.2}},
    "blocks": {**WHOLE, "bulk": {"topology": "partitioned"}},
    "isolated": {
        **WHOLE, "system": "grappa", "grappa": {"correction": "node"}, "partition": {"method": "hash"},
        "train": {"batch_size": 24, "lr": 0.02}, "epochs": 2,
    },
}  # fmt: skip
"""By name, configurations of two ranks."""


def train_there(group, links, runs):
    """Reports of the runs. Ranks of a device exchange its tensors over a stand-in for NCCL."""
    over = nccl.stood_in(group)
    device_policies.check_gpus = lambda job: None  # it asks for dask-cuda
    from millrace.stages.links import exclude_cuda

    found, drawn_there, plain = [], [], exclude_cuda.without_own_edges

    def counted(*args: Any, **options: Any) -> Any:
        drawn_there.append(args)
        return plain(*args, **options)

    exclude_cuda.without_own_edges = counted
    for number, (job, out, fingerprint) in enumerate(runs):
        there = job.device == "cuda"
        drawn_there.clear()
        own = (over if there else group).sub(f"{number}", range(group.size), same_thread=there)
        own._ledger, queue = Ledger(), None
        if (out / "parts").exists():
            prepared = prepare_part(
                job, CutData(Outline.from_dataset(links, job), out / "parts", own.rank, fingerprint), dataset=links
            )
        else:
            prepared = prepare(job, links)
            queue = own_queue(prepared, out)
        report = train_and_evaluate(prepared, out, QueueEnd(queue), Member(own, own._ledger, Clock()), Control())
        assert bool(drawn_there) == there
        found.append((report.test_metrics, report.sampled_edges, own._ledger.as_record()))
        own.close()
    over.close()
    return found


def test_two_ranks(links, tmp_path, monkeypatch):
    """Over the whole graph, over features that ranks own, over blocks of rows, and isolated."""
    monkeypatch.setattr(device_policies, "check_gpus", lambda job: None)
    runs = []
    for name, table in [(f"{name}-{device}", {**WAYS[name], "device": device}) for name in WAYS for device in DEVICES]:
        out, table = tmp_path / name, {**table, "ranks": 2}
        prepared = prepare(resolve(table), links)
        out.mkdir()
        if (cut := prepared.system.partition.partitioner) is not None:
            count = prepared.system.parts_before(2)
            cut_dataset(links, Cut(cut, count, 3), out / "parts")
        runs.append((prepared.job, out, prepared.fingerprint))
    ranks = run_ranks(train_there, 2, links, runs, timeout_s=240)
    for number, name in enumerate(WAYS):
        for (metrics, edges, sent), (there, also, over) in (rank[2 * number : 2 * number + 2] for rank in ranks):
            assert there == pytest.approx(metrics, rel=1e-9) and also == edges
            assert over["network"]["features"] == sent["network"]["features"]
        want, seen = (last_parameters(tmp_path / f"{name}-{device}") for device in DEVICES)
        for key, value in want.items():
            torch.testing.assert_close(seen[key], value, rtol=1e-9, atol=1e-11)
