"""Paths of users."""

import os
import re
from pathlib import Path

from ..errors import InputError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:)/+(.*)", re.DOTALL)


def check_no_url(path: str | os.PathLike[str], expected: str) -> None:
    """Raise InputError if a path was meant as a URL, of whose slashes pathlib leaves one."""
    if found := _URL.fullmatch(str(path)):
        raise InputError(f"{found[1]}//{found[2]} is a URL; expected {expected}")


def is_utf8(text: str) -> bool:
    """False for the name of a file that is no text, whose bytes Python keeps as surrogates."""
    return text.encode(errors="ignore").decode() == text


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with `~` expanded, which shells leave alone in `--out=~/runs`; a file that is there under such a name is
    taken as it is.

    Raises:
        InputError: the home folder does not exist, or the path is no text.
    """
    found = Path(path)
    if not is_utf8(str(path)):
        raise InputError(f"{str(path)!r} has bytes that are not UTF-8, which no record can hold; give it another name")
    try:
        return found.expanduser()
    except RuntimeError as e:
        if found.exists():
            return found.absolute()
        raise InputError(f"{path}: no such home folder ({e}); write the path out") from None


def local_folder(out: str | os.PathLike[str]) -> Path:
    """The expanded path of a folder to write into.

    Raises:
        InputError: `out` is no path, or a URL: only stores, and samples, are written to object stores.
    """
    if not isinstance(out, str | os.PathLike):
        raise InputError(f'out is a {type(out).__name__}; expected a folder, such as out="runs/first"')
    check_no_url(out, "a folder on a file system (`millrace sample` and `convert` write to URLs)")
    return expanded(out)
