"""Contract of everything that reads an input: accept it and return sound data, or refuse it in one to three lines."""

import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from millrace.storage.errors import MillraceError

MOST_SECONDS, MOST_BYTES, MOST_LINES, MOST_CHARACTERS = 5.0, 500 << 20, 3, 2000


@dataclass
class Tally:
    """Outcomes of the inputs of one target."""

    inputs: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Refused inputs by kind of error."""
    broken: list[str] = field(default_factory=list)
    """Inputs that break the contract: each with its seed, and how."""
    seconds: float = 0.0
    """Processor seconds of the slowest input."""
    peak_bytes: int = 0
    """Most additional memory of an input."""


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def judge(tally: Tally, name: str, seed: int, read: Callable[[], None]) -> None:
    """Read one input, and record the outcome."""
    tally.inputs += 1
    try:
        # Reset the peak.
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
    except OSError:
        before = -1
    # On a busy machine an input may wait longer than it works.
    start, broken = time.process_time(), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
        tally.accepted += 1
    except MillraceError as e:
        told = str(e)
        tally.refused[type(e).__name__] += 1
        if not told or told.count("\n") >= MOST_LINES or len(told) > MOST_CHARACTERS:
            broken = f"told in {told.count(chr(10)) + 1} lines, {len(told)} characters: {told[:200]!r}"
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        ours = [
            f for f in traceback.extract_tb(e.__traceback__) if "millrace" in f.filename and "/tests/" not in f.filename
        ]
        where = ours[-1] if ours else last
        broken = f"{type(e).__name__}: {str(e)[:160]} at {os.path.basename(where.filename)}:{where.lineno}"
    seconds = time.process_time() - start
    peak = max(0, _memory("VmHWM") - before) if before >= 0 else 0
    tally.seconds, tally.peak_bytes = max(tally.seconds, seconds), max(tally.peak_bytes, peak)
    if seconds > MOST_SECONDS:
        broken = broken or f"took {seconds:.1f} s"
    if peak > MOST_BYTES:
        broken = broken or f"took {peak >> 20} MiB"
    if broken:
        tally.broken.append(f"{name} {seed}: {broken}")
