import pytest
import torch
from torch.optim import lr_scheduler as of_torch

from millrace.pipeline.config.schema import Schedule
from millrace.pipeline.training.optimize.schedules import lr_factor

EPOCHS, STEPS = 7, 5


def factors(schedule: Schedule, validations=()):
    return [
        lr_factor(schedule, *divmod(i, STEPS), STEPS, EPOCHS, validations[: i // STEPS]) for i in range(EPOCHS * STEPS)
    ]


def by_torch(make, per_epoch=False):
    """The learning rates of a scheduler of torch's over a run."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, seen = make(optimizer), []
    for i in range(EPOCHS * STEPS):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if not per_epoch or i % STEPS == STEPS - 1:
            scheduler.step()
    return seen


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("warmup", [0, 1, 2])
@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_a_warm_up_and_a_fall_are_torchs(name, warmup, final):
    rising, falling = warmup * STEPS, (EPOCHS - warmup) * STEPS

    def make(optimizer):
        if name == "cosine":
            fall = of_torch.CosineAnnealingLR(optimizer, falling, eta_min=final)
        else:
            fall = of_torch.LinearLR(optimizer, 1.0, final, falling)
        if not warmup:
            return fall
        rise = of_torch.LinearLR(optimizer, 1 / rising, 1.0, rising - 1)
        return of_torch.SequentialLR(optimizer, [rise, fall], [rising])

    assert factors(Schedule(name=name, warmup=warmup, final=final)) == pytest.approx(by_torch(make), abs=1e-12)


def test_steps_are_torchs():
    def make(optimizer):
        return of_torch.StepLR(optimizer, 2, 0.3)

    assert factors(Schedule(name="step", every=2, factor=0.3)) == pytest.approx(by_torch(make, True), abs=1e-12)


@pytest.mark.parametrize("patience", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_plateaus_are_torchs(seed, patience):
    accuracies = torch.rand(EPOCHS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
    accuracies[seed % EPOCHS] = max(accuracies) * (1 + 5e-5)  # not enough better
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    plateau = of_torch.ReduceLROnPlateau(optimizer, "max", 0.5, patience)
    expected = []
    for accuracy in accuracies:
        expected += STEPS * [optimizer.param_groups[0]["lr"]]
        plateau.step(accuracy)
    assert factors(Schedule(name="plateau", factor=0.5, patience=patience), accuracies) == pytest.approx(expected)


def test_a_warm_up_of_part_of_an_epoch_ends_within_it():
    assert factors(Schedule(warmup=0.4))[:4] == pytest.approx([0.5, 1.0, 1.0, 1.0])
    assert factors(Schedule()) == [1.0] * (EPOCHS * STEPS)
