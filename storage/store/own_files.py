"""Files and folders of predictable names, which somebody else could have put there first: links are not followed, and
what another user owns is left alone."""

import errno
import io
import os
import stat
from pathlib import Path

from ..errors import InputError


def _others(path: Path, seen: os.stat_result) -> bool:
    """True if somebody other than this user, or the owner of the folder that it lies in, owns a file."""
    return seen.st_uid not in (os.geteuid(), os.stat(path.parent).st_uid)


def own_file(path: Path, append: bool = True) -> io.TextIOWrapper:
    """Open a file of ours to write by lines, a new one if there is none.

    Raises:
        InputError: it is a link, no file, or somebody else's.
        OSError: it cannot be opened.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a symbolic link, which is not followed; remove it, or choose another place")
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        number = os.open(path, flags | (os.O_APPEND if append else 0), 0o666)
    except OSError as e:
        if e.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise InputError(f"{path} is no file; remove it, or choose another place") from None
        raise
    seen = os.fstat(number)
    if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1 or _others(path, seen):
        os.close(number)
        raise InputError(f"{path} is not a file of this user's alone; remove it, or choose another place")
    if not append:
        os.ftruncate(number, 0)
    return open(number, "a" if append else "w", buffering=1, encoding="utf-8")


def new_file(path: Path) -> Path:
    """Make an empty file in place of what a killed process left there, and nobody else's. Returns `path`."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return path


def own_folder(path: Path) -> Path:
    """Make a folder to work in, or take one that this user has left there. Returns `path`.

    Raises:
        InputError: it is a link, no folder, or somebody else's.
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError:
        seen = os.lstat(path)
        if not stat.S_ISDIR(seen.st_mode) or _others(path, seen):
            raise InputError(
                f"{path} is there and is no folder of this user's to work in; remove it, or choose another --out"
            ) from None
    return path


def refuse_links(folder: Path, below: tuple[str, ...] = ()) -> None:
    """Refuse a folder that is to be written to and holds links, which somebody else could have put into it, or that
    somebody else has put, as a folder or a link, where everybody may.

    Args:
        folder: the folder, whose entries are looked at.
        below: names of folders in it, likewise.

    Raises:
        InputError: names the first one.
    """
    for place in (folder, folder.resolve()):
        if os.path.lexists(place) and os.stat(place.parent).st_mode & stat.S_IWOTH and _others(place, place.lstat()):
            raise InputError(f"{place} is somebody else's, in a folder that everybody may write to; choose another")
    for place in (folder, *(folder / name for name in below)):
        if place.is_dir():
            with os.scandir(place) as entries:
                if (link := next((e.path for e in entries if e.is_symlink()), None)) is not None:
                    raise InputError(f"{link} is a symbolic link, which is not followed; remove it")
