"""Checkpoints: committed folders of one training state each, for resuming a run."""

import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import InputError, RunError, StoreError, first_line
from .plural import counted
from .store.committed_folder import committed_folder, remove_tree, sweep_leftovers
from .store.digested_file import file_sha256
from .store.full_disk import system_error, whole_file
from .store.manifest import MANIFEST, manifest_text, read_manifest, require_fingerprint, write_manifest

KIND = "checkpoint"
STATE_FILE = "state.pt"
EARLIER = 1
"""Schema version of checkpoints whose state is that of today's, under other digests."""
_NAME = re.compile(r"step-(\d+)-(\d+)")


@dataclass(frozen=True, order=True)
class Cursor:
    """Position of a run: two integers."""

    phase: int
    step: int
    """Optimiser steps taken in the phase."""


def _check_plain(value: object, where: str) -> None:
    """Refuse at once what ``torch.load(weights_only=True)`` would refuse when the run is resumed."""
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) not in (str, int):
                raise InputError(f"checkpoint state {where} has the key {key!r}; expected a str or an int")
            _check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_plain(item, f"{where}[{i}]")
    elif not isinstance(value, torch.Tensor) and type(value) not in (int, float, str, bool, type(None)):
        raise InputError(
            f"checkpoint state {where} is a {type(value).__name__}; expected tensors, int, float, str, bool, None, and "
            "lists, tuples and dicts of them"
        )


def _load(file: Path) -> dict[str, object]:
    with zipfile.ZipFile(file) as archive:
        if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
            raise StoreError("a compressed record, which torch never writes")
    state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise StoreError(f"a {type(state).__name__} in place of a dict")
    _check_plain(state, "state")
    return state


class CheckpointStore:
    """The last few checkpoints of one job, in one folder. One process writes; others may read.

    Args:
        path: the folder; made when the first checkpoint is saved.
        fingerprint: what the job is made of; checkpoints of another job are refused.
        keep: how many checkpoints to keep, at least 1. Two let a run survive damage to the newest.
        read_only: for ranks that only resume: leaves the leftovers of killed writers alone, and `save` is refused.
    """

    def __init__(self, path: Path, fingerprint: Mapping[str, str], keep: int = 2, *, read_only: bool = False) -> None:
        if keep < 1:
            raise InputError(f"keep={keep} checkpoints; expected at least 1")
        self.path = Path(path)
        self.fingerprint = dict(fingerprint)
        self.keep = keep
        self.read_only = read_only
        if not read_only:
            sweep_leftovers(self.path)

    def taken_over(self) -> "CheckpointStore":
        """Writable view of this store, for a rank that replaces a lost one: removes what the lost rank left
        unfinished."""
        return CheckpointStore(self.path, self.fingerprint, self.keep) if self.read_only else self

    def cursors(self) -> list[Cursor]:
        """The cursors of all committed checkpoints, oldest first."""
        names = (_NAME.fullmatch(p.name) for p in self.path.glob("step-*"))
        return sorted(Cursor(int(m[1]), int(m[2])) for m in names if m)

    def _folder(self, cursor: Cursor) -> Path:
        return self.path / f"step-{cursor.phase}-{cursor.step}"

    def save(self, cursor: Cursor, state: dict[str, Any]) -> None:
        """Commit a checkpoint, then remove those that are no longer kept.

        Checkpoints beyond `cursor` go too: they are left over from a run that could not be resumed.

        Raises:
            InputError: the state holds something that cannot be loaded without running code.
            StoreError: the folder holds checkpoints of another job.
            RunError: it cannot be written, e.g. the disk is full. Earlier checkpoints are intact.
        """
        assert not self.read_only, "this checkpoint store was opened to read"
        _check_plain(state, "state")
        self._check_same_job()
        folder = self._folder(cursor)
        try:
            with committed_folder(folder, overwrite=True) as aside:
                with open(aside / STATE_FILE, "wb") as file:
                    torch.save(state, file)
                meta = {"phase": cursor.phase, "step": cursor.step, "sha256": file_sha256(aside / STATE_FILE)}
                write_manifest(aside, KIND, self.fingerprint, meta, {})
        # torch may report a failed write as a RuntimeError.
        except (OSError, RuntimeError, InputError) as e:
            why = e if isinstance(e, InputError) else system_error(e)
            raise RunError(
                f"cannot write the checkpoint {folder} ({why}); free space or choose another folder, then resume"
            ) from e
        all_cursors = self.cursors()
        kept = [c for c in all_cursors if c <= cursor][-self.keep :]
        for c in all_cursors:
            if c not in kept:
                remove_tree(self._folder(c))

    def of_earlier_version(self) -> list[tuple[Cursor, dict[str, Any]]]:
        """Cursors and manifests of the checkpoints that an earlier version of Millrace has written, oldest first."""
        found = []
        for c in self.cursors():
            with suppress(StoreError):
                found.append((c, read_manifest(self._folder(c), KIND, EARLIER)))
        return found

    def check_earlier(self, fingerprint: Mapping[str, str]) -> None:
        """Refuse checkpoints of an earlier version that are of another job.

        Args:
            fingerprint: what this job is made of, by that version's digests.

        Raises:
            StoreError: lists the keys that differ.
        """
        for c, body in self.of_earlier_version():
            require_fingerprint(self._folder(c), body["fingerprint"], fingerprint)

    def renew(self) -> None:
        """Give checkpoints of an earlier version, once they are checked, this version's manifests."""
        for c, body in self.of_earlier_version():
            text = manifest_text(KIND, self.fingerprint, body["meta"], {})
            with whole_file(self._folder(c) / MANIFEST) as aside:
                aside.write_text(text)

    def _check_same_job(self) -> None:
        for c in self.cursors():
            try:
                body = read_manifest(self._folder(c), KIND)
            except StoreError:
                continue  # damaged: `latest` warns about it
            require_fingerprint(self._folder(c), body["fingerprint"], self.fingerprint)

    def latest(self) -> tuple[Cursor, dict[str, Any]] | None:
        """The newest checkpoint that is intact, tensors on the CPU; None when there is none at all.

        Warns about each damaged one that is passed over.

        Raises:
            StoreError: the checkpoints are of another job (lists the keys that differ), or all of them are damaged.
        """
        cursors, damage = self.cursors(), list[str]()
        for cursor in reversed(cursors):
            folder = self._folder(cursor)
            try:
                body = read_manifest(folder, KIND)
            except StoreError as e:
                damage.append(str(e))
                warnings.warn(f"skipped a checkpoint: {damage[-1]}", stacklevel=2)
                continue
            require_fingerprint(folder, body["fingerprint"], self.fingerprint)
            file = folder / STATE_FILE
            if not file.is_file() or file_sha256(file) != body["meta"].get("sha256"):
                damage.append(f"{file} is missing or does not match its checksum")
                warnings.warn(f"skipped a checkpoint: {damage[-1]}", stacklevel=2)
                continue
            try:
                return cursor, _load(file)
            except Exception as e:  # torch has no error class of its own for a file that holds no state
                damage.append(f"{file} holds no training state ({first_line(e)})")
                warnings.warn(f"skipped a checkpoint: {damage[-1]}", stacklevel=2)
        if cursors:
            raise StoreError(
                f"{self.path} has {counted(len(cursors), 'checkpoint')}, and none that can be used (the newest: "
                f"{damage[0]}); remove the folder to start from the beginning"
            )
        return None
