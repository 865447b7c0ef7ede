"""`millrace inspect`: describe a folder, a file or a dataset."""

import json
from typing import Annotated

import typer

from .shared.flags import JsonFlag, SetFlag
from .shared.job_table import job_table
from .shared.output import say


def inspect(
    path: Annotated[str, typer.Argument(help="A run, a store of samples, partitions or data, or any dataset.")],
    minibatch: Annotated[
        str | None, typer.Option(metavar="EPOCH,INDEX", help="Print one minibatch of a store of samples.")
    ] = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Describe a folder, a file or a dataset."""
    from ..config.load import resolve
    from .describe import describe

    record = describe(path, minibatch, resolve(job_table(None, {}, overrides)) if overrides else None)
    if as_json:
        say(json.dumps(record))
    else:
        width = max(map(len, record)) + 2
        say("\n".join(f"{key:<{width}}{value}" for key, value in record.items()))
