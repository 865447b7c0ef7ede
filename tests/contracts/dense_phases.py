"""RETEXO on dense matrices: one process, autograd, and nothing from Millrace except the initial parameters.

Written from the paper (arXiv 2302.13053) and its authors' code, with the coefficients of the whole graph in place of
those of its pieces.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

F64 = torch.float64
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "elu": torch.nn.functional.elu,
    "none": lambda h: h,
}


@dataclass(frozen=True, eq=False)
class Matrices:
    """A graph as matrices [V, V] with a row for each destination: the weight of each edge, and the number of edges."""

    A: Tensor
    N: Tensor
    loop: Tensor
    """[V], weight of each node's last self loop; 1 without any."""

    @classmethod
    def of(cls, src: Any, dst: Any, weight: Any, n: int, present: Any = None) -> "Matrices":
        """The subgraph induced by `present` nodes; absent nodes stay as rows without edges."""
        (A, N), loop = torch.zeros(2, n, n, dtype=F64), torch.ones(n, dtype=F64)
        for e, (u, v) in enumerate(zip(src, dst)):
            if present is None or (present[u] and present[v]):
                A[v, u] += 1.0 if weight is None else float(weight[e])
                N[v, u] += 1
                if u == v and weight is not None:
                    loop[v] = float(weight[e])
        return cls(A, N, loop)


def convolve(kind: str, p: Mapping[str, Tensor], g: Matrices, h: Tensor) -> Tensor:
    """The published formula of one convolution: gcn, sage, sage-max or gat."""
    eye = torch.eye(len(h), dtype=F64)
    if kind == "gcn":
        A = g.A * (1 - eye) + torch.diag(g.loop)
        d = torch.where(A.sum(1) > 0, A.sum(1) ** -0.5, 0.0)
        return torch.diag(d) @ A @ torch.diag(d) @ h @ p["linear.weight"].T + p["bias"]
    if kind == "gat":
        heads, width = p["a_src"].shape
        z = (h @ p["linear.weight"].T).view(-1, heads, width)
        e = torch.nn.functional.leaky_relu((z * p["a_dst"]).sum(-1)[:, None] + (z * p["a_src"]).sum(-1)[None], 0.2)
        alpha = (g.N * (1 - eye) + eye)[..., None] * torch.exp(e - e.detach().amax(1, keepdim=True))
        out = torch.einsum("vuh,uhd->vhd", alpha / alpha.sum(1, keepdim=True), z)
        return (out.flatten(1) if len(p["bias"]) == heads * width else out.mean(1)) + p["bias"]
    if kind == "sage":
        near = torch.diag(torch.where(g.A.sum(1) > 0, 1 / g.A.sum(1), 0.0)) @ g.A @ h
    else:
        pooled = torch.relu(h @ p["pool.weight"].T + p["pool.bias"])
        rows = [
            pooled[g.N[v] > 0].amax(0) if g.N[v].any() else torch.zeros(pooled.shape[1], dtype=F64)
            for v in range(len(h))
        ]
        near = torch.stack(rows)
    return h @ p["own.weight"].T + p["own.bias"] + near @ p["neighbours.weight"].T


def as_sent(h: Tensor, rounding: str) -> Tensor:
    """Rows after rounding, as their readers see them."""
    if rounding == "full":
        return h
    a = h.detach().numpy()
    if rounding == "fp16":
        # Through float32, as torch does.
        return torch.from_numpy(np.clip(a, -65504, 65504).astype(np.float32).astype(np.float16).astype(np.float64))
    out = np.zeros_like(a)
    for i, row in enumerate(a):
        scale = np.float64(np.float32(np.abs(row).max(initial=0)) / np.float32(127))
        if scale > 0:
            out[i] = np.clip(np.rint(row / scale), -127, 127) * scale
    return torch.from_numpy(out)


@dataclass(frozen=True)
class Cut:
    """The way the model is cut into phases; see `Phases`."""

    kind: str
    layers: int
    base: bool
    propagate: str
    head: str
    rounding: str
    activation: str
    norm: str = "none"
    """``batch`` in place of the layer norm."""
    distill: float = 0.0


@dataclass
class Outcome:
    """Result of training."""

    losses: list[float] = field(default_factory=list)
    best_epochs: list[int] = field(default_factory=list)
    rows: list[dict[str, Tensor]] = field(default_factory=list)
    """Rows read by each phase, by graph."""
    state: dict[str, Tensor] = field(default_factory=dict)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    """Logits of the last phase for all nodes, on the validation graph."""


class Dense:
    """A model of phases over dense matrices."""

    def __init__(self, cut: Cut, state: Mapping[str, Tensor]) -> None:
        self.cut = cut
        self.p = {k: v.detach().clone() for k, v in state.items()}
        self.phases = ["base"] * cut.base + [str(i) for i in range(cut.layers)]

    def prefixes(self, k: int) -> tuple[str, ...]:
        name = self.phases[k]
        return ("base.",) if name == "base" else (f"convs.{name}.", f"norms.{name}.", f"heads.{name}.")

    def parameters(self, k: int) -> dict[str, Tensor]:
        """Parameters of one phase."""
        return {
            n: v
            for n, v in self.p.items()
            if n.startswith(self.prefixes(k)) and "running" not in n and "tracked" not in n
        }

    def outputs(self, k: int, g: Matrices, x: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits and hidden rows of phase k; with `rows`, a batch norm is in training and sees those."""
        c, name, p, act = self.cut, self.phases[k], self.p, ACTIVATIONS[self.cut.activation]
        last = k == len(self.phases) - 1
        if name == "base":
            hidden = act(x @ p["base.0.weight"].T + p["base.0.bias"])
            return hidden @ p["base.1.weight"].T + p["base.1.bias"], hidden
        prefix = f"convs.{name}."
        z = convolve(c.kind, {n.removeprefix(prefix): v for n, v in p.items() if n.startswith(prefix)}, g, x)
        if c.head == "none" or (c.propagate == "hidden" and last):
            return z, None
        hidden = act(self.normed(name, z, rows)) if c.head == "normed" else act(z)
        return hidden @ p[f"heads.{name}.weight"].T + p[f"heads.{name}.bias"], hidden

    def normed(self, name: str, z: Tensor, rows: Tensor | None) -> Tensor:
        weight, bias = self.p[f"norms.{name}.weight"], self.p[f"norms.{name}.bias"]
        if self.cut.norm != "batch":
            return (z - z.mean(1, keepdim=True)) / torch.sqrt(
                z.var(1, unbiased=False, keepdim=True) + 1e-5
            ) * weight + bias
        mean, var = (self.p[f"norms.{name}.running_{what}"] for what in ("mean", "var"))
        if rows is not None:
            seen = z[rows]
            for running, new in ((mean, seen.mean(0)), (var, seen.var(0))):
                running.copy_(0.9 * running + 0.1 * new.detach())
            mean, var = seen.mean(0), seen.var(0, unbiased=False)
        return (z - mean) / torch.sqrt(var + 1e-5) * weight + bias

    def unrounded(self, k: int, g: Matrices, x: Tensor) -> Tensor:
        """Rows that phase k passes on."""
        with torch.no_grad():
            logits, hidden = self.outputs(k, g, x)
        out = logits if self.cut.propagate == "logits" else hidden
        assert out is not None
        return out

    def said(self, k: int, handed_on: Tensor) -> Tensor:
        """Logits of the rows that phase k passes on, before rounding."""
        name = self.phases[k]
        head = "base.1" if name == "base" else f"heads.{name}"
        if self.cut.propagate == "logits":
            return handed_on.clone()
        return handed_on @ self.p[f"{head}.weight"].detach().T + self.p[f"{head}.bias"].detach()

    def infer(self, g: Matrices, x: Tensor) -> Tensor:
        """Logits of all nodes, from features only."""
        h = x if self.cut.base else as_sent(x, self.cut.rounding)
        for k in range(len(self.phases) - 1):
            h = as_sent(self.unrounded(k, g, h), self.cut.rounding)
        with torch.no_grad():
            return self.outputs(len(self.phases) - 1, g, h)[0]


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    """Loss summed over rows."""
    if y.ndim == 1:
        return -torch.log_softmax(logits, 1)[torch.arange(len(y)), y].sum()
    log = torch.nn.functional.logsigmoid
    return -(y * log(logits) + (1 - y) * log(-logits)).mean(1).sum() if len(y) else logits.sum() * 0


def probabilities(logits: Tensor, y: Tensor) -> Tensor:
    """Probabilities of classes, for labels of this kind, at temperature 1/2."""
    return torch.softmax(2 * logits, 1) if y.ndim == 1 else torch.sigmoid(2 * logits)


def divergence(logits: Tensor, target: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of each row with probabilities."""
    if y.ndim == 1:
        return -(target * torch.log_softmax(logits, 1)).sum(1)
    log = torch.nn.functional.logsigmoid
    return -(target * log(logits) + (1 - target) * log(-logits)).mean(1)


def merit_of(logits: Tensor, y: Tensor, select_by: str) -> float:
    if select_by == "val_loss":
        return -float(loss_of(logits, y)) / len(y)
    if y.ndim == 1:
        return float((logits.argmax(1) == y).double().mean())
    said, true = logits > 0, y > 0.5
    total = int(said.sum() + true.sum())
    return 2 * int((said & true).sum()) / total if total else 0.0


Step = Callable[[list[Tensor], Callable[[Tensor], Tensor], Tensor], float]
"""``step(leaves, summed_loss, ids)`` takes one step of one round on these train nodes, and returns the mean loss before
it."""


def together(optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Callable[[list[Tensor]], Step]:
    """Steps along one gradient of all train nodes a round."""

    def begin(leaves: list[Tensor]) -> Step:
        taken = optimizer(leaves)

        def step(leaves: list[Tensor], loss_of_ids: Callable[[Tensor], Tensor], ids: Tensor) -> float:
            if not len(ids):
                return 0.0
            taken.zero_grad()
            loss = loss_of_ids(ids) / len(ids)
            descend(loss, leaves)
            taken.step()
            return float(loss.detach())

        return step

    return begin


def descend(loss: Tensor, leaves: list[Tensor]) -> None:
    """Gradients, zero for leaves that nothing depends on."""
    for leaf, grad in zip(leaves, torch.autograd.grad(loss, leaves, allow_unused=True)):
        leaf.grad = torch.zeros_like(leaf) if grad is None else grad


def train(
    dense: Dense,
    graphs: dict[str, Matrices],
    x: Tensor,
    y: Tensor,
    split: Mapping[str, Tensor],
    epochs: int,
    begin: Callable[[list[Tensor]], Step],
    select_by: str,
    present: Tensor | None = None,
) -> Outcome:
    """Train phase after phase.

    Args:
        dense: the model; left with the best parameters.
        graphs: ``train`` and ``val``, which may be the same.
        x: [V, F].
        y: [V] or [V, C].
        split: ids of train, val.
        epochs: epochs of each training.
        begin: makes the function that takes steps, for each training.
        select_by: val_accuracy or val_loss.
        present: ids of the nodes present in training; None: all.
    """
    done, start, last = Outcome(), dict(dense.p), len(dense.phases) - 1
    rows = dict.fromkeys(graphs, x if dense.cut.base else as_sent(x, dense.cut.rounding))
    said: Tensor | None = None
    for k in range(last + 1):
        done.rows.append(rows)
        teacher = None if said is None else (said, torch.arange(len(x)) if present is None else present)
        dense.p = {n: start[n].detach().clone() if n.startswith(dense.prefixes(k)) else v for n, v in dense.p.items()}
        _train_once(dense, k, graphs, rows, y, split["train"], split["val"], epochs, begin, select_by, done, teacher)
        if k < last:
            found = {name: dense.unrounded(k, g, rows[name]) for name, g in graphs.items()}
            said = dense.said(k, found["train"]) if dense.cut.distill else None
            rows = {name: as_sent(h, dense.cut.rounding) for name, h in found.items()}
    with torch.no_grad():
        done.logits = dense.outputs(last, graphs["val"], rows["val"])[0]
    done.state = dense.p
    return done


def _train_once(
    dense: Dense,
    k: int,
    graphs: dict[str, Matrices],
    rows: dict[str, Tensor],
    y: Tensor,
    ids: Tensor,
    val: Tensor,
    epochs: int,
    begin: Callable[[list[Tensor]], Step],
    select_by: str,
    done: Outcome,
    teacher: tuple[Tensor, Tensor] | None = None,
) -> None:
    leaves = [v.requires_grad_() for v in dense.parameters(k).values()]
    step = begin(leaves)
    best, best_epoch, best_p = -np.inf, -1, None

    def of_labels(at: Tensor) -> Tensor:
        return loss_of(dense.outputs(k, graphs["train"], rows["train"], ids)[0][at], y[at])

    def of_both(at: Tensor) -> Tensor:
        assert teacher is not None
        said, present, share = *teacher, dense.cut.distill
        logits = dense.outputs(k, graphs["train"], rows["train"], at)[0]
        from_teacher = divergence(logits, probabilities(said, y), y)[present].mean()
        if not len(ids):
            return len(at) * from_teacher
        return len(at) * ((1 - share) * loss_of(logits[ids], y[ids]) / len(ids) + share * from_teacher)

    def told() -> float:
        """The loss that a run reports: every row counts the same, labels and teacher are mixed as in the gradient."""
        assert teacher is not None
        said, present, share = *teacher, dense.cut.distill
        of_label = torch.zeros(len(said), 1, dtype=F64)
        of_label[ids] = (1 - share) * len(present) / max(1, len(ids))
        label = torch.nn.functional.one_hot(y, said.shape[1]).to(F64) if y.ndim == 1 else y
        target = (of_label * label + share * probabilities(said, y)) / (of_label + share)
        with torch.no_grad():
            logits = dense.outputs(k, graphs["train"], rows["train"])[0]
        return float(divergence(logits, target, y)[present].mean()) if len(present) else 0.0

    for _ in range(epochs):
        loss = None if teacher is None else told()
        objective, at = (of_labels, ids) if teacher is None else (of_both, teacher[1])
        found = step(leaves, objective, at)
        done.losses.append(found if loss is None else loss)
        if len(val):
            with torch.no_grad():
                merit = merit_of(dense.outputs(k, graphs["val"], rows["val"])[0][val], y[val], select_by)
            if merit > best:
                best, best_epoch, best_p = merit, len(done.losses) - 1, _frozen(dense.p)
    done.best_epochs.append(best_epoch)
    dense.p = best_p or _frozen(dense.p)


def _frozen(p: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: v.detach().clone() for n, v in p.items()}
