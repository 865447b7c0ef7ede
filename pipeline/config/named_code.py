"""Code that a file names, such as a sampler of somebody's own: it is imported only if the caller names it too.

A job file or a run's folder may come from anyone.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ...storage.errors import InputError
from .plain_values import quoted

FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\.\w+)*")
_allowed: ContextVar[frozenset[str]] = ContextVar("_allowed", default=frozenset())


class UnnamedCodeError(InputError):
    """A file names code that the caller has not named."""

    def __init__(self, message: str, name: str) -> None:
        """
        Args:
            message: without what to do about it.
            name: the code, MODULE:NAME.
        """
        super().__init__(f'{message}: allow_code="{name}" in mr.load and mr.run')
        self.message, self.name = message, name


@contextmanager
def allowing(names: str | Iterable[str] | None) -> Iterator[None]:
    """Context in which files may name this code, MODULE:NAME.

    Raises:
        InputError: a name has another form.
    """
    wanted = [names] if isinstance(names, str) else list(names or ())
    for name in wanted:
        if not (isinstance(name, str) and FORM.fullmatch(name)):
            raise InputError(f"allow_code is {quoted(name)}; expected MODULE:NAME, such as my.samplers:Own")
    token = _allowed.set(_allowed.get() | frozenset(wanted))
    try:
        yield
    finally:
        _allowed.reset(token)


def sampler_named(table: Mapping[str, Any]) -> str | None:
    """The code that a configuration's table names as its sampler; None: it names none. All else that a configuration
    names is an entry of a registry or a name of torch's."""
    sampler = table.get("sampler")
    name = sampler.get("name") if isinstance(sampler, Mapping) else sampler
    return name if isinstance(name, str) and ":" in name else None


def check_code(table: Mapping[str, Any], path: Path) -> None:
    """Refuse the table of a file that names code which the caller has not named.

    Raises:
        UnnamedCodeError: it does.
        InputError: the name has another form than MODULE:NAME.
    """
    name = sampler_named(table)
    if name is None or name in _allowed.get():
        return
    said = f"{path} names code, sampler.name = {quoted(name)}"
    if not FORM.fullmatch(name):
        raise InputError(f"{said}; expected the name of a sampler, or MODULE:NAME")
    raise UnnamedCodeError(f"{said}, which no file may have imported; if you trust it, name it", name)


def without_code(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without a sampler that names code, for uses that need none."""
    return {k: v for k, v in table.items() if k != "sampler" or sampler_named(table) is None}
