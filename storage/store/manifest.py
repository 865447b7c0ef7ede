"""Manifest of a store: kind, fingerprint, metadata and array shapes, under a checksum."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import NOT_READABLE, StoreError, first_line
from .regular import file_bytes

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
_NAME = re.compile(r"[^./\\\0][^/\\\0]*")
"""Names that arrays may have."""


def canonical_json(record: object) -> bytes:
    """Canonical bytes of a record of plain values: the same whatever the order of its keys."""
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def manifest_text(kind: str, fingerprint: Mapping[str, str], meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Text of a store's manifest, with its checksum."""
    body = {
        "format": f"millrace-{kind}",
        "schema_version": SCHEMA_VERSION,
        "fingerprint": dict(fingerprint),
        "meta": dict(meta),
        "arrays": dict(arrays),
    }
    body["checksum"] = hashlib.sha256(canonical_json(body)).hexdigest()
    return json.dumps(body, indent=1, sort_keys=True)


def write_manifest(
    folder: Path, kind: str, fingerprint: Mapping[str, str], meta: Mapping[str, object], arrays: Mapping[str, object]
) -> None:
    """Write the manifest of a store (last, as its commit record)."""
    (folder / MANIFEST).write_text(manifest_text(kind, fingerprint, meta, arrays))


def kind_in(folder: Path) -> str | None:
    """Kind of the store in a folder, by its manifest, which is not verified; None: there is none.

    Raises:
        StoreError: the manifest cannot be read.
    """
    try:
        body = json.loads(file_bytes(folder / MANIFEST))
        return str(body["format"]).removeprefix("millrace-")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise StoreError(f"{folder / MANIFEST}: {NOT_READABLE}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise StoreError(f"{folder / MANIFEST} is damaged ({first_line(e)}); make the store again") from None


def no_manifest(path: Path | str) -> StoreError:
    """Error for a folder that should be a store but has no manifest."""
    return StoreError(
        f"{path} holds no {MANIFEST}: it is not a Millrace store, or it was never committed; make it again"
    )


def read_manifest(path: Path, kind: str, version: int = SCHEMA_VERSION) -> dict[str, Any]:
    """Read and verify a manifest of a schema version.

    Raises:
        StoreError: absent, damaged, of another kind, or of another schema version.
    """
    try:
        text = file_bytes(path / MANIFEST)
    except FileNotFoundError:
        raise no_manifest(path) from None
    except NotADirectoryError:
        raise StoreError(f"{path} is a file; expected the folder of a Millrace {kind} store") from None
    except PermissionError:
        raise StoreError(f"{path}/{MANIFEST}: {NOT_READABLE}") from None
    except (OSError, ValueError) as e:
        raise StoreError(f"{path}/{MANIFEST} cannot be read ({e}); make the store again") from None
    return parse_manifest(text, path, kind, version)


def parse_manifest(text: bytes, path: Path | str, kind: str, version: int = SCHEMA_VERSION) -> dict[str, object]:
    """Verify the text of the manifest of the store at `path`.

    Raises:
        StoreError: damaged, of another kind, or of another schema version.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path}/{MANIFEST} is damaged ({first_line(e)}); make the store again") from e
    if not isinstance(body, dict) or body.get("format") != f"millrace-{kind}":
        seen = body.get("format") if isinstance(body, dict) else type(body).__name__
        raise StoreError(f"{path} holds '{str(seen)[:80]}'; expected 'millrace-{kind}'")
    if body.get("schema_version") != version:
        seen = str(body.get("schema_version"))[:80]
        raise StoreError(
            f"{path} has schema version {seen}; this Millrace reads version {version}: make the store again"
        )
    checksum = body.pop("checksum", None)
    if checksum != hashlib.sha256(canonical_json(body)).hexdigest():
        raise StoreError(f"{path}/{MANIFEST} does not match its checksum; the store is damaged: make it again")
    if not _is_well_formed(body):
        raise StoreError(
            f"{path}/{MANIFEST} is not laid out as a manifest; expected fingerprint, meta and arrays: make the store "
            "again"
        )
    return body


def _is_well_formed(body: Mapping[str, object]) -> bool:
    fingerprint, meta, arrays = (body.get(key) for key in ("fingerprint", "meta", "arrays"))
    if not (isinstance(fingerprint, dict) and isinstance(meta, dict) and isinstance(arrays, dict)):
        return False
    return all(isinstance(v, str) for v in fingerprint.values()) and all(_is_entry(*item) for item in arrays.items())


def _is_entry(name: str, entry: object) -> bool:
    """True if `entry` is a valid description of an array, as `write_arrays` makes it."""
    if not (isinstance(entry, dict) and _NAME.fullmatch(name)):
        return False
    shape, dtype, chunks = (entry.get(key) for key in ("shape", "dtype", "chunks"))
    try:
        numeric = isinstance(dtype, str) and np.dtype(dtype).kind in "biuf"
    except (TypeError, ValueError):
        numeric = False
    counts = [*shape, chunks] if isinstance(shape, list) and shape else None
    return numeric and entry.get("npy", True) is True and are_sizes(counts)


def are_sizes(numbers: object) -> bool:
    """True for a list of whole numbers from 0 that arrays can have as sizes."""
    return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 1 << 56 for n in numbers)


def _shown(value: str | None) -> str:
    """A value of a fingerprint in a message: of a digest its beginning."""
    return "absent" if value is None else re.sub(r"([0-9a-f]{12})[0-9a-f]{52}", r"\1...", value[:200])


def require_fingerprint(path: Path | str, seen: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Refuse a store that was made from something else.

    Raises:
        StoreError: lists the keys that differ.
    """
    differing = sorted(k for k in set(seen) | set(expected) if seen.get(k) != expected.get(k))
    if differing:
        pairs = [(k, _shown(seen.get(k)), _shown(expected.get(k))) for k in differing[:8]]
        rows = ", ".join(f"{k[:80]} (store {here}, wanted {wanted})" for k, here, wanted in pairs)
        raise StoreError(
            f"{path} was made from something else; these differ: {rows}: set them back, or make it again elsewhere"
        )
