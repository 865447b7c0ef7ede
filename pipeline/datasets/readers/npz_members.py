"""Safe reading of selected arrays from an ``.npz`` file: sizes are checked first, and other members stay packed."""

import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from ....storage.errors import NOT_READABLE, InputError, first_line
from ..cleaning.raw import AnyArray

BOMB_RATIO, BOMB_BYTES = 200, 256 << 20
"""Limits of an array's compression ratio and size: an array above both is refused, since graph data never compresses so
well."""
AGAIN = "save it again with np.savez"


def load_members(path: Path, wanted: Collection[str]) -> tuple[dict[str, AnyArray], list[str]]:
    """Read the arrays named in `wanted` that are present, and list the names of all members. Raises InputError: the
    file is not ``.npz`` or is damaged, or an array is encrypted, pickled, neither numbers nor text, or compressed
    beyond the limits."""
    try:
        with path.open("rb") as file:
            magic, size = file.read(6), file.seek(0, 2)
        if magic.startswith(b"\x93NUMPY"):
            raise InputError(f"{path} holds a single array; expected an .npz file with edge_index, y and x")
        if not size:
            raise InputError(f"{path} is damaged or not an .npz file (it is empty); {AGAIN}")
        if not magic.startswith(b"PK"):
            raise InputError(f"{path} holds pickled objects or is not an .npz file; expected numeric arrays: {AGAIN}")
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            found = {name: _array(archive, members[name], path, size) for name in wanted if name in members}
            return {name: array for name, array in found.items() if array is not None}, sorted(members)
    except InputError:
        raise
    except PermissionError:
        raise InputError(f"{path}: {NOT_READABLE}") from None
    except Exception as e:  # damage makes zipfile, zlib and NumPy raise errors of many kinds
        raise InputError(
            f"{path} is damaged or not an .npz file ({type(e).__name__}: {first_line(e)[:200]}); {AGAIN}"
        ) from e


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, size: int) -> AnyArray | None:
    """The array of a member; None if the member is not an array."""
    name = info.filename.removesuffix(".npy")
    if info.flag_bits & 1:
        raise InputError(f"{path}: {name} is encrypted; {AGAIN}")
    if info.file_size > BOMB_BYTES and info.file_size > BOMB_RATIO * min(info.compress_size, size):
        raise InputError(
            f"{path}: {name} unpacks from {info.compress_size:,} bytes to {info.file_size:,}; expected numbers: {AGAIN}"
        )
    with archive.open(info) as member:
        if member.read(6) != b"\x93NUMPY":
            return None
        member.seek(0)
        try:
            array = np.lib.format.read_array(member, allow_pickle=False)
        except ValueError as e:
            if "allow_pickle" not in str(e):
                raise
            raise InputError(f"{path}: {name} holds pickled objects; expected plain numeric arrays: {AGAIN}") from e
    if array.dtype.kind not in "biufcUS":
        raise InputError(f"{path}: {name} holds {str(array.dtype)[:80]}; expected numbers: {AGAIN}")
    return array
