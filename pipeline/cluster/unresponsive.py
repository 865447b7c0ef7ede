"""Detection of ranks, workers and schedulers that are not dead but have stopped answering."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any


class Silence:
    """Notes each process whose sign of life has not changed for a while, and again when that has lasted twice as long.

    A sign of life is any value that its process keeps changing. It is compared with its previous value, never with a
    clock, since clocks of several machines differ.
    """

    def __init__(self, note_s: float, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            note_s: seconds of silence before a note.
            tell: called with a sentence.
            clock: in seconds.
        """
        self._note_s, self._tell, self._clock = note_s, tell, clock
        self._signs: dict[str, tuple[Hashable, float]] = {}
        self._due: dict[str, float] = {}

    def update(self, signs: Mapping[str, Hashable]) -> dict[str, float]:
        """Take in current signs of life by name; a name that is left out is no longer watched.

        Returns:
            Seconds of silence by name, of those that have been silent for `note_s`.
        """
        now = self._clock()
        for gone in self._signs.keys() - signs.keys():
            del self._signs[gone]
            self._due.pop(gone, None)
        for name, sign in signs.items():
            if name not in self._signs or self._signs[name][0] != sign:
                self._signs[name] = sign, now
                if self._due.pop(name, None) is not None:
                    self._tell(f"{name} answers again")
        silent = {name: now - since for name, (_, since) in self._signs.items() if now - since >= self._note_s}
        for name, seconds in silent.items():
            if seconds >= self._due.get(name, self._note_s):
                self._due[name] = 2 * seconds
                self._tell(f"{name} has not answered for {seconds:.0f} s: it is stopped, or its machine hangs")
        return silent


def beats(records: Mapping[str, Mapping[str, Any]], metric: str, run: str, generation: int) -> dict[int, int]:
    """Number of signs of life of each rank of a generation, as its worker counts them; ranks without one are left out.

    Args:
        records: of the workers, by address, as `Scheduler.identity` gives them.
        metric: name of the metric in which workers report their ranks.
        run: topic of the run.
        generation: number of the generation.
    """
    message = (message for record in records.values() for message in (record.get("metrics") or {}).get(metric) or [])
    return {
        r["rank"]: r["beats"]
        for r in message
        if r["run"] == run and r["generation"] == generation and r["beats"] and not r["ended"]
    }
