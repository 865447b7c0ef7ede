"""What is trained when."""

from dataclasses import dataclass

from torch import nn

from ..stages.base import Phase


@dataclass(frozen=True)
class Epochs:
    """One phase: the whole model, on one partitioning, for all epochs."""

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """See `SchedulePolicy.phases`."""
        return (Phase(0, 0, epochs),)

    def begin(self, phase: Phase, model: nn.Module) -> nn.Module:
        """See `SchedulePolicy.begin`."""
        return model
