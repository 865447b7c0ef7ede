"""A checkpoint converted for the ranks that go on from it, which need not be as many as wrote it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...stages.assignment import Steps
from ...storage.plural import counted
from ..config.schema import Train


@dataclass(frozen=True)
class Pace:
    """How many steps an epoch has, and how many minibatches a step."""

    minibatches_per_step: int
    """Over all ranks."""
    steps_per_epoch: int

    @classmethod
    def of(cls, steps: Steps) -> "Pace":
        """The pace of an epoch of these steps."""
        return cls(steps.per_step, len(steps))

    @classmethod
    def written(cls, state: Mapping[str, Any], train: Train, minibatches: int) -> "Pace":
        """Of the run that wrote a checkpoint's `state`. Earlier versions kept only a ledger for each rank, and a step
        is one minibatch of each unless the configuration says otherwise."""
        if "pace" in state:
            return cls(**state["pace"])
        return cls.of(Steps(minibatches, train.per_step(len(state["ledgers"]))))

    def position(self, steps: int, now: "Pace") -> tuple[int, int]:
        """Where a run stands that has taken `steps` steps and goes on at another pace.

        Returns: Steps in terms of `now`; and minibatches of the step that follows them that are trained already,
            because those were narrower or ended elsewhere.
        """
        if self == now:
            return steps, 0
        epoch, step = divmod(steps, self.steps_per_epoch)
        whole, begun = divmod(step * self.minibatches_per_step, now.minibatches_per_step)
        return epoch * now.steps_per_epoch + whole, begun

    def describe(self, now: "Pace") -> str:
        """What a change to `now` means, for the user."""
        return (
            f"the checkpoint was written with {counted(self.minibatches_per_step, 'minibatch', 'minibatches')} a step, and this run takes "
            f"{now.minibatches_per_step}: the same minibatches, but other steps; runs that set train.minibatches_per_step keep their steps "
            "whatever the ranks"
        )


def dealt(ledgers: Sequence[Sequence[int]], ranks: int) -> list[list[int]]:
    """Ledgers of other ranks for `ranks` ranks: what any of the former counted stays in the sum over the latter."""
    return [[sum(counts) for counts in zip(*ledgers[rank::ranks])] or [0] * len(ledgers[0]) for rank in range(ranks)]


def without_executor(table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that a run of one rank left, for more ranks: without an executor that holds only one."""
    ranks = table.get("ranks")
    return {
        k: v
        for k, v in table.items()
        if not (k == "executor" and v == "inline" and isinstance(ranks, int) and ranks > 1)
    }
