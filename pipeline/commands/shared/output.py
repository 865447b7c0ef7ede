"""Printing of results: text on standard output, or with `--json` a record there and the text on standard error."""

import json
import os
import sys
from typing import Any

from ...telemetry.printable import printable


def say(text: str, err: bool = False) -> None:
    """Print a text and flush it.

    A reader that closed the pipe is not an error: the work is done.
    """
    stream = sys.stderr if err else sys.stdout
    try:
        print(printable(text), file=stream, flush=True)
    except BrokenPipeError:
        _to_nowhere(stream)


def flush_all() -> None:
    """Write what is left in standard output and standard error, as at the end of the process, where Python would make a
    pipe that its reader has closed an exit code of its own (120)."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _to_nowhere(stream)


def _to_nowhere(stream: Any) -> None:
    # Python would flush again at exit, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say_aside(text: str) -> None:
    """Print a text on standard error."""
    say(text, err=True)


def show(text: str, record: Any, as_json: bool) -> None:
    """Print a result's text, or with `as_json` its record on standard output and the text on standard error."""
    say(text, err=as_json)
    if as_json:
        say(json.dumps(record))
