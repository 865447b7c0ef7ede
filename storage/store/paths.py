"""Paths of users."""

import os
from pathlib import Path

from ..errors import InputError


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with `~` expanded, which shells leave alone in `--out=~/runs`; a file that is there under such a name is
    taken as it is.

    Raises:
        InputError: the home folder does not exist.
    """
    found = Path(path)
    try:
        return found.expanduser()
    except RuntimeError as e:
        if found.exists():
            return found.absolute()
        raise InputError(f"{path}: no such home folder ({e}); write the path out") from None
