"""Opening of files in folders that may come from anyone: pipes and devices, on which a read never ends, are refused."""

import errno
import io
import os
import stat
from contextlib import suppress
from pathlib import Path

from ..errors import StoreError

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def opened_file(path: Path) -> io.BufferedReader:
    """Open a file to read.

    Raises:
        StoreError: it is a pipe, a socket or a device.
        OSError: it cannot be opened, or is a folder.
    """
    try:
        # A pipe without a writer would block the open itself.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno == errno.ENXIO:  # a socket, or a device that is not there
            refuse_special(path)
        raise
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    if kind == stat.S_IFREG:
        return os.fdopen(number, "rb")
    os.close(number)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise StoreError(f"{path} is {KINDS.get(kind, 'no file')}; expected a file")


def refuse_special(path: Path) -> None:
    """Refuse what is neither a file nor a folder, also directly in a folder. What is not there is left alone.

    Raises:
        StoreError: names the first pipe, socket or device.
    """
    found = [str(path)]
    with suppress(OSError, ValueError), os.scandir(path) as entries:
        found += [e.path for e in entries if not (e.is_file(follow_symlinks=False) or e.is_dir(follow_symlinks=False))]
    for place in found:
        if os.path.exists(place) and not (os.path.isfile(place) or os.path.isdir(place)):
            raise StoreError(f"{place} is {KINDS[stat.S_IFMT(os.stat(place).st_mode)]}; expected a file")


def file_bytes(path: Path) -> bytes:
    """Contents of a file. Raises like `opened_file`."""
    with opened_file(path) as file:
        return file.read()


def file_text(path: Path) -> str:
    """Contents of a file in UTF-8. Raises like `opened_file`, and ValueError for other bytes."""
    return file_bytes(path).decode("utf-8")
