"""Signs of life that change, stand still, or are no longer expected."""

from millrace.pipeline.cluster.unresponsive import Silence, beats


class Bench:
    """A watch with a clock that a test sets."""

    def __init__(self, note_s: float = 10.0) -> None:
        self.now, self.notes = 0.0, list[str]()
        self.silence = Silence(note_s, self.notes.append, lambda: self.now)

    def update(self, now: float, **signs: int) -> dict[str, float]:
        self.now = now
        return self.silence.update(signs)


def test_silence_is_noted_and_again_when_it_has_lasted_twice_as_long() -> None:
    bench = Bench()
    for now in (0.0, 9.0):
        assert bench.update(now, a=1, b=int(now)) == {}
    assert bench.update(12.0, a=1, b=12) == {"a": 12.0}
    assert bench.update(20.0, a=1, b=20) == {"a": 20.0}
    assert len(bench.notes) == 1
    assert bench.update(24.0, a=1, b=24) == {"a": 24.0}
    words = "a has not answered for {} s: it is stopped, or its machine hangs"
    assert bench.notes == [words.format(12), words.format(24)]
    assert bench.update(25.0, a=2, b=25) == {}
    assert bench.notes[2:] == ["a answers again"]


def test_a_name_that_is_left_out_begins_anew() -> None:
    bench = Bench()
    bench.update(0.0, a=1)
    bench.update(11.0, a=1)
    assert bench.update(12.0) == {}
    assert bench.update(13.0, a=1) == {}
    assert len(bench.notes) == 1, "it does not answer again: nobody expected it to"


def test_beats_are_those_of_a_generation_that_have_begun_and_not_ended() -> None:
    def record(rank: int, count: int, run: str = "r", generation: int = 2, ended: str = "") -> dict[str, object]:
        return {"run": run, "rank": rank, "generation": generation, "beats": count, "ended": ended}

    records = {
        "one": {"metrics": {"m": [record(0, 5), record(1, 0), record(2, 9, generation=1)]}},
        "two": {"metrics": {"m": [record(3, 4, ended="done"), record(4, 3, run="other"), record(5, 7)]}},
        "three": {"metrics": {}},
        "four": {},
    }
    assert beats(records, "m", "r", 2) == {0: 5, 5: 7}
