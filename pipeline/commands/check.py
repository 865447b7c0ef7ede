"""`millrace check`: verify every digest and checksum in a folder."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.errors import StoreError
from ...storage.store.paths import expanded
from .shared.flags import JsonFlag
from .shared.output import show


def check(
    path: Annotated[Path, typer.Argument(help="A run's folder, a store of data or parts, or stored samples.")],
    as_json: JsonFlag = False,
) -> None:
    """Verify every digest in a store, a run or samples.

    Also those of what is mapped and not verified while it is read.
    """
    from ..telemetry.console import Terminal
    from ..verify import verify

    with Terminal() as terminal:
        found = verify(expanded(path), terminal)
    lines = [f"damaged: {name}: {why}" for name, why in found.damaged.items()]
    lines += [f"no digest: {name}" for name in found.unknown]
    sound = len(found.checked) - len(found.damaged)
    lines.append(f"{sound:,} of {len(found.checked):,} as they were written, in {path}")
    record = {"path": str(path), "checked": found.checked, "damaged": found.damaged, "unknown": found.unknown}
    show("\n".join(lines), record, as_json)
    if found.damaged:
        raise StoreError(f"{path} is damaged: {', '.join(found.damaged)}; copy it again, or make it again")
