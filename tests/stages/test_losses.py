"""Named losses: values and gradients are those of plain torch in double precision, and labels that are not known add
nothing."""

import pytest
import torch
from torch.nn import functional as F

from millrace.stages.forward_backward import summed_loss
from millrace.stages.losses import LOSSES, NamedLoss
from millrace.storage.errors import InputError

N, C = 12, 4


def rows(task, seed=0):
    generator = torch.Generator().manual_seed(seed)
    width = 1 if task == "binary" else C
    out = (3 * torch.randn(N, width, generator=generator, dtype=torch.float64)).requires_grad_()
    if task in ("multiclass", "binary"):
        return out, torch.randint(0, 2 if task == "binary" else C, (N,), generator=generator)
    y = torch.randn(N, C, generator=generator, dtype=torch.float64)
    return out, (y > 0).double() if task == "multilabel" else y


def close(loss, out, y, expected):
    """The loss [B] and its gradient are those of `expected`, a function of the same outputs."""
    weights = torch.linspace(0.5, 2, N, dtype=torch.float64)
    (got,) = torch.autograd.grad((loss(out, y) * weights).sum(), out)
    want = expected(out)
    (gradient,) = torch.autograd.grad((want * weights).sum(), out)
    torch.testing.assert_close(loss(out, y), want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got, gradient, rtol=1e-12, atol=1e-12)


WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64)


def true_probability(out, y):
    return out.softmax(1)[torch.arange(N), y]


def test_losses_of_classes():
    out, y = rows("multiclass")
    close(NamedLoss("multiclass", "cross_entropy"), out, y, lambda o: -true_probability(o, y).log())
    weighted = NamedLoss("multiclass", "cross_entropy", WEIGHTS)
    close(weighted, out, y, lambda o: -WEIGHTS[y] * true_probability(o, y).log())
    focal = NamedLoss("multiclass", "focal", WEIGHTS, gamma=1.5)
    close(
        focal,
        out,
        y,
        lambda o: -WEIGHTS[y] * (1 - true_probability(o, y)) ** 1.5 * true_probability(o, y).log(),
    )
    smooth = 0.1 / C + 0.9 * F.one_hot(y, C).double()
    close(
        NamedLoss("multiclass", "cross_entropy", label_smoothing=0.1),
        out,
        y,
        lambda o: -(smooth * o.log_softmax(1)).sum(1),
    )
    weighted = NamedLoss("multiclass", "cross_entropy", WEIGHTS, label_smoothing=0.1)
    close(weighted, out, y, lambda o: F.cross_entropy(o, y, WEIGHTS, reduction="none", label_smoothing=0.1))


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_losses_of_bits(task):
    out, y = rows(task)
    bits = y.double()[:, None] if task == "binary" else y
    positive = torch.tensor([2.5], dtype=torch.float64) if task == "binary" else WEIGHTS

    def bce(o, factor=1.0):
        return -(factor * bits * o.sigmoid().log() + (1 - bits) * (-o).sigmoid().log())

    close(NamedLoss(task, "bce"), out, y, lambda o: bce(o).mean(1))
    close(NamedLoss(task, "bce", pos_weight=positive), out, y, lambda o: bce(o, positive).mean(1))
    wrong = lambda o: torch.where(bits > 0, (-o).sigmoid(), o.sigmoid())  # noqa: E731
    factor = torch.where(bits > 0, positive, 1)
    focal = NamedLoss(task, "focal", pos_weight=positive, gamma=2.0)
    close(focal, out, y, lambda o: (factor * wrong(o) ** 2 * bce(o)).mean(1))


def test_binary_losses_weigh_classes():
    out, y = rows("binary")
    loss = NamedLoss("binary", "bce", WEIGHTS[:2])
    close(
        loss, out, y, lambda o: WEIGHTS[y] * F.binary_cross_entropy_with_logits(o[:, 0], y.double(), reduction="none")
    )


def huber(error, delta):
    size = error.abs()
    return torch.where(size <= delta, error**2 / 2, delta * (size - delta / 2))


@pytest.mark.parametrize(
    ("name", "of"), [("mse", lambda e: e**2), ("mae", lambda e: e.abs()), ("huber", lambda e: huber(e, 0.7))]
)
def test_losses_of_values_leave_out_what_is_not_known(name, of):
    out, y = rows("regression")
    loss = NamedLoss("regression", name, delta=0.7)
    close(loss, out, y, lambda o: of(o - y).mean(1))
    known = torch.rand(N, C, generator=torch.Generator().manual_seed(1)) > 0.4
    known[0] = False
    gaps = torch.where(known, y, torch.nan)
    close(loss, out, gaps, lambda o: (of(o - y) * known).sum(1) / C)
    assert loss(out, gaps)[0] == 0


def test_bits_that_are_not_known_add_nothing():
    out, y = rows("multilabel")
    known = torch.rand(N, C, generator=torch.Generator().manual_seed(1)) > 0.4
    gaps = torch.where(known, y, torch.nan)
    bce = lambda o: F.binary_cross_entropy_with_logits(o, y, reduction="none")  # noqa: E731
    close(NamedLoss("multilabel", "bce"), out, gaps, lambda o: (bce(o) * known).sum(1) / C)


def test_a_sure_right_answer_has_a_finite_gradient():
    out = torch.tensor([[800.0, -800.0]], requires_grad=True)
    loss = NamedLoss("multiclass", "focal", gamma=1.0)(out, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss.sum(), out)
    assert loss.item() == 0 and torch.equal(gradient, torch.zeros(1, 2))


@pytest.mark.parametrize("task", list(LOSSES))
def test_the_default_of_a_task_is_what_training_sums(task):
    out, y = rows(task)
    weights = torch.linspace(0, 1, N)
    named = NamedLoss(task, LOSSES[task][0])
    torch.testing.assert_close(summed_loss(out, y, task), named(out, y).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        summed_loss(out, y, task, weights), named(out, y) @ weights.double(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_outputs_of_another_width_are_refused(task):
    out, y = rows(task)
    with pytest.raises(InputError, match=rf"gives \[12, {out.shape[1] + 1}\] for labels \[12, {out.shape[1]}\]"):
        NamedLoss(task, LOSSES[task][0])(torch.cat([out, out[:, :1]], 1), y)


def test_losses_of_pairs():
    out, y = rows("multilabel")[0], torch.zeros(N, dtype=torch.int64)
    labels = torch.zeros(N, C, dtype=torch.float64)
    labels[:, 0] = 1
    close(
        NamedLoss("link", "bce"), out, y,
        lambda o: F.binary_cross_entropy_with_logits(o, labels, reduction="none").mean(1),
    )  # fmt: skip
    close(NamedLoss("link", "margin", margin=0.3), out, y, lambda o: (0.3 - o[:, :1] + o[:, 1:]).clamp(min=0).mean(1))
    close(
        NamedLoss("link", "infonce", temperature=0.5), out, y, lambda o: F.cross_entropy(o / 0.5, y, reduction="none")
    )
    for weighted, factor in ({"pos_weight": torch.tensor([2.5])}, 2.5), ({"balanced": True}, C - 1):
        weights = torch.ones(C, dtype=torch.float64)
        weights[0] = factor
        close(
            NamedLoss("link", "bce", **weighted), out, y,
            lambda o, w=weights: (F.binary_cross_entropy_with_logits(o, labels, reduction="none") * w).mean(1),
        )  # fmt: skip
    # The default of the task.
    assert torch.equal(summed_loss(out, y, "link"), NamedLoss("link", "bce")(out, y).sum())
