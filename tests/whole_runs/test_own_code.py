"""A user's loss, optimiser, scheduler, metrics and callbacks in whole runs: on every system, on two ranks, after a
resume, from the command line."""

import json

import pytest
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

import millrace as mr
from millrace.pipeline.config.systems import SYSTEMS
from millrace.tests.contracts.command import command
from millrace.tests.contracts.forked_command import run_forked
from millrace.tests.contracts.fresh_python import run_python

JOB = {"epochs": 5, "seed": 3, "threads": 1, "dtype": "float64"}
OWN = {"hidden": 8, "layers": 2, "dropout": 0.1}


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=300,classes=3,degree=8,features=5,train=0.3")


def job_of(name):
    return {**JOB, "system": name} | ({"fanout": [4, 3], "batch_size": 16} if SYSTEMS[name].samples else {})


def smoothed(out, y):
    return F.cross_entropy(out, y, reduction="none", label_smoothing=0.1)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def each_step(optimizer):
    return lr_scheduler.ExponentialLR(optimizer, 0.99), "step"


def margin(out, y):
    """Mean distance of the label's logit to the best other one: a metric of all nodes together."""
    right = out.gather(1, y[:, None])[:, 0]
    return (right - out.scatter(1, y[:, None], -torch.inf).amax(1)).mean()


class Diary(mr.Callback):
    """Writes down each event, and slows the learning down."""

    def __init__(self):
        self.steps = 0
        self.told = []

    def on_start(self, run):
        self.told.append(("start", run.resumed))

    def on_step(self, run):
        self.steps += 1
        run.log(steps=self.steps)

    def on_validation(self, run):
        self.told.append(("validation", run.epoch))

    def on_epoch(self, run):
        run.lr = run.lr * 0.9
        self.told.append(("epoch", run.epoch))

    def on_end(self, run):
        self.told.append((run.status, "test_accuracy" in run.metrics))

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def code():
    return {
        "loss": smoothed, "optimizer": sgd, "scheduler": each_step, "metrics": ["loss", "macro_f1", margin],
        "callbacks": [Diary()],
    }  # fmt: skip


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["values"] for line in lines if line["event"] == "Logged"]


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(name, sbm, tmp_path):
    options = {**job_of(name), **OWN, "checkpoint": {"every_steps": 1}}
    diary = code()
    whole = mr.run(sbm, out=tmp_path / "whole", **options, **diary)
    asked, lives = iter(range(1000)), 0
    while mr.run(
        sbm, out=tmp_path / "parts", resume=lives > 0, stop=lambda: next(asked) % 4 == 3, **options, **code()
    ).status == ("stopped"):
        lives += 1
    last = code()
    resumed = mr.run(sbm, out=tmp_path / "parts", resume=True, **options, **last)
    assert lives and resumed.parameters_sha256 == whole.parameters_sha256
    for key in ("test_accuracy", "best_epoch", "val_metrics", "test_metrics", "per_class", "confusion"):
        assert getattr(resumed, key) == getattr(whole, key), key
    told = diary["callbacks"][0]
    assert last["callbacks"][0].steps == told.steps == len(logged(tmp_path / "whole"))
    assert told.told[0] == ("start", False) and told.told[-1] == ("done", True)
    assert whole.val_metrics.keys() == whole.test_metrics.keys() == {"loss", "macro_f1", "margin"}
    plain = mr.run(sbm, out=tmp_path / "plain", **job_of(name), **OWN)
    assert plain.parameters_sha256 != whole.parameters_sha256


class Alone(torch.nn.Module):
    """Reads no neighbours, so that plain torch can train it beside a run."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 3)

    def layer(self, i, neighbourhood, h):
        return self.linear(mr.destinations(neighbourhood, h))


def make_alone():
    torch.manual_seed(0)
    return Alone()


@pytest.mark.parametrize("every", ["epoch", "step"])
@pytest.mark.parametrize("name", ["bulk", "sar", "grappa"])
def test_steps_are_those_of_plain_torch(sbm, tmp_path, name, every):
    make = {
        "optimizer": lambda p: torch.optim.RMSprop(p, lr=0.05, momentum=0.5),
        "scheduler": lambda o: (lr_scheduler.CosineAnnealingWarmRestarts(o, 2), every),
    }
    batch = {} if name == "sar" else {"fanout": [2], "batch_size": 300}
    options = {**JOB, "system": name, **batch}
    result = mr.run(sbm, model=make_alone(), loss=smoothed, out=tmp_path / "run", **make, **options)
    model = make_alone().double()
    optimizer = make["optimizer"](model.parameters())
    scheduler, _ = make["scheduler"](optimizer)
    train = torch.from_numpy(sbm.split.train)
    rows = sbm.features.gather(sbm.split.train).astype("float64")
    x, y = torch.from_numpy(rows), torch.from_numpy(sbm.labels)[train]
    for _ in range(JOB["epochs"]):
        optimizer.zero_grad()
        smoothed(model.linear(x), y).mean().backward()
        optimizer.step()
        scheduler.step()
    assert result.epochs == JOB["epochs"]
    # After the last step; model.pt has the best epoch.
    state = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1] / "state.pt"
    for key, value in torch.load(state, weights_only=True)["model"].items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize("name", list(SYSTEMS))
def test_two_ranks_do_as_one_does(sbm, scheduler, tmp_path, name):
    """All seeds in a step: the systems differ in what a rank sees."""
    sampled = {"fanout": [-1, -1], "batch_size": 300} if SYSTEMS[name].samples else {}
    options = {**JOB, **OWN, "dropout": 0.0, "epochs": 3, "system": name, **sampled}
    one = mr.run(sbm, out=tmp_path / "one", **options, **code())
    own = {**code(), "scheduler": each_step}
    two = mr.run(sbm, out=tmp_path / "two", ranks=2, cluster={"scheduler": scheduler}, **options, **own)
    close = 1e-9 if name != "retexo" else 1e-6
    assert two.train_loss == pytest.approx(one.train_loss, rel=close)
    assert two.val_metrics == pytest.approx(one.val_metrics, rel=close)
    assert two.test_metrics == pytest.approx(one.test_metrics, rel=close)
    assert two.confusion == one.confusion and two.per_class == one.per_class
    assert logged(tmp_path / "two") == logged(tmp_path / "one")


class Thaws(mr.Callback):
    """Lets the first layer learn after the second epoch, and no more after the fourth."""

    def on_epoch(self, run):
        if run.epoch in (1, 3):
            for p in run.model.first.parameters():
                p.requires_grad_(run.epoch == 1)


class Freezes(mr.Callback):
    """Keeps the second layer as it is after the first epoch."""

    def on_epoch(self, run):
        if run.epoch == 0:
            for name, p in run.model.named_parameters():
                p.requires_grad_(name != "convs.1.linear.weight")


class Idle(mr.Callback):
    def on_epoch(self, run):
        pass


class Own(torch.nn.Module):
    num_layers = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)
        self.first.requires_grad_(False)

    def head(self, h):
        return self.last(self.first(h).relu())

    def layer(self, i, neighbourhood, h):
        return self.head(mr.destinations(neighbourhood, h))


def test_what_a_callback_froze_stays_so_in_the_next_phase(sbm, tmp_path):
    options = {"system": "retexo", "epochs": 4, "checkpoint": {"every_steps": 1}, "model": mr.GCN(hidden=8, layers=2)}
    whole = mr.run(sbm, out=tmp_path / "whole", callbacks=Freezes(), **options)
    asked = iter(range(100))
    first = mr.run(sbm, out=tmp_path / "r", callbacks=Freezes(), stop=lambda: next(asked) >= 2, **options)
    assert first.status == "stopped"
    again = mr.run(sbm, out=tmp_path / "r", callbacks=Freezes(), resume=True, **options)
    assert again.parameters_sha256 == whole.parameters_sha256


@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_run_with_a_frozen_layer_goes_on_with_a_callback(sbm, tmp_path, ema):
    def frozen():
        model = Own()
        model.first.requires_grad_(False)
        return model

    options = {"epochs": 4, "fanout": [3], "batch_size": 100, "optimizer": "adamw", "train": {"ema": ema}}
    whole = mr.run(sbm, model=frozen(), out=tmp_path / "whole", **options)
    mr.run(sbm, model=frozen(), out=tmp_path / "r", **{**options, "epochs": 2})
    again = mr.run(sbm, model=frozen(), out=tmp_path / "r", callbacks=Idle(), resume=True, **options)
    assert again.parameters_sha256 == whole.parameters_sha256


def test_what_a_callback_unfreezes_is_trained_as_in_torch(sbm, tmp_path):
    """Also where the run was stopped after it: the callback does not say it again."""
    options = {
        "epochs": 6, "dtype": "float64", "fanout": [-1], "batch_size": 300, "lr": 0.1, "weight_decay": 0.1,
        "optimizer": "adamw", "checkpoint": {"every_steps": 1},
    }  # fmt: skip
    whole = mr.run(sbm, model=Own(), out=tmp_path / "whole", callbacks=Thaws(), **options)
    asked = iter(range(100))
    stopped = mr.run(
        sbm, model=Own(), out=tmp_path / "parts", callbacks=Thaws(), stop=lambda: next(asked) >= 2, **options
    )
    assert stopped.status == "stopped"
    parts = mr.run(sbm, model=Own(), out=tmp_path / "parts", callbacks=Thaws(), resume=True, **options)
    assert parts.parameters_sha256 == whole.parameters_sha256
    model, seeds = Own().double(), torch.from_numpy(sbm.split.train)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    x, y = torch.from_numpy(sbm.features.gather(sbm.split.train)).double(), torch.from_numpy(sbm.labels)[seeds].long()
    for epoch in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model.head(x), y).backward()
        optimizer.step()
        if epoch in (1, 3):
            model.first.requires_grad_(epoch == 1)
    state = sorted((tmp_path / "whole" / "checkpoints").glob("step-*"))[-1] / "state.pt"
    for key, value in torch.load(state, weights_only=True)["model"].items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-12)


class StopsAt(mr.Callback):
    def __init__(self, epoch, step=None, rank=0):
        self.at, self.rank = (epoch, step), rank

    def on_step(self, run):
        if (run.epoch, run.step) == self.at and run.rank == self.rank:
            run.stop()

    def on_epoch(self, run):
        if (run.epoch, None) == self.at and run.rank == self.rank:
            run.stop()


@pytest.mark.usefixtures("by_value")
def test_a_callback_ends_training_at_the_same_step_on_any_number_of_ranks(sbm, scheduler, tmp_path):
    options = {**job_of("bulk"), **OWN, "train": {"minibatches_per_step": 2}, "checkpoint": {"every_steps": 1}}
    one = mr.run(sbm, out=tmp_path / "one", callbacks=StopsAt(1, 0), **options)
    again = mr.run(sbm, out=tmp_path / "one", callbacks=StopsAt(1, 0), resume=True, **options)
    cluster = {"ranks": 2, "cluster": {"scheduler": scheduler}}
    two = mr.run(sbm, out=tmp_path / "two", callbacks=StopsAt(1, 0, rank=1), **cluster, **options)
    assert (one.status, one.epochs) == (two.status, two.epochs) == ("done", 2)
    assert again.parameters_sha256 == one.parameters_sha256, "it stays ended"
    assert two.minibatches == one.minibatches == 6 + 4, "the step that asks and the next one, of three"
    assert two.train_loss == pytest.approx(one.train_loss, rel=1e-9)
    assert two.test_accuracy == one.test_accuracy is not None


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_a_callback_ends_training_with_an_epoch(sbm, tmp_path, name):
    phases = {"grappa": {"repartition_every": 1}} if name == "grappa" else {}
    result = mr.run(sbm, out=tmp_path, callbacks=StopsAt(1), **job_of(name), **OWN, **phases)
    # Each layer is a phase of its own under retexo: the one that was ended leaves the others alone.
    assert [p["epochs"] for p in result.phases] == ([2, 5] if name == "retexo" else [])
    assert result.epochs == (7 if name == "retexo" else 2) and result.status == "done"


@pytest.mark.parametrize("monitor", ["loss", "macro_f1", "-margin", "margin", "accuracy"])
def test_the_best_epoch_and_patience_follow_the_monitor(sbm, tmp_path, monitor):
    options = {**job_of("bulk"), **OWN, "epochs": 12, "lr": 0.2, "metrics": ["loss", "macro_f1", margin]}
    result = mr.run(sbm, out=tmp_path, monitor=monitor, patience=3, **options)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    epochs = [e for e in lines if e["event"] == "EpochDone"]
    name = monitor.removeprefix("-")
    values = [e["val_accuracy"] if name == "accuracy" else e["metrics"][name] for e in epochs]
    best = min(values) if monitor in ("loss", "-margin") else max(values)
    assert result.best_epoch == values.index(best)
    assert len(values) in (12, result.best_epoch + 4)
    if name != "accuracy":
        assert result.val_metrics[name] == best


def test_other_code_is_refused_when_a_run_goes_on(sbm, tmp_path):
    options = {**job_of("bulk"), **OWN, "out": tmp_path / "run"}
    mr.run(sbm, **options, **code())
    again = {**options, "resume": True}
    with pytest.raises(mr.InputError, match="started with a loss of your own"):
        mr.run(sbm, **again, **{**code(), "loss": None})
    with pytest.raises(mr.StoreError, match="loss"):
        mr.run(sbm, **again, **{**code(), "loss": lambda out, y: smoothed(out, y) * 2})
    with pytest.raises(mr.StoreError, match="optimizer"):
        mr.run(sbm, **again, **{**code(), "optimizer": torch.optim.SGD})
    assert mr.run(sbm, **{**again, "epochs": 6}, **code()).epochs == 6


class Fails(mr.Callback):
    def __init__(self):
        self.status = None

    def on_step(self, run):
        raise ValueError("of the user's own")

    def on_end(self, run):
        self.status = run.status


@pytest.mark.usefixtures("by_value")
def test_an_error_in_a_callback_names_its_line(sbm, scheduler, tmp_path):
    failing = Fails()
    with pytest.raises(ValueError, match="of the user's own"):
        mr.run(sbm, out=tmp_path / "one", callbacks=failing, **job_of("bulk"), **OWN)
    assert failing.status == "failed"
    cluster = {"ranks": 2, "cluster": {"scheduler": scheduler}}
    with pytest.raises(mr.RunError, match="of the user's own") as raised:
        mr.run(sbm, out=tmp_path / "two", callbacks=Fails(), **job_of("bulk"), **OWN, **cluster)
    assert "test_own_code.py" in str(raised.value)


SCRIPT = """
import torch
import millrace as mr

def focal(out, y):
    ce = torch.nn.functional.cross_entropy(out, y, reduction="none")
    return ce * (1 - torch.exp(-ce)) ** 2

class Quarter(mr.Callback):
    def on_epoch(self, run):
        run.lr = run.lr / 4
        run.log(rate=run.lr)

if __name__ == "__main__":
    result = mr.run(
        "sbm:nodes=200,classes=3,features=5,train=0.3", loss=focal, callbacks=[Quarter()], fanout=[3], layers=1,
        hidden=4, epochs=2, ranks=2, out="by_script", threads=1, cluster={"scheduler": SCHEDULER}, verbose=False,
    )
    print(result.status)
"""


def test_a_script_and_the_command_line_give_code(scheduler, tmp_path, monkeypatch):
    """Classes defined in a script's `__main__` reach ranks; the command line names them."""
    (tmp_path / "own.py").write_text(SCRIPT.replace("SCHEDULER", repr(scheduler)))
    start = f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path('own.py', run_name='__main__')"
    status, said, error = run_python("-c", start)
    assert (status, said) == (0, "done\n"), error
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    job = ("--set", "epochs=2", "--fanout", "3", "--layers", "1", "--hidden", "4")
    data = ("--dataset", "sbm:nodes=200,classes=3,features=5,train=0.3", "--set", "threads=1")
    own = ("--code", "loss=own:focal", "--code", "callback=own:Quarter")
    status, _, error = run_forked("run", *data, *job, *own, "--out", "by_name", "--json")
    assert status == 0, error
    by_script, by_name = (json.loads((tmp_path / out / "result.json").read_text()) for out in ("by_script", "by_name"))
    assert by_name["fingerprint"]["loss"] == by_script["fingerprint"]["loss"]
    assert logged(tmp_path / "by_name") == logged(tmp_path / "by_script") and len(logged(tmp_path / "by_name")) == 2
    status, _, error = run_forked("run", "--resume", "--out", "by_name")
    assert status == 2 and "--code loss=MODULE:NAME" in error
    assert not list((tmp_path / "by_name").rglob("*.pkl")), "no code in the folder"


def test_an_error_in_a_users_module_is_shown_where_it_is(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(
        "from torch import nn\n\nclass Bad(nn.Module):\n    num_layers = 1\n\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(99, 3)\n\n"
        "    def layer(self, i, neighbourhood, h):\n        return self.linear(neighbourhood.mean(h))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--dataset", "sbm:nodes=60,classes=3", "--model", "of_mine:Bad", "--epochs", 1, "--out", tmp_path / "run"]
    code, _, err = command("run", *words)
    assert code == 3
    assert "of_mine.py" in err and "in layer" in err
    assert (
        err.splitlines()[-1]
        == "millrace: RuntimeError in the code above: mend it if it is yours, else please report it"
    )
