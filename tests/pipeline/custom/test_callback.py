"""Callbacks by themselves: what is called, and what a run's view takes and tells. Whole runs are in
`whole_runs/test_own_code.py`."""

from pathlib import Path

import pytest
import torch

import millrace as mr
from millrace.pipeline.assembly.update_part import UpdatePart
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.schema import Schedule, Train
from millrace.pipeline.custom.callback import EVENTS, Callback, Callbacks, Numbers, RunView
from millrace.pipeline.telemetry.events import Logged
from millrace.pipeline.training.optimize.phase_optimizer import PhaseOptimizer, ScheduleSpan
from millrace.stages.comm.solo import Solo
from millrace.stages.messages import StepRules
from millrace.stages.reduce.seed_weighted import SeedWeightedMean


def view(rank=0, emit=lambda event: None):
    model = torch.nn.Linear(2, 2)
    return RunView(rank=rank, ranks=2, model=model, config=resolve({}), folder=Path(), epochs=3, emit=emit)


class All(Callback):
    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


for event in EVENTS:
    setattr(All, f"on_{event}", lambda self, run, event=event: self.seen.append((event, run.epoch, run.step)))


class Plain:
    def on_epoch(self, run):
        run.stop()


def test_each_event_calls_its_method():
    one, plain = All(), Plain()
    calls = Callbacks([one, plain], view())
    for event in EVENTS:
        calls.step(1, 2, 0.5) if event == "step" else calls.call(event)
    assert [e for e, *_ in one.seen] == list(EVENTS) and one.seen[1:] == [(e, 1, 2) for e in EVENTS[1:]]
    assert calls.run.stop_asked and calls.run.loss == 0.5


def test_a_number_that_is_not_measured_is_named_with_the_way_to_get_it():
    numbers = Numbers(train_loss=0.5)
    with pytest.raises(KeyError, match=r"'val_loss' is not measured \(there are: train_loss\); add 'loss' to metrics"):
        numbers["val_loss"]
    assert numbers["train_loss"] == 0.5 and numbers.get("val_loss") is None


def test_states_go_to_the_callbacks_of_the_same_places():
    one, other = All(), All()
    one.seen = [("step", 0, 0)]
    states = Callbacks([one, Plain()], view()).state()
    Callbacks([other, Plain()], view()).load(states)
    assert other.seen == one.seen
    third = All()
    Callbacks([third], view()).load(states)
    assert third.seen == [], "callbacks were added or left out: each begins anew"


def test_the_first_rank_logs_numbers_and_texts():
    seen = []
    view(0, seen.append).log(a=torch.tensor(2.0), b="text", c=3)
    view(1, seen.append).log(a=1)
    assert seen == [Logged(0, 0, {"a": 2.0, "b": "text", "c": 3})]
    with pytest.raises(mr.InputError, match="a callback logs 'x', a list; expected a number or a text"):
        view().log(x=[1])


def update_of(schedule="constant", groups=()):
    model = torch.nn.Linear(2, 2)
    train = Train(lr=0.1, schedule=Schedule(name=schedule, factor=0.5, every=1), groups=list(groups), optimizer="sgd")

    def optimizer(parameters):
        own = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.01}]
        return torch.optim.SGD(own if groups else parameters, lr=0.1)

    rules = StepRules(0, "multiclass", "float32", Solo(), optimizer)
    return PhaseOptimizer(UpdatePart("multiclass", train), SeedWeightedMean(), rules, model, ScheduleSpan(0, 9, 1))


def rates(update):
    return [group["lr"] for group in update.optimizer.param_groups]


def test_a_learning_rate_that_is_set_scales_all_groups_and_the_rest_of_the_schedule():
    run = view()
    run.phase_optimizer = update_of("step", [{"match": "bias", "lr": 0.01}])
    run.phase_optimizer.step(0, 0, [])
    run.lr = 0.05
    assert rates(run.phase_optimizer) == pytest.approx([0.05, 0.005])
    run.phase_optimizer.step(1, 0, [])
    assert run.lr == pytest.approx(0.025) and rates(run.phase_optimizer) == pytest.approx([0.025, 0.0025])
    again = update_of("step", [{"match": "bias", "lr": 0.01}])
    again.load_state_dict(run.phase_optimizer.state_dict())
    again.step(2, 0, [])
    assert rates(again) == pytest.approx([0.0125, 0.00125]), "a resumed run goes on from it"


def test_a_rate_of_nothing_can_be_left_again():
    run = view()
    run.phase_optimizer = update_of()
    run.lr = 0
    assert rates(run.phase_optimizer) == [0]
    run.lr = 0.2
    assert rates(run.phase_optimizer) == [0.2]
    for wrong in (-1, "much", float("nan"), True):
        with pytest.raises(mr.InputError, match="a callback set lr"):
            run.lr = wrong
