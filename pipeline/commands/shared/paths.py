"""Paths on the command line."""

from pathlib import Path

from ....storage.errors import InputError


def expanded(path: Path) -> Path:
    """The path with `~` expanded, which shells leave alone in `--out=~/runs`.

    Raises:
        InputError: the home folder does not exist.
    """
    try:
        return path.expanduser()
    except RuntimeError as e:
        raise InputError(f"{path}: no such home folder ({e}); write the path out") from None


def output_folder(out: Path) -> Path:
    """The expanded path of a folder to write into.

    Raises:
        InputError: `out` is a URL, or its home folder does not exist.
    """
    from ...setup.run_folder import local_folder

    return expanded(local_folder(out))
