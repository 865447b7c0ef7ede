import pytest
import torch

from millrace.pipeline.config.optimizer import check_optimizer, make_optimizer, optimizer_kinds
from millrace.pipeline.config.schema import Train
from millrace.storage.errors import InputError


def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


@pytest.mark.parametrize("name", sorted(optimizer_kinds()))
def test_each_optimizer_takes_a_step(name):
    module = model()
    optimizer = make_optimizer(Train(optimizer=name), list(module.named_parameters()))
    before = [p.detach().clone() for p in module.parameters()]
    module(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    assert all(not torch.equal(p, q) for p, q in zip(module.parameters(), before))


def test_the_first_group_that_matches_counts():
    groups = [{"match": "0.weight", "lr": 0.5}, {"match": "0.*", "lr": 0.25, "weight_decay": 0.1}]
    made = make_optimizer(Train.model_validate({"groups": groups, "lr": 1.0}), list(model().named_parameters()))
    assert [(len(g["params"]), g["lr"], g["weight_decay"]) for g in made.param_groups] == [
        (1, 0.5, 0.0),
        (1, 0.25, 0.1),
        (2, 1.0, 0.0),
    ]


@pytest.mark.parametrize(
    ("train", "phrase"),
    [
        ({"optimizer": "adan"}, "train.optimizer is 'adan'; did you mean 'adam'?"),
        ({"optimizer": "lbfgs"}, "expected one of adadelta, adafactor, adagrad, adam"),
        ({"optimizer_options": {"momentum": 0.9}}, "train.optimizer_options has 'momentum'; Adam takes betas, eps"),
        ({"optimizer_options": {"lr": 0.9}}, "train.optimizer_options has 'lr'; set train.lr"),
        ({"optimizer": "sgd", "optimizer_options": {"nesterov": True}}, "which torch refuses: Nesterov momentum"),
        ({"optimizer_options": {"betas": 3}}, "which torch refuses"),
        ({"optimizer": "rprop"}, "train.optimizer is 'rprop'; did you mean"),
        ({"optimizer_options": {"capturable": True}}, "train.optimizer_options has 'capturable'; Adam takes"),
        ({"optimizer_options": {"differentiable": True}}, "train.optimizer_options has 'differentiable'; Adam takes"),
        ({"optimizer_options": {"betas": [0.9]}}, "which torch refuses"),
        ({"groups": [{"match": "head.*"}]}, "no parameter matches 'head.*'; there are 0.weight, 0.bias"),
    ],
)
def test_what_cannot_be_made_is_refused(train, phrase):
    with pytest.raises(InputError) as caught:
        check_optimizer(Train.model_validate(train), model())
    assert phrase in str(caught.value)
