"""A forked process of pytest-xdist that dies is noticed, whatever it leaves behind."""

import os
import signal

import execnet
import pytest

from millrace.tests.contracts import forked_worker

LEAVES_ANOTHER = """
import os, signal, sys, time
other = os.fork()
if not other:
    time.sleep(600)
    os._exit(0)
os.write(1, other.to_bytes(4, "little"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif("sys.platform != 'linux'", reason="processes of tests are forked on Linux")
def test_its_end_is_seen_while_another_process_has_its_files():
    dying = forked_worker.ForkedWorker([LEAVES_ANOTHER], execnet.gateway_base.get_execmodel("thread"))
    other = int.from_bytes(dying.read(4), "little")
    try:
        with pytest.raises(EOFError):
            dying.read(1)
        assert dying.wait() == -signal.SIGKILL
        os.kill(other, 0)  # still there
    finally:
        os.kill(other, signal.SIGKILL)
