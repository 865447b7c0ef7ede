"""Calls that return in time, late or with an error."""

import threading
import time

import pytest

from millrace.pipeline.machine.time_limit import in_time


def test_results_and_errors_pass():
    assert in_time(60.0, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        in_time(60.0, divmod, 7, 0)


def test_a_call_that_does_not_return_is_left():
    over = threading.Event()
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        in_time(0.1, over.wait, timeout=600.0)
    assert time.monotonic() - start < 300.0
    over.set()
