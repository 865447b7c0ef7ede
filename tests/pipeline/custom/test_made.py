"""Optimisers and schedulers that a user's code makes: what is taken, and what is refused."""

import pytest
import torch
from torch.optim import lr_scheduler

from millrace.pipeline.custom.made import made_optimizer, made_scheduler, plain
from millrace.pipeline.custom.own_code import OwnCode, own_code
from millrace.storage.checkpoint import CheckpointStore, Cursor
from millrace.storage.errors import InputError

P = torch.nn.Parameter(torch.zeros(3))


def test_nothing_given_makes_nothing():
    assert made_optimizer(OwnCode(), [P]) is None
    assert not made_scheduler(OwnCode(), torch.optim.SGD([P])).all


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        (lambda p: None, "optimizer made a NoneType; expected a torch.optim.Optimizer"),
        (torch.optim.LBFGS, "LBFGS, whose step needs a closure"),
        (lambda p: torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), "parameters that it was not given"),
        (lambda p: 1 / 0, r"optimizer fails when it is called \(ZeroDivisionError"),
    ],
)
def test_optimisers_that_cannot_step_are_refused(optimizer, sentence):
    with pytest.raises(InputError, match=sentence):
        made_optimizer(own_code(optimizer=optimizer), [P])


@pytest.mark.parametrize(
    ("scheduler", "sentence"),
    [
        (lambda o: 3, "scheduler made a int"),
        (lambda o: (lr_scheduler.ConstantLR(o), "often"), r"a pair with 'often'"),
        (lambda o: (lr_scheduler.ReduceLROnPlateau(o), "step"), "follows validations"),
        (lambda o: lr_scheduler.StepLR(o), "scheduler fails when it is called"),
    ],
)
def test_schedulers_that_cannot_step_are_refused(scheduler, sentence):
    with pytest.raises(InputError, match=sentence):
        made_scheduler(own_code(scheduler=scheduler), torch.optim.SGD([P]))


KINDS = {
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 2)]),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_holds_the_state_of_torchs_schedulers(tmp_path, kind):
    def rates(scheduler, optimizer, count):
        seen = []
        for _ in range(count):
            optimizer.step()
            scheduler.step(*([1.0] if kind == "plateau" else []))
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    def fresh():
        optimizer = torch.optim.SGD([P], lr=0.1)
        return KINDS[kind](optimizer), optimizer

    scheduler, optimizer = fresh()
    rates(scheduler, optimizer, 3)
    store = CheckpointStore(tmp_path, {})
    store.save(Cursor(0, 1), {"s": plain(scheduler.state_dict()), "o": optimizer.state_dict()})
    state = store.latest()[1]
    again, other = fresh()
    other.load_state_dict(state["o"])
    again.load_state_dict(state["s"])
    assert rates(again, other, 5) == rates(scheduler, optimizer, 5)
