import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from millrace.pipeline.assembly.update_part import UpdatePart
from millrace.pipeline.config.optimizer import make_optimizer
from millrace.pipeline.config.schema import Train
from millrace.pipeline.training.optimize.phase_optimizer import PhaseOptimizer, ScheduleSpan
from millrace.stages.reduce.seed_weighted import SeedWeightedMean

EPOCHS, STEPS = 3, 4


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).double()


def update_of(module, train):
    def optimizer(parameters):
        names = {id(p): name for name, p in module.named_parameters()}
        return make_optimizer(train, [(names[id(p)], p) for p in parameters])

    rules = SimpleNamespace(optimizer=optimizer)
    update = UpdatePart("multiclass", train)
    return PhaseOptimizer(update, SeedWeightedMean(), rules, module, ScheduleSpan(0, EPOCHS, STEPS))


def with_gradients(module, generator):
    for p in module.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", {"betas": [0.8, 0.99]}),
        ("sgd", {"momentum": 0.9, "nesterov": True}),
        ("rmsprop", {"alpha": 0.9}),
        ("nadam", {}),
        ("adagrad", {}),
    ],
)
def test_steps_are_those_of_plain_torch(name, options):
    """Clipped, on a cosine, with groups and an average."""
    groups = [{"match": "0.*", "lr": 0.02, "weight_decay": 0.1}, {"match": "*.bias", "lr": 0.0}]
    train = Train.model_validate(
        {"optimizer": name, "optimizer_options": options, "lr": 0.05, "clip_norm": 0.7, "ema": 0.8, "groups": groups}
        | {"schedule": {"name": "cosine", "warmup": 0.5, "final": 0.1}}
    )
    ours, theirs = model(), model()
    update, generator = update_of(ours, train), torch.Generator().manual_seed(1)
    kind = {k.lower(): v for k, v in vars(torch.optim).items()}[name]
    first, last = theirs
    made = kind(
        [
            {"params": [*first.parameters()], "lr": 0.02, "weight_decay": 0.1},
            {"params": [last.bias], "lr": 0.0},
            {"params": [last.weight]},
        ],
        lr=0.05,
        **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()},
    )
    total, rising = EPOCHS * STEPS, STEPS // 2
    rise = torch.optim.lr_scheduler.LinearLR(made, 1 / rising, 1.0, rising - 1)
    falls = [lambda k: 0.1 + 0.9 * (1 + math.cos(math.pi * k / (total - rising))) / 2]
    fall = torch.optim.lr_scheduler.LambdaLR(made, falls * 3)
    schedule = torch.optim.lr_scheduler.SequentialLR(made, [rise, fall], [rising])
    average = AveragedModel(theirs, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    for i in range(total):
        with_gradients(ours, generator)
        for p, q in zip(theirs.parameters(), ours.parameters()):
            p.grad = None if q.grad is None else q.grad.clone()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.7)
        made.step()
        schedule.step()
        average.update_parameters(theirs)
        update.step(*divmod(i, STEPS), [])
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    with update.averaged():
        for p, q in zip(ours.parameters(), average.module.parameters()):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


def test_a_state_goes_on_to_the_same_bits():
    train = Train.model_validate({"schedule": "linear", "ema": 0.9, "clip_norm": 1.0})
    whole, generator = model(), torch.Generator().manual_seed(2)
    update = update_of(whole, train)
    parts = model()
    for i in range(EPOCHS * STEPS):
        with_gradients(whole, generator)
        if i == 5:
            parts.load_state_dict(whole.state_dict())
            later = update_of(parts, train)
            later.load_state_dict(copy.deepcopy(update.state_dict()))
        if i >= 5:
            for p, q in zip(parts.parameters(), whole.parameters()):
                p.grad = q.grad.clone()
            later.step(*divmod(i, STEPS), [])
        update.step(*divmod(i, STEPS), [])
    with update.averaged(), later.averaged():
        assert all(torch.equal(p, q) for p, q in zip(parts.parameters(), whole.parameters()))
    assert all(torch.equal(p, q) for p, q in zip(parts.parameters(), whole.parameters()))
