"""Paths on the command line."""

from pathlib import Path

from ...storage.errors import InputError


def expanded(path: Path) -> Path:
    """The path with `~` expanded, which shells do not do in `--out=~/runs`.

    Raises:
        InputError: there is no such home folder.
    """
    try:
        return path.expanduser()
    except RuntimeError as e:
        raise InputError(f"{path}: no such home folder ({e}); write the path out") from None


def output_folder(out: Path) -> Path:
    """The folder to write into.

    Raises:
        InputError: it is a URL, or there is no such home folder.
    """
    from ..setup.run_folder import local

    return expanded(local(out))
