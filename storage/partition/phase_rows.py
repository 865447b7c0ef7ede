"""Rows that one phase of layer-by-layer training reads on one rank: its own, and those it received from others.

A store for each phase and rank. Its fingerprint names the phase and the parameters that made the rows, so that rows of
an earlier attempt or of another run are refused.
"""

from collections.abc import Mapping
from pathlib import Path

from ..array_checks import proving, require
from ..errors import StoreError
from ..store.arrays import Rows
from ..store.store import Store, open_store, write_store

KIND = "phase-rows"


def write_phase_rows(
    path: Path, fingerprint: Mapping[str, str], generation: int, arrays: Mapping[str, Rows], sent_bytes: int = 0
) -> None:
    """Write the rows, replacing any that are there.

    Args:
        path: the folder to make.
        fingerprint: of the parameters that made them.
        generation: number of earlier starts of the run's ranks.
        arrays: [n, D] each.
        sent_bytes: bytes of their kind that this rank had sent in total once it had them.
    """
    write_store(
        path,
        KIND,
        fingerprint=fingerprint,
        meta={"generation": generation, "sent_bytes": sent_bytes},
        arrays=arrays,
        overwrite=True,
    )


def open_phase_rows(path: Path, fingerprint: Mapping[str, str]) -> Store:
    """Open the rows at `path`.

    Raises:
        StoreError: absent, damaged, or made by other parameters or for another phase, which it names.
    """
    if not path.exists():
        raise StoreError(
            f"{path} is missing: the rows that this phase reads were removed; start the run again in another folder"
        )
    try:
        store = open_store(path, KIND, fingerprint=fingerprint)
        for key in ("generation", "sent_bytes"):
            store.value(key, int)
        with proving(path):
            for name, entry in store.entries.items():
                require(len(entry["shape"]) == 2, f"array '{name}' has shape {entry['shape']}; expected [n, D]")
    except StoreError as e:
        raise StoreError(f"stale or damaged rows of an exchange: {e}; start the run again in another folder") from e
    return store
