"""Reasons for the end of a rank, read from what its task returns."""

from types import SimpleNamespace
from typing import Any

import pytest
from distributed.client import FutureCancelledError

from millrace.pipeline.supervision.rank_failures import Failure, outcome_of
from millrace.pipeline.training.trainer import RankReport
from millrace.storage.errors import InputError, Interrupted, PeerLostError, RunError, ShortHandedError


def read(outcome: Any) -> RankReport | Failure:
    """The end of rank 1, whose task returns or raises this."""

    def result(timeout: float) -> Any:
        assert timeout > 0
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    task: Any = SimpleNamespace(result=result)
    return outcome_of(task, 1, " (process 7)")


def failed(error: Exception, where: str = "") -> Failure:
    exit_code = getattr(error, "exit_code", 3)
    words = {"kind": type(error).__name__, "text": str(error), "where": where.split(), "exit_code": exit_code}
    failure = read({"failed": words})
    assert isinstance(failure, Failure)
    return failure


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ({"died": -9, "log": ["a line"]}, "rank 1 (process 7) was killed by signal 9"),
        ({"died": 70, "log": []}, "rank 1 (process 7) ended with status 70"),
        ({"died": 1, "log": list("abcd")}, "rank 1 (process 7) ended with status 1; its log ends: b / c / d"),
        (TimeoutError("late"), "the task of rank 1 (process 7) was lost (TimeoutError: late)"),
        (
            FutureCancelledError("train", "scheduler-connection-lost", "words"),
            "the task of rank 1 (process 7) was lost: the connection to the Dask scheduler was lost",
        ),
    ],
)
def test_a_rank_that_is_gone_can_be_gone_on_without(outcome: Any, text: str) -> None:
    failure = read(outcome)
    assert isinstance(failure, Failure)
    assert (failure.text, failure.is_death, failure.final, failure.secondary) == (text, True, False, False)


def test_a_rank_that_raises_ends_the_run_with_its_exit_code() -> None:
    failure = failed(InputError("no such file"), "in read")
    assert (failure.text, failure.final, failure.is_death) == ("rank 1 failed: no such file (in read)", True, False)
    error = failure.error()
    assert isinstance(error, RunError)
    assert (str(error), error.exit_code) == (failure.text, InputError.exit_code)


def test_a_peer_that_was_seen_to_end_is_no_cause() -> None:
    failure = failed(PeerLostError("rank 0 is gone"))
    assert (failure.secondary, failure.final, failure.saved) == (True, False, False)


@pytest.mark.parametrize(("error", "final"), [(Interrupted("stopped"), True), (ShortHandedError("one less"), False)])
def test_ranks_that_wrote_a_checkpoint_say_it_themselves(error: Exception, final: bool) -> None:
    failure = failed(error)
    assert (failure.text, failure.saved, failure.final, failure.secondary) == (str(error), True, final, False)
    assert isinstance(failure.error(), Interrupted) is final
