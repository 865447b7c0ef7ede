"""Paths on the command line."""

from pathlib import Path

from ....storage.store.paths import expanded


def output_folder(out: Path) -> Path:
    """The expanded path of a folder to write into.

    Raises:
        InputError: `out` is a URL, or its home folder does not exist.
    """
    from ...setup.run_folder import local_folder

    return expanded(local_folder(out))
