"""Exceptions. Every message says what was seen, what was expected, and what to change.

`InputError` and its children are for the user to fix (exit code 2); `RunError` and its children are faults of a run
that can be resumed (exit code 3). Any other exception is a bug in Millrace.
"""

import math
from collections.abc import Iterable
from numbers import Integral

from .urls import without_secrets


class MillraceError(Exception):
    """Base of all exceptions that Millrace raises on purpose. Secrets in URLs are removed from the message."""

    exit_code = 3

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in args))


class InputError(MillraceError, ValueError):
    """A file, a configuration or an argument is not usable as given."""

    exit_code = 2

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        # The message says all; what was handled when it was raised is not shown.
        self.__suppress_context__ = True


class UnsettledError(InputError):
    """A graph can be read, but a choice is left to its user: `millrace inspect` shows what there is, and asks."""


class NoLabelsError(UnsettledError):
    """Nothing says which labels of nodes are to be predicted."""


class NoDirectionError(UnsettledError):
    """Nothing says in which direction messages flow along edges."""


class MissingExtraError(InputError, ImportError):
    """An optional package is needed for what was asked. The message names the extra that installs it."""


def install(extra: str) -> str:
    """Command that installs an extra: from a clone, as no index has a release."""
    return f"pip install '.[{extra}]' in a clone of Millrace"


class StoreError(InputError):
    """A store is absent, incomplete, damaged, of another schema, or made from something else."""


class DataWarning(UserWarning):
    """Data are not those that a run was trained on, or are not read as those were, and its predictions depend on it."""


class RunError(MillraceError, RuntimeError):
    """A run failed after it had started. What was committed is intact and the run can be resumed."""


class PeerLostError(RunError):
    """Another rank is gone, or does not answer: what this rank saw, not the cause."""


class Interrupted(RunError):  # noqa: N818 - a request, not an error
    """The user asked to stop. A checkpoint holds the state to resume from."""

    exit_code = 130


class ShortHandedError(RunError):
    """A phase has ended without ranks that were lost. All ranks can go on from the checkpoint that was written."""


class QueueTimeoutError(RunError, TimeoutError):
    """A wait on the minibatch queue timed out. The message names the side that did not answer."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to `name`, or None if none is similar enough."""
    import difflib

    lowered = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.72 if len(name) > 4 else 0.66)
    return lowered[found[0]] if found else None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'metis'?``, or the empty string if no known name is similar."""
    found = closest(name, known)
    return "" if found is None else f"; did you mean '{found}'?"


def one_of(name: str, known: Iterable[str]) -> str:
    """Words for what was expected where a name is none of those known, with a hint if one is similar."""
    names = list(known)
    return f"expected one of {', '.join(names)}{nearest(name, names)}"


def whole_number(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> int:
    """The argument `name` as an int. Raises InputError unless it is a whole number between the bounds."""
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= (number := int(value)) <= most:
        return number
    bounds = f" from {least} to {most}" if math.isfinite(most) else f", {least} or more" if math.isfinite(least) else ""
    raise InputError(f"{name} is {value!r}; expected a whole number{bounds}")


NOT_READABLE = "this user may not read it; expected a readable file: change its permissions, or give another"
"""End of the message about a file that raised PermissionError."""


def first_line(error: Exception) -> str:
    """First line of an error's message, for use within a sentence: some libraries append a dump of their state or
    input."""
    return str(error).partition("\n")[0][:300]
