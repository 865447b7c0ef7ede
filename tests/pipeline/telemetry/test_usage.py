"""Memory and traffic of a process and its children."""

import subprocess
import sys

from millrace.pipeline.telemetry import usage as module
from millrace.pipeline.telemetry.usage import Usage

CHILD = """
import sys
held = bytearray(48 << 20)
open(sys.argv[1], "wb").write(bytes(2 << 20))
print("ready", flush=True)
sys.stdin.read()
"""


def test_children_count_and_keep_what_they_have_moved(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    usage = Usage()
    before = usage.read()
    assert before["memory"] > 10 << 20 and before["read"] == before["written"] == 0
    words = [sys.executable, "-IS", "-c", CHILD, str(tmp_path / "file")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline()
        during = usage.read()
        child.communicate()
    for seconds in (1000.0, 0.0):  # with a child that is not yet known to have ended, and without
        monkeypatch.setattr(module, "LOOK_S", seconds)
        after = usage.read()
        check(before, during, after)


def check(before, during, after):
    assert during["memory"] >= before["memory"] + (40 << 20)
    assert after["memory"] <= during["memory"] - (40 << 20)
    assert after["written"] >= during["written"] >= 2 << 20
