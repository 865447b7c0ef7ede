"""Check for the ``if __name__ == "__main__":`` guard: each worker process imports the main script, and would run it
again."""

import ast
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ...storage.errors import InputError


def check_main_guard() -> None:
    """Refuse to start worker processes from a statement of the main script that they would run again.

    Raises:
        InputError: the running statement is not below ``if __name__ == "__main__":``.
    """
    main: Any = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    # Follows multiprocessing's rules for what a child imports: interactive sessions, notebooks and a package's __main__
    # are exempt.
    if (
        path is None
        or (spec is not None and spec.name.rpartition(".")[2] == "__main__")
        or Path(path).stem == "ipython"
    ):
        return
    line = _line_of(main)
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # not a script that a child could import
    if line is None or any(statement.lineno <= line <= (statement.end_lineno or 0) for statement in _guarded(tree)):
        return
    raise InputError(
        f"{path}, line {line}, starts ranks or workers, which import the script again: put what it does below "
        '`if __name__ == "__main__":`, or use this process alone (ranks = 1; for a sweep jobs = 1)'
    )


def _line_of(main: object) -> int | None:
    """The running line of the main script, at its top level."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    found = None
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            found = frame.f_lineno
        frame = frame.f_back
    return found


def _guarded(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run only if the module is the main one."""
    for statement in tree.body:
        if isinstance(statement, ast.If) and any(
            isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(statement.test)
        ):
            yield from statement.body
