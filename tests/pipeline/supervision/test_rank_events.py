"""Messages of several ranks and generations as the events of one run."""

import queue
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from millrace.pipeline.supervision.rank_events import RankEvents
from millrace.pipeline.telemetry.events import EpochDone, Note, StageStarted


class Bench:
    """Ranks that say what a test wants, in generation 2."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.released: list[Any] = []
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.events = RankEvents(self.messages, 2, self.seen.append)

    def say(self, rank: int, said: Any, generation: int = 2, first: int = 0) -> None:
        if not isinstance(said, dict):
            said = {"event": type(said).__name__, **asdict(said)}
        self.messages.put({"generation": generation, "rank": rank, "said": said})
        flow: Any = SimpleNamespace(release=lambda *words: self.released.append(words))
        self.events.hear(first, flow)


def epoch(number: int, seconds: float = 0.0) -> EpochDone:
    return EpochDone(number, 9, 0.1, None, seconds, False)


def test_only_the_first_rank_is_heard_but_for_notes() -> None:
    bench = Bench()
    bench.say(1, StageStarted("train", "training"))
    bench.say(1, Note("slow"))
    bench.say(0, StageStarted("train", "training"))
    assert bench.seen == [Note("slow"), StageStarted("train", "training")]


def test_other_generations_are_not_heard() -> None:
    bench = Bench()
    bench.say(0, Note("late"), generation=1)
    bench.say(0, {"pid": 5}, generation=1)
    assert (bench.seen, bench.events.process(0)) == ([], "")
    bench.say(0, {"pid": 7})
    assert bench.events.process(0) == " (process 7)"


def test_released_minibatches_reach_the_flow() -> None:
    bench = Bench()
    bench.say(1, {"released": [3, 4]})
    assert bench.released == [(1, 3, 4)]
    bench.messages.put({"generation": 2, "rank": 1, "said": {"released": [3, 5]}})
    bench.events.hear(0, None)
    assert len(bench.released) == 1


def test_each_epoch_is_emitted_once_when_the_first_rank_is_lost() -> None:
    bench = Bench()
    assert not bench.events.stepping
    bench.say(1, epoch(0, 1.0))
    bench.say(1, epoch(1, 1.0))
    assert bench.seen == []
    bench.say(0, epoch(0))
    assert bench.seen == [epoch(0)]
    bench.events.emit_epochs(1)
    assert bench.seen == [epoch(0), epoch(1, 1.0)]
    bench.say(1, epoch(2, 1.0), first=1)
    assert bench.seen[2:] == [epoch(2, 1.0)]
    assert bench.events.stepping
