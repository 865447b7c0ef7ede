"""A table of learnt features, shared out over ranks: rows travel to the ranks that read them, gradients back."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.array_kinds import IdArray, Int32Array, IntArray
from ...storage.features import FeatureStore
from ...storage.optional import when_present
from ...storage.store.full_disk import new_npy
from ..comm.base import Group
from ..kernels.row_steps import add_rows, number_rows
from ..memory.lazy_rows import LazyRows
from ..random import Purpose, draw_word, node_words, stream
from .optimizers import OPTIMIZERS

PIECE_BYTES = 64 << 20
"""Rows that ranks hand over at a time where all of them are gathered."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of some rows of a table: `sums` times `factor`."""

    ids: Tensor
    """int64 [n], distinct, in [0, N)."""
    sums: Tensor
    """[n, D]."""
    factor: float


class LearnedTable:
    """[V, D] numbers that train with the model. Each rank owns a range of rows, with the optimiser's state of those.

    The rank that trains on a minibatch asks the owners for its rows and sends them their gradients after the backward
    pass. An owner sums what it gets, divides by the seeds of the step, and steps: only these rows change. The result
    does not depend on the number of ranks, up to rounding.
    """

    def __init__(
        self,
        num_nodes: int,
        width: int,
        dtype: torch.dtype,
        seed: int,
        group: Group,
        optimizer: str = "adagrad",
        lr: float = 0.01,
        bounds: Sequence[int] | None = None,
        names: IdArray | None = None,
        own_only: bool = False,
        start: FeatureStore | None = None,
        device: torch.device | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        """
        Args:
            num_nodes: V.
            width: D.
            dtype: of the numbers.
            seed: of the initial rows, each a function of it and the node.
            group: the ranks.
            optimizer: a key of `OPTIMIZERS`.
            lr: learning rate.
            bounds: P+1 ascending cuts of the nodes, one rank's after the other's; by default of equal size.
            names: int64 [N], the dataset's own numbers of this rank's nodes, on all ranks if nodes are renumbered:
                files and checkpoints are in their order.
            own_only: ranks take rows of their own nodes and no others, so that steps need no messages.
            start: [V, D], rows to begin with, by the dataset's own numbers; by default `initial_rows`.
            device: has the rows and their optimiser's state in its memory; None: the host has.
            weight_decay: factor of a row that is added to its gradient in each step that reads it.
        """
        self.num_nodes, self.width, self.group, self._weight_decay = num_nodes, width, group, weight_decay
        self.bounds = list(bounds or [r * num_nodes // group.size for r in range(group.size + 1)])
        """P+1 cuts of the nodes: rank r owns [bounds[r], bounds[r + 1])."""
        self.first, self.last = self.bounds[group.rank], self.bounds[group.rank + 1]
        nodes = np.arange(self.first, self.last) if names is None else names
        rows = initial_rows(nodes, width, dtype, seed) if start is None else torch.from_numpy(start.gather(nodes))
        self.rows = rows.to(dtype).to(device or "cpu")
        """[last - first, D], the rows of this rank."""
        self._shared = group.size > 1 and not own_only
        self._names = when_present(torch.from_numpy, names)
        self._ends = torch.tensor(self.bounds[1:], device=device)
        self._optimizer = OPTIMIZERS[optimizer](self.rows, lr)
        self._gradients: Gradients | None = None
        self._place: Int32Array | None = None
        self._taken: list[tuple[Tensor, Tensor]] = []
        self._best: Tensor | None = None

    def take(self, nodes: IntArray | Tensor) -> Tensor:
        """[n, D], the rows of `nodes`, an array or a tensor anywhere, whose gradient `sum_gradients` uses. All ranks
        call this at once; `nodes` may be empty."""
        ids = torch.as_tensor(nodes).to(self.rows.device, torch.int64)
        rows = self.read(ids).requires_grad_()
        if len(ids):
            self._taken.append((ids, rows))
        return rows

    def sum_gradients(self, count: float) -> None:
        """Send the gradients of all rows taken since the last step to their owners, and divide their sums by `count`,
        the seeds of the step over all ranks; 0 leaves no gradients. All ranks call this at once."""
        taken, self._taken = [(ids, rows.grad) for ids, rows in self._taken], []
        if not count:
            return
        known = [(ids, grad) for ids, grad in taken if grad is not None]
        ids = _joined([i for i, _ in known], self._ends[:0])
        grads = _joined([g for _, g in known], self.rows.new_empty(0, self.width))
        if self._shared:
            if len(known) > 1:
                ids, grads = summed(ids, grads)
            order, parts = self._by_owner(ids)
            sent = list(grads[order].split([len(p) for p in parts]))
            ids = torch.cat(self.group.all_to_all(parts, "control"))
            grads = torch.cat(self.group.all_to_all(sent, "gradients"))
        own = Gradients(*self._summed(ids - self.first, grads.contiguous()), 1 / count)
        if self._weight_decay:
            decayed = self._own(own.ids + self.first).mul_(self._weight_decay * count)
            own = replace(own, sums=own.sums + decayed)
        self._gradients = own

    def gradient_norm(self) -> float:
        """Norm of the gradient of all ranks' rows, of any rank. All ranks call this at once."""
        square, own = torch.zeros(1, dtype=torch.float64), self._gradients
        if own is not None:
            square += own.sums.double().square().sum().cpu() * own.factor**2
        if self.group.size > 1:
            self.group.all_reduce(square, "control")
        return float(square.sqrt())

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradients of this rank's rows."""
        if self._gradients is not None:
            self._gradients = replace(self._gradients, factor=self._gradients.factor * factor)

    def step(self, factor: float = 1.0) -> None:
        """Step along the gradients of this rank's rows, if there are any, with `factor` times the learning rate."""
        if (own := self._gradients) is not None:
            self._optimizer.step(own.ids, own.sums, own.factor, factor)
            self._gradients = None

    def keep_best(self) -> None:
        """Keep the present rows as those of the best epoch."""
        self._best = self.rows.clone()

    def use_best(self) -> None:
        """Go back to the rows of `keep_best`, if there are any."""
        if self._best is not None:
            self.rows.copy_(self._best)

    def state(self) -> dict[str, Any]:
        """All rows, those of the best epoch and the optimiser's state, on rank 0; other ranks have nothing of use. All
        ranks call this at once."""
        with self.group.counting("evaluation"):
            return {
                "rows": self._whole(self.rows),
                "best": when_present(self._whole, self._best),
                "optimizer": {
                    "step": self._optimizer.steps,
                    **{k: self._whole(v) for k, v in self._optimizer.state.items()},
                },
            }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state` that any number of ranks has made."""

        def own(whole: Tensor) -> Tensor:
            return whole[self.first : self.last].clone() if self._names is None else whole[self._names]

        self.rows.copy_(own(state["rows"]))
        self._best = None if state["best"] is None else own(state["best"])
        # Earlier versions have torch's own state.
        self._optimizer.steps = int(state["optimizer"].get("step", 0))
        for name, value in self._optimizer.state.items():
            value.copy_(own(state["optimizer"][name]))

    def write(self, path: Path) -> None:
        """Write all rows into an ``.npy`` file, as a whole or not at all. All ranks call this at once, the first one
        writes, and the file is there for all of them."""
        with self.group.counting("evaluation"):
            own, aside = self.rows, path.with_name(f".writing-{path.name}")
            file = None
            if self.group.rank == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
                shape = self.num_nodes, self.width
                file = new_npy(aside, own[:0].cpu().numpy().dtype, shape)
            for nodes, rows in self._gather(own):
                assert file is not None
                file[nodes] = rows.numpy()
            if file is not None:
                file.flush()
                os.replace(aside, path)
            self.group.any(False)

    def read(self, ids: Tensor) -> Tensor:
        """[n, D], the rows of `ids`, int64 [n]. All ranks call this at once; there may be no ids."""
        if not self._shared:
            return self._own(ids)
        order, parts = self._by_owner(ids)
        asked = self.group.all_to_all(parts, "control")
        rows = self.rows.new_empty(len(ids), self.width)
        rows[order] = torch.cat(self.group.all_to_all([self._own(a) for a in asked], "features"))
        return rows

    def _own(self, ids: Tensor) -> Tensor:
        """[n, D], rows of this rank."""
        if self.rows.device.type != "cpu":
            return self.rows.index_select(0, ids - self.first)
        return LazyRows(self.rows.numpy(), (ids - self.first).numpy()).gathered()

    def _summed(self, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct ones of this rank's `ids`, in [0, N), and the sum of the rows of each, in the order given."""
        if self.rows.device.type != "cpu":
            return summed(ids, rows)
        if self._place is None:
            self._place = np.full(len(self.rows), -1, np.int32)
        distinct, where = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
        count = number_rows(ids.numpy(), self._place, distinct, where)
        if count == len(ids):
            return ids, rows
        sums = rows.new_zeros(count, self.width)
        add_rows(where, rows.numpy(), sums.numpy())
        return torch.from_numpy(distinct[:count]), sums

    def _by_owner(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The order of `ids` by owner, and those of each owner."""
        owner = torch.bucketize(ids, self._ends, right=True)
        order = torch.argsort(owner, stable=True)
        return order, list(ids[order].split(torch.bincount(owner, minlength=self.group.size).tolist()))

    def _whole(self, own: Tensor) -> Tensor:
        """[V, D] on rank 0, from the rows of each rank."""
        if self.group.size == 1:
            return own.cpu()
        whole = torch.empty((self.num_nodes if self.group.rank == 0 else 0, self.width), dtype=own.dtype)
        for nodes, rows in self._gather(own):
            whole[nodes] = rows
        return whole

    def _gather(self, own: Tensor) -> Iterator[tuple[Any, Tensor]]:
        """(nodes as the dataset numbers them, their rows) in pieces, on rank 0 alone. All ranks go through it."""
        size = max(1, PIECE_BYTES // (self.width * own.itemsize))
        for source in range(self.group.size):
            first, last = self.bounds[source], self.bounds[source + 1]
            for at in range(first, last, size):
                of = slice(at - first, min(at + size, last) - first) if self.group.rank == source else slice(0)
                rows = self._at_first(own[of].cpu(), source, "features")
                nodes = slice(at, at + len(rows))
                if self._names is not None:
                    nodes = self._at_first(self._names[of], source, "control")
                if self.group.rank == 0:
                    yield nodes, rows

    def _at_first(self, rows: Tensor, source: int, kind: str) -> Tensor:
        """Rows of a rank on the first. All ranks call this at once."""
        if not source:
            return rows
        return self.group.all_to_all([rows, *[rows[:0]] * (self.group.size - 1)], kind)[source]


def initial_rows(nodes: IdArray, width: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Rows of some nodes, uniform in ±sqrt(3 / D): their mean square norm is 1. A function of the seed and the node as
    the dataset numbers it, whoever owns it."""
    words = node_words(stream(seed, Purpose.INIT, 1), nodes)
    rows, bound = torch.empty(len(nodes), width, dtype=dtype), (3 / width) ** 0.5
    for column in range(width):
        uniform = (draw_word(words, column) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        rows[:, column] = torch.from_numpy((2 * uniform - 1) * bound)
    return rows


def summed(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids, ascending, and the sum of the rows of each, in the order given."""
    distinct, place = torch.unique(ids, return_inverse=True)
    sums = rows.new_zeros(len(distinct), rows.shape[1])
    if rows.device.type == "cpu":
        return distinct, sums.index_add_(0, place, rows)
    # On a device that would sum in any order.
    return distinct, sums.index_put_((place,), rows, accumulate=True)


def _joined(lists: list[Tensor], none: Tensor) -> Tensor:
    """All of them, one after the other; `none` if there are none."""
    return lists[0] if len(lists) == 1 else torch.cat([none, *lists])
