"""Single files whose digests are known, and the parameters in one."""

import hashlib
import zipfile
from pathlib import Path

import torch

from ..errors import StoreError
from .regular import opened_file


def file_sha256(path: Path) -> str:
    """SHA-256 digest of a file. Raises OSError or StoreError if it cannot be read."""
    with opened_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, digest: str | None) -> None:
    """Refuse a file of a run's folder that has another digest than the run's result says; None: it says none.

    Raises:
        StoreError: it is damaged.
    """
    if digest is not None and (path.is_dir() or digest != file_sha256(path)):
        raise StoreError(
            f"{path} does not match its digest in result.json: it is damaged; copy it again, or write it again by "
            f"`millrace run --resume --out {path.parent}`"
        )


def saved_parameters(path: Path, digest: str | None) -> dict[str, torch.Tensor]:
    """The parameters in a file of a run's folder, by name.

    Args:
        path: the file.
        digest: see `check_file`.

    Raises:
        StoreError: the file is damaged, or holds something else.
        FileNotFoundError: there is none.
    """
    check_file(path, digest)
    with opened_file(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                # What torch does not look at: the checksum of each record.
                if (bad := archive.testzip()) is not None:
                    raise ValueError(bad)
            file.seek(0)
            found = torch.load(file, weights_only=True, map_location="cpu")
            if not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in found.items()):
                raise TypeError
        except Exception:
            # torch's own words advise to unpickle the file.
            raise StoreError(f"{path} is damaged, or no file of parameters; copy it again, or train again") from None
    return found
