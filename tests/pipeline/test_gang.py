"""What the driver passes on of what ranks say."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from millrace.pipeline.events import EpochDone
from millrace.pipeline.gang import Loss, _Generation


def test_each_epoch_is_told_once_whichever_rank_is_lost():
    """The first rank may have finished an epoch and died before it said so; the next one told it at its own time."""
    told: list[Any] = []
    prepared = SimpleNamespace(job=SimpleNamespace(cluster=SimpleNamespace(wait_note_s=10.0)))
    gang: Any = SimpleNamespace(ranks=3, prepared=prepared, emit=lambda event: told.append((event.epoch, event.seconds)))
    generation = _Generation(gang, 0)

    def say(rank: int, *epochs: int) -> None:
        for epoch in epochs:
            said = {"event": "EpochDone", **asdict(EpochDone(epoch, 9, 0.1, None, float(rank), False))}
            generation.epochs_untold.setdefault(rank, []).append(said)
            generation._tell_epochs()

    say(1, 0)
    say(0, 0, 1)
    say(2, 0, 1, 2)
    say(1, 1, 2, 3)
    assert told == [(0, 0.0), (1, 0.0)]
    generation.lost[0] = Loss("rank 0 is gone", final=False)
    generation._tell_epochs()
    assert told[2:] == [(2, 1.0), (3, 1.0)]
    say(0, 2)
    say(1, 4)
    assert told[4:] == [(4, 1.0)]
    generation.lost[1] = Loss("rank 1 is gone", final=False)
    say(2, 3, 4, 5)
    assert told[5:] == [(5, 2.0)]
