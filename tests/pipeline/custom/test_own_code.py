"""A user's code as it is given: by object or name, what is refused, and what is told apart from configuration."""

import functools
import re

import pytest
import torch
from torch.nn import functional as F

import millrace as mr
from millrace.pipeline.custom.own_code import from_code_flags, own_code, split_code
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.prepare import prepare
from millrace.pipeline.setup.python_inputs import check_code_given, keep_inputs
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

CODE = """
import millrace as mr
import torch

def brier(out, y):
    return ((out.softmax(1) - torch.nn.functional.one_hot(y, out.shape[1])) ** 2).sum(1)

def share(out, y):
    return (out.argmax(1) == y).float().mean()

class Counter(mr.Callback):
    def on_step(self, run):
        pass

def counter():
    return Counter()

counting = Counter()
"""


@pytest.fixture
def named(tmp_path, monkeypatch):
    (tmp_path / "named_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_code_is_found_by_name(named):
    found = own_code(
        loss="named_code:brier",
        metrics=["named_code:share", "named_code.brier"],
        callbacks=["named_code:Counter", "named_code:counter", "named_code:counting"],
        optimizer="torch.optim:SGD",
        scheduler="torch.optim.lr_scheduler.ConstantLR",
    )
    assert found.loss.__name__ == "brier" and list(found.metrics) == ["share", "brier"]
    assert [type(c).__name__ for c in found.callbacks] == ["Counter"] * 3
    assert found.optimizer is torch.optim.SGD and found.scheduler is torch.optim.lr_scheduler.ConstantLR
    assert found.digests.keys() == {"loss", "optimizer", "scheduler"}
    assert found.names["loss"] == "named_code:brier" and found.names["callback"].count("named_code:Counter") == 3


def test_nothing_given_is_nothing():
    assert own_code().is_empty and not own_code(loss=F.cross_entropy).is_empty


class Trained(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"loss": "nowhere:focal"}, r"loss is 'nowhere:focal', which cannot be imported \(ModuleNotFoundError"),
        ({"loss": "torch:focal"}, "cannot be imported .AttributeError"),
        ({"loss": "focal"}, "loss is 'focal'; expected MODULE:NAME"),
        ({"loss": 3}, "loss is a int; expected a function"),
        ({"loss": torch.nn.CrossEntropyLoss}, "loss is the class CrossEntropyLoss; expected an object"),
        ({"loss": Trained()}, "Trained with parameters, which nothing would train"),
        ({"metrics": [lambda out, y: 0.0]}, "metrics: '<lambda>' is no name; name each"),
        ({"metrics": {"loss": lambda out, y: 0.0}}, "metrics: 'loss' is taken"),
        ({"metrics": [F.cross_entropy, F.cross_entropy]}, "metrics: 'cross_entropy' is taken"),
        ({"callbacks": [mr.Callback]}, r"the class Callback; give an object of it: Callback\(\)"),
        ({"callbacks": [mr.Callback()]}, "the callback Callback has none of on_start"),
    ],
)
def test_what_is_no_code_is_refused(given, sentence):
    with pytest.raises(InputError, match=sentence):
        own_code(**given)


class OfLightning:
    def on_train_epoch_end(self, trainer, module):
        pass


def test_methods_that_nothing_calls_are_refused():
    with pytest.raises(InputError, match=r"OfLightning has on_train_epoch_end, which nothing calls; expected on_start"):
        own_code(callbacks=OfLightning())


def test_configuration_is_told_from_code():
    given = {"optimizer": "adamw", "scheduler": "tcp://host:8786", "metrics": ["loss", "macro_f1"]}
    kept = split_code({**given, "loss": "mse"}, {"epochs": 3})
    keys = {"optimizer": "adamw", "cluster": {"scheduler": "tcp://host:8786"}, "metrics": ["loss", "macro_f1"]}
    assert kept == ({"metrics": []}, {"epochs": 3, "loss": "mse", **keys})
    assert split_code({"scheduler": "head-node:8786"}, {}) == ({}, {"cluster": {"scheduler": "head-node:8786"}})
    code = {"optimizer": "torch.optim:SGD", "scheduler": "my.code:make", "metrics": ["my.code:share"], "loss": len}
    assert split_code({**code, "callbacks": None}, {}) == (code, {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lr": 0.1}, r"lr would not reach the optimizer, which is your own \(torch.optim.sgd:SGD\)"),
        ({"train": {"weight_decay": 0.1, "groups": []}}, "weight_decay and groups would not reach the optimizer"),
    ],
)
def test_keys_beside_code_in_their_place_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        split_code({"optimizer": torch.optim.SGD}, options)


def test_keys_of_a_configuration_beside_code_are_refused():
    with pytest.raises(InputError, match="lr would not reach the optimizer"):
        split_code({"optimizer": torch.optim.SGD}, {}, {"train": {"lr": 0.1}})
    with pytest.raises(InputError, match="schedule would not reach the scheduler"):
        split_code({"scheduler": torch.optim.lr_scheduler.StepLR}, {}, {"train": {"schedule": "cosine"}})
    assert split_code({}, {}, {"train": {"lr": 0.1, "schedule": "cosine"}}) == ({}, {})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["run", "--code", "optimizer=torch.optim:SGD", "--lr", "0.1"], "lr would not reach the optimizer"),
        (
            ["run", "--code", "scheduler=torch.optim.lr_scheduler:StepLR", "--set", "train.schedule=cosine"],
            "schedule would not reach the scheduler",
        ),
        (["sweep", "--code", "optimizer=torch.optim:SGD", "--set", "lr=0.1,0.2"], "lr would not reach the optimizer"),
        (["run", "--code", "callback=torch:zeros_like"], "the callback .* has none of on_start"),
        (["run", "--code", "callback=torch.nn:Linear"], "fails when it is called without arguments .TypeError"),
    ],
)
def test_commands_refuse_code_that_would_not_work(flags, sentence, tmp_path):
    code, _, err = command(*flags, "--out", tmp_path / "out")
    assert code == 2 and re.search(sentence, err), err
    assert not (tmp_path / "out").exists()


def test_flags_name_code():
    found = from_code_flags(["loss=a.b:c", "metric=a:m", "metric=a:n", "callback=a.C"])
    assert found == {"loss": "a.b:c", "metrics": ["a:m", "a:n"], "callbacks": ["a.C"]}
    assert from_code_flags(None) == {}


@pytest.mark.parametrize("flag", ["loss", "loss=3", "criterion=a:b", "loss=a", "=a:b"])
def test_flags_of_another_form_are_refused(flag):
    with pytest.raises(InputError, match="expected KIND=MODULE:NAME"):
        from_code_flags([flag])
    with pytest.raises(InputError, match="given twice"):
        from_code_flags(["loss=a:b", "loss=a:c"])


@pytest.fixture(scope="module")
def sbm():
    return mr.open_dataset("sbm:nodes=60,classes=3,degree=4,features=5,train=0.3")


def plateau(mode):
    return functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, mode=mode)


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        ({"loss": F.cross_entropy}, {}, r"the loss gave torch.float32 \[\] for 2 seeds.*reduction=\"none\""),
        ({"loss": lambda out, y: out.argmax(1)}, {}, r"the loss gave torch.int64 \[2\]"),
        ({"loss": lambda out, y: out.item()}, {}, r"the loss fails on logits \[2, 3\] and labels \[2\] \(RuntimeError"),
        ({"loss": lambda out, y: 1.0}, {}, "the loss gave a float for 2 seeds"),
        (
            {"loss": lambda out, y: out.sum(1)},
            {"system": "retexo", "retexo": {"distill": 0.5}},
            "retexo.distill is 0.5, which needs the default loss of classes",
        ),
        ({}, {"monitor": "f1"}, "train.monitor is 'f1'; expected one of accuracy, loss, macro_f1"),
        ({}, {"monitor": "loss", "train": {"evaluate_every": 0}}, "but train.evaluate_every is 0"),
        ({"scheduler": plateau("min")}, {}, "follows the metric 'accuracy'; make it mode='max'"),
        ({"scheduler": plateau("max")}, {"monitor": "loss"}, "follows the metric 'loss'; make it mode='min'"),
        ({"scheduler": plateau("max")}, {"train": {"evaluate_every": 0}}, "follows validations, but there are none"),
        (
            {"scheduler": functools.partial(torch.optim.lr_scheduler.ConstantLR)},
            {"system": "retexo", "retexo": {"local_steps": 2}},
            "a scheduler is given, but clients",
        ),
    ],
)
def test_code_that_does_not_go_with_the_job_is_refused(sbm, given, options, sentence):
    sampled = {} if options.get("system") == "retexo" else {"fanout": [2]}
    job = configure({}, hidden=4, layers=1, **sampled, **options)
    with pytest.raises(InputError, match=sentence):
        prepare(job, sbm, code=own_code(**given))


def test_a_run_goes_on_with_the_kinds_of_code_that_it_began_with(sbm, tmp_path):
    began = own_code(loss=F.cross_entropy, callbacks=OnStep())
    keep_inputs(tmp_path, configure({}), None, None, {}, began)
    check_code_given(tmp_path, began)
    with pytest.raises(
        InputError, match=r"started with a loss of your own, torch.nn.functional:cross_entropy; pass it"
    ):
        check_code_given(tmp_path, own_code())
    with pytest.raises(InputError, match=r"callbacks=\.\.\.\), or on the command line --code callback=MODULE:NAME"):
        check_code_given(tmp_path, own_code(loss=F.cross_entropy))


class OnStep:
    def on_step(self, run):
        pass
