"""Stores with valid checksums and invalid content, for checks beyond checksums."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from millrace.storage.store.arrays import write_arrays
from millrace.storage.store.manifest import MANIFEST, canonical_json
from millrace.storage.store.store import Store, open_store

Arrays = dict[str, np.ndarray]


def manifest_of(store: Path) -> dict[str, Any]:
    """The present manifest of a store."""
    return json.loads((store / MANIFEST).read_text())


def sign(store: Path, body: Mapping[str, Any]) -> None:
    """Write a manifest with a valid checksum, whatever its content."""
    plain = {k: v for k, v in body.items() if k != "checksum"}
    (store / MANIFEST).write_text(json.dumps({**plain, "checksum": hashlib.sha256(canonical_json(plain)).hexdigest()}))


def forge(store: Path, change: Callable[[Arrays, dict[str, Any]], None]) -> None:
    """Rewrite the store with arrays and metadata changed by `change`, and valid checksums."""
    body = manifest_of(store)
    opened: Store = open_store(store, body["format"].removeprefix("millrace-"))
    arrays = {name: np.array(opened.read(name)) for name in opened.entries}
    one_shard = opened.kind == "bulk"
    change(arrays, body["meta"])
    shutil.rmtree(store / "arrays", ignore_errors=True)
    body["arrays"] = write_arrays(store, arrays, one_shard=one_shard) if arrays else {}
    sign(store, body)
