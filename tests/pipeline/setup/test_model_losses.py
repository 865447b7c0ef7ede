"""The loss of a run follows from its task and ``train.loss``; what does not go together is one sentence."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

import millrace as mr
from millrace.pipeline.config.schema import LossOptions
from millrace.pipeline.custom.own_code import OwnCode, own_code
from millrace.pipeline.datasets import ReadOptions
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.model import Outline, loss_of
from millrace.pipeline.setup.prepare import prepare
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

SPEC = "sbm:nodes=90,classes=3,degree=4,features=5,train=0.5"
SPECS = {
    "multiclass": SPEC,
    "binary": SPEC.replace("classes=3", "classes=2"),
    "regression": f"{SPEC},targets=2",
}


def outline_of(task, **changed):
    if task == "multilabel":
        counts = [[1, 0, 4], [5, 5, 5]]
        return Outline("d", 5, 3, "multilabel", {"train": 5, "val": 1, "test": 1}, counts, **changed)
    dataset = mr.open_dataset(SPECS[task], options=ReadOptions(task=None if task == "multiclass" else task))
    return Outline.from_dataset(dataset, balanced=True)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_a_default_is_no_function_so_that_its_bits_stay(task):
    name = "cross_entropy" if task == "multiclass" else "bce"
    for options in (LossOptions(), LossOptions(name=name)):
        assert loss_of(options, outline_of(task), OwnCode()) is None
    if task == "multilabel":
        assert loss_of(LossOptions(), outline_of(task, has_unknown=True), OwnCode()).name == "bce"


@pytest.mark.parametrize(("task", "name"), [("binary", "bce"), ("regression", "mse")])
def test_other_tasks_have_a_named_default(task, name):
    loss = loss_of(LossOptions(), outline_of(task), OwnCode())
    assert (loss.task, loss.name) == (task, name)


def test_balanced_weights_are_those_of_sklearn():
    dataset = mr.open_dataset(SPEC, split="fraction:0.3,0.1", seed=4)
    y = dataset.labels[dataset.split.train]
    loss = loss_of(LossOptions(class_weights="balanced"), Outline.from_dataset(dataset, balanced=True), OwnCode())
    want = compute_class_weight("balanced", classes=np.arange(3), y=y)
    np.testing.assert_allclose(loss.class_weights, want, rtol=1e-15)


def test_balanced_weights_of_bits_are_negatives_for_each_positive():
    loss = loss_of(LossOptions(pos_weight="balanced"), outline_of("multilabel"), OwnCode())
    assert loss.pos_weight.tolist() == [4.0, 1.0, 0.25]
    binary = outline_of("binary")
    positive, total = binary.train_counts[0][1], binary.splits["train"]
    loss = loss_of(LossOptions(pos_weight="balanced"), binary, OwnCode())
    assert loss.pos_weight.tolist() == [(total - positive) / positive]


BAD = [
    ("regression", {"name": "cross_entropy"}, "is 'cross_entropy', but the task is regression; expected mse"),
    ("regression", {"name": "bce"}, "expected mse or mae or huber"),
    ("multiclass", {"name": "mse"}, r"train.loss is 'mse', but the task is multiclass; .*\(read.task\)"),
    ("multiclass", {"name": "bce"}, "expected cross_entropy or focal"),
    ("multiclass", {"class_weights": [1.0, 2.0]}, "train.loss.class_weights has 2 numbers; the dataset has 3 classes"),
    ("binary", {"pos_weight": [1.0, 2.0]}, "train.loss.pos_weight has 2 numbers"),
    ("multilabel", {"class_weights": "balanced"}, "use train.loss.pos_weight"),
    ("multilabel", {"label_smoothing": 0.1}, "but the loss is 'bce'; it goes with cross_entropy"),
    ("binary", {"label_smoothing": 0.1}, "label_smoothing is 0.1, but the loss is 'bce'"),
    ("multiclass", {"name": "focal", "label_smoothing": 0.1}, "but the loss is 'focal'"),
    ("multiclass", {"pos_weight": 2.0}, "is 2.0, but the loss is 'cross_entropy'; it goes with bce or"),
    ("multiclass", {"gamma": 3.0}, "gamma is 3.0, but the loss is 'cross_entropy'; it goes with focal"),
    ("regression", {"delta": 3.0}, "delta is 3.0, but the loss is 'mse'; it goes with huber"),
    ("regression", {"class_weights": "balanced"}, "class_weights is balanced, but the loss is 'mse'"),
]


@pytest.mark.parametrize(("task", "options", "sentence"), BAD)
def test_options_that_do_not_go_together_are_refused(task, options, sentence):
    with pytest.raises(InputError, match=sentence):
        loss_of(LossOptions(**options), outline_of(task), OwnCode())


def test_options_would_not_reach_a_loss_of_ones_own():
    code = own_code(loss=lambda out, y: F.cross_entropy(out, y, reduction="none"))
    assert loss_of(LossOptions(), outline_of("multiclass"), code) is code.loss
    with pytest.raises(InputError, match=r"train.loss.name, train.loss.gamma would not reach the loss"):
        loss_of(LossOptions(name="focal", gamma=3.0), outline_of("multiclass"), code)


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        ("regression", {"metrics": ["auc"]}, "has 'auc', but the task is regression; expected one of rmse, mae"),
        ("multiclass", {"metrics": ["rmse"]}, "train.metrics has 'rmse', but the task is multiclass"),
        ("regression", {"monitor": "accuracy"}, "train.monitor is 'accuracy'; expected one of rmse, mae, r2, loss"),
        ("multiclass", {"monitor": "r2"}, r"expected one of accuracy, loss, macro_f1, .*\(the task is multiclass\)"),
        (
            "regression",
            {"system": "retexo", "retexo": {"distill": 0.5}},
            "retexo.distill is 0.5, which needs the default loss of classes without options",
        ),
        (
            "multiclass",
            {"system": "retexo", "retexo": {"distill": 0.5}, "loss": {"class_weights": "balanced"}},
            "retexo.distill is 0.5, which needs the default loss of classes without options; drop one",
        ),
    ],
)
def test_metrics_and_systems_that_do_not_go_with_the_task_are_refused(task, options, sentence):
    sampled = {} if "system" in options else {"fanout": [2]}
    job = configure({}, hidden=4, layers=1, **sampled, **options)
    with pytest.raises(InputError, match=sentence):
        prepare(job, mr.open_dataset(SPECS[task]))


def test_a_named_loss_changes_the_fingerprint_and_the_default_does_not():
    dataset = mr.open_dataset(SPEC)

    def fingerprint(**options):
        return prepare(configure({}, fanout=[2], hidden=4, layers=1, **options), dataset).fingerprint

    plain = fingerprint()
    assert fingerprint(loss={}) == plain != fingerprint(loss="focal")
    assert fingerprint(loss="focal") != fingerprint(loss={"name": "focal", "gamma": 3})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "loss=mse"], "train.loss is 'mse', but the task is multiclass"),
        (["--set", "loss=msee"], "'train.loss.name' is 'msee'"),
        (["--set", "train.loss.class_weights=[1, 2]"], "has 2 numbers; the dataset has 3 classes"),
        (["--set", "train.loss.class_weights=[1, -2, 1]"], "expected numbers of at least 0"),
        (["--set", "train.loss.label_smoothing=2"], "train.loss.label_smoothing"),
        (["--set", "task=binary"], "3 classes (multiclass), which do not fit read.task=binary"),
        (["--set", "task=regresion"], "'read.task' is 'regresion': input should be"),
        (["--set", 'metrics=["rmse"]'], "train.metrics has 'rmse'"),
        (["--criterion", "mse"], "give --set train.loss=..."),
    ],
)
def test_the_command_line_says_so_in_a_sentence_and_writes_nothing(tmp_path, words, sentence):
    status, _, error = command("run", "--dataset", SPEC, "--out", tmp_path / "run", *words)
    assert status == 2 and sentence in error, error
    assert not (tmp_path / "run").exists()


def test_training_with_balanced_weights_takes_the_steps_of_plain_torch(tmp_path):
    """One layer that reads no neighbours, all seeds in a step: torch trains it beside the run."""
    dataset = mr.open_dataset(SPEC, split="fraction:0.3,0.1", seed=4)
    steps, lr = 3, 0.3

    class Alone(torch.nn.Module):
        num_layers = 1

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(5, 3)

        def layer(self, i, neighbourhood, h):
            return self.linear(mr.destinations(neighbourhood, h))

    mr.run(
        dataset, model=Alone(), loss={"class_weights": "balanced", "label_smoothing": 0.1}, optimizer="sgd", lr=lr,
        epochs=steps, fanout=[1], batch_size=1000, dtype="float64", threads=1, verbose=False, out=tmp_path / "run",
        train={"evaluate_every": 0},
    )  # fmt: skip
    model = Alone().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    ids = dataset.split.train
    x, y = torch.from_numpy(dataset.features.gather(ids).astype("f8")), torch.from_numpy(dataset.labels)[ids]
    weight = torch.from_numpy(compute_class_weight("balanced", classes=np.arange(3), y=y.numpy()))
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model.linear(x), y, weight, reduction="none", label_smoothing=0.1).mean().backward()
        optimizer.step()
    saved = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=0, atol=1e-12)
