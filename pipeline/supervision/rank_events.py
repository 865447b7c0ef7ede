"""Messages of a generation's ranks, merged into the events of one run."""

import queue
from typing import Any

from ..cluster.sampling_flow import Flow
from ..telemetry import events
from ..telemetry.events import Emit


class RankEvents:
    """Passes on the events of the first rank that is left, and the notes and heartbeats of all.

    Each epoch is emitted once, whichever rank is lost: the first rank may have finished an epoch and died before it
    said so, and the next one told it at its own time.

    Args:
        messages: of all ranks and generations, as `rank_host` sends them.
        generation: the one to listen to.
        emit: called with the events.
    """

    def __init__(self, messages: queue.SimpleQueue[dict[str, Any]], generation: int, emit: Emit) -> None:
        self._messages, self._generation, self._emit = messages, generation, emit
        self.pids: dict[int, int] = {}
        """Process of each rank that has started."""
        self.stepping = False
        """True once ranks have taken a step."""
        self._next_epoch = 0
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        """Epochs that each rank but the first has finished and the first one has not yet."""

    def process(self, rank: int) -> str:
        """Words for a rank's process that follow its number in a message."""
        return f" (process {self.pids[rank]})" if rank in self.pids else ""

    def hear(self, first: int, flow: Flow | None) -> None:
        """Take in what has come.

        Args:
            first: the first rank that is left.
            flow: told of minibatches that ranks no longer need.
        """
        while True:
            try:
                message = self._messages.get_nowait()
            except queue.Empty:
                return
            if message["generation"] == self._generation:
                self._take_in(message["rank"], message["said"], first, flow)

    def _take_in(self, rank: int, said: dict[str, Any], first: int, flow: Flow | None) -> None:
        if "pid" in said:
            self.pids[rank] = said["pid"]
        elif "released" in said:
            if flow is not None:
                flow.release(rank, *said["released"])
        elif "committed" in said:
            if flow is not None:
                flow.adopt(*said["committed"])
        elif said["event"] == "EpochDone":
            self.stepping = True
            self._waiting.setdefault(rank, []).append(said)
            self.emit_epochs(first)
        elif rank == first or said["event"] in ("Note", "Pulse"):
            self.stepping |= said["event"] == "StepDone"
            self._emit(getattr(events, said.pop("event"))(**said))

    def emit_epochs(self, first: int) -> None:
        """Emit the epochs that the first rank has finished, and those of a lost first rank that it did not tell."""
        for said in self._waiting.pop(first, []):
            if said["epoch"] >= self._next_epoch:
                self._next_epoch = said["epoch"] + 1
                self._emit(events.EpochDone(**{k: v for k, v in said.items() if k != "event"}))
        for rank, waiting in self._waiting.items():
            self._waiting[rank] = [said for said in waiting if said["epoch"] >= self._next_epoch]
