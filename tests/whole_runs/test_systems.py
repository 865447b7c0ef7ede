"""The contract of every training system, over the registry: a system that is added is held to it without being
named."""

import json
from itertools import product

import pytest
import torch

import millrace as mr
from millrace.pipeline.config.systems import SYSTEMS, Inputs
from millrace.pipeline.setup.configure import configure
from millrace.stages.models import MODELS
from millrace.stages.partition.contiguous import Contiguous
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.tests.contracts.command import command
from millrace.tests.contracts.pictures import draw_only

NAMES = tuple(SYSTEMS)
JOB = {"epochs": 8, "seed": 3, "lr": 0.02, "hidden": 8, "layers": 2, "dropout": 0.1, "threads": 1, "dtype": "float64"}
SPEC = "sbm:nodes=300,classes=3,degree=8,features=5,train=0.3"
SECONDS = {
    *("partition", "sample", "queue_wait", "fetch", "fetch_wait", "exchange", "forward_backward", "reduce"),
    *("evaluate", "total", "per_epoch"),
}


def job_of(name: str) -> dict:
    """A small job of the system; minibatches where it draws any."""
    return {**JOB, "system": name} | ({"fanout": [4, 3], "batch_size": 16} if SYSTEMS[name].samples else {})


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset(SPEC)


@pytest.fixture(scope="module", params=NAMES)
def ran(request, sbm, tmp_path_factory):
    """(Name of the system, folder of a run, its result)."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, out, mr.run(sbm, out=out, check=True, **job_of(request.param))


def test_a_result_says_what_was_trained(ran):
    name, out, result = ran
    record = json.loads((out / "result.json").read_text())
    assert record == json.loads(json.dumps(result.to_record()))
    assert (record["status"], record["system"], record["ranks"]) == ("done", name, 1)
    assert record["epochs"] >= JOB["epochs"] and len(record["seconds"]["per_epoch"]) == record["epochs"]
    assert set(record["seconds"]) == SECONDS
    assert record["test_accuracy"] > 0.4
    events = [json.loads(line)["event"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert events.count("EpochDone") == record["epochs"]
    assert all(torch.isfinite(t).all() for t in torch.load(out / "model.pt", weights_only=True).values())


def test_one_rank_sends_nothing(ran):
    _, _, result = ran
    assert not sum(result.bytes["network"].values())


def test_a_run_stopped_after_any_epoch_goes_on_to_the_same_bits(ran, sbm, tmp_path):
    name, _, whole = ran
    asked, lives = iter(range(1000)), 0
    options = {**job_of(name), "checkpoint": {"every_steps": 1}, "out": tmp_path / "run"}
    while mr.run(sbm, resume=lives > 0, stop=lambda: next(asked) % 4 == 3, **options).status == "stopped":
        lives += 1
        assert lives < 100
    resumed = mr.run(sbm, resume=True, **options)
    assert lives and resumed.parameters_sha256 == whole.parameters_sha256
    assert (resumed.epochs, resumed.train_loss, resumed.best_epoch) == (
        whole.epochs,
        whole.train_loss,
        whole.best_epoch,
    )


def test_a_saved_model_is_evaluated_as_in_the_run(ran):
    _, out, result = ran
    code, said, err = command("evaluate", out, "--json")
    assert code == 0, err
    assert json.loads(said)["accuracy"]["test"] == pytest.approx(result.test_accuracy, abs=1e-12)


@pytest.mark.parametrize("verb", ["inspect", "report"])
def test_a_run_can_be_looked_at(ran, verb, monkeypatch):
    """Without the report's pictures: test_report.py draws those of every system, and looks at them."""
    draw_only(monkeypatch)
    _, out, _ = ran
    code, said, err = command(verb, out)
    assert (code, "Traceback" in err) == (0, False), err
    assert said


def test_a_resumed_run_keeps_its_model(ran):
    _, out, _ = ran
    before = {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    code, _, err = command("run", "--resume", "--out", out, "--set", "model.hidden=9")
    assert (code, "model.hidden (was 8, now 9)" in err, "Traceback" in err) == (2, True, False), err
    assert {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()} == before


@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_its_configuration(name):
    registered = SYSTEMS[name]
    inputs = Inputs(sampler=NeighborSampler((4, 3)) if registered.samples else None, partitioner=Contiguous())
    options = registered.options()
    built = registered.build(options, inputs if registered.cuts(options) else Inputs(sampler=inputs.sampler))
    written = configure({}, system=built).model_dump()[name]
    assert built.name == name
    registered.options.model_validate(dict(built.options))
    asked = configure({}, system=name).model_dump()[name]
    assert {k: v for k, v in written.items() if asked[k] is not None} == {
        k: v for k, v in asked.items() if v is not None
    }
    assert configure({}, system=registered.build(registered.options(**written), inputs)).model_dump()[name] == written


@pytest.mark.parametrize(
    ("name", "key", "phrase"),
    [
        *((name, "no_such_key=1", "no_such_key") for name in NAMES),
        *((name, "dtype=\"float8\"", "dtype") for name in NAMES),
        *((name, "model.layers=0", "layers is 0") for name in NAMES),
        *((name, "features=\"owned\"", "features") for name in NAMES if name != NAMES[0]),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_a_few_lines_and_nothing_is_written(name, key, phrase, tmp_path):
    key = f"{name}.{key}" if key.startswith("no_such") else key
    code, _, err = command("run", "--system", name, "--dataset", SPEC, "--set", key, "--out", tmp_path / "run")
    assert (code, phrase in err, "Traceback" in err) == (2, True, False), err
    assert 1 <= len(err.strip().splitlines()) <= 3, err
    assert not (tmp_path / "run").exists()


NEEDS = {
    "gine": "reads features of edges",
    "identity": "reads no neighbours",
    **dict.fromkeys(("rgcn", "rsage", "rgat", "hgt"), "reads relations"),
}
REFUSED = {(name, model): words for name in NAMES for model, words in NEEDS.items()}
"""Models that a system does not train on a plain graph, with words of the refusal."""


@pytest.mark.parametrize(("name", "model"), list(product(NAMES, MODELS)))
def test_each_model_trains_or_is_refused_in_a_sentence(name, model, sbm, tmp_path):
    options = {**job_of(name), "epochs": 1, "model": model}
    if (name, model) not in REFUSED:
        assert mr.run(sbm, out=tmp_path / "run", **options).status == "done"
        return
    with pytest.raises(mr.InputError) as caught:
        mr.run(sbm, out=tmp_path / "run", **options)
    assert REFUSED[name, model] in str(caught.value) and str(caught.value).count("\n") < 3
    assert not (tmp_path / "run").exists()
