"""The state of a run between two steps."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ...stages.messages import Validation
from ...storage.checkpoint import Cursor

POOLED = ("loss_sum", "loss_seeds", "minibatches", "sampled_edges")
"""Fields of `Progress` that each rank counts by itself. A checkpoint holds their sums over ranks."""
COUNTED = ("minibatches", "sampled_edges")
"""Fields in `POOLED` that count over the whole run. The others belong to the current epoch: a checkpoint hands their
sums to the leader."""


@dataclass
class Progress:
    """The state of a run between two steps. With the model and the optimiser, this is all that resuming needs."""

    cursor: Cursor = field(default_factory=lambda: Cursor(0, 0))
    best_merit: float = -math.inf
    """Merit of the best epoch so far. This and the next five are of the current phase, where each phase has a best
    epoch of its own."""
    best_accuracy: float = -1.0
    """-1 for a regression, whose metrics are in `best_values`."""
    best_epoch: int = -1
    best_state: dict[str, Any] = field(default_factory=dict)
    best_values: dict[str, float] = field(default_factory=dict)
    """Further metrics of the best epoch."""
    since_best: int = 0
    """Validations since the best epoch."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One record per epoch."""
    phases: list[dict[str, Any]] = field(default_factory=list)
    """One record per finished phase of a system that trains parts of the model one after another."""
    lost: list[dict[str, int]] = field(default_factory=list)
    """One record per rank that was lost while the others went on: see `result.Result.lost`."""
    ended: bool = False
    """True once a callback has ended training."""
    unvalidated: bool = False
    """True while the last epoch's parameters are yet to be validated, which needs all ranks."""
    loss_sum: float = 0.0
    """Sum of losses over this rank's seeds, in the current epoch."""
    loss_seeds: float = 0.0
    epoch_seconds: float = 0.0
    minibatches: int = 0
    sampled_edges: int = 0
    fetched: dict[str, int] = field(default_factory=dict)
    """Cache hits (`Fetcher.hit_counts`) since this process began."""
    pooled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    """Sums over all ranks at the last checkpoint. Every rank holds them, since any rank may be lost."""
    ledgers: list[list[int]] = field(default_factory=list)
    """Every rank's ledger at the last checkpoint."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Memory of this process: the graph, all features wherever they lie, and the tensors of a step."""

    def take(self, found: Validation, epoch: int, model: nn.Module) -> bool:
        """Record a validation, and keep the model's parameters if it is the best so far; True if it is."""
        if not found.merit > self.best_merit:
            self.since_best += 1
            return False
        self.best_merit, self.best_accuracy = found.merit, -1.0 if found.accuracy is None else found.accuracy
        self.best_values = dict(found.values)
        self.best_epoch, self.since_best = epoch, 0
        self.keep(model)
        return True

    def keep(self, model: nn.Module) -> None:
        """Keep the model's parameters as the best."""
        self.best_state = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def forget_best(self) -> None:
        """Start the search for the best epoch again."""
        self.best_merit, self.best_accuracy, self.best_epoch, self.since_best = -math.inf, -1.0, -1, 0
        self.best_state, self.best_values = {}, {}
