"""`millrace init`: write a job file with every key, its meaning and its default."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ...storage.errors import InputError
from ...storage.store.paths import expanded
from .shared.flags import MODEL, Flag, Flags, SetFlag, only, with_flags
from .shared.job_table import job_table
from .shared.output import say


@with_flags({"system": Flag("Training system.  [default: bulk]"), "model": MODEL, **only("dataset fanout ranks")}, {})
def init(
    path: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="File to write; - for standard output.")] = Path(
        "job.toml"
    ),
    *,
    flags: Flags,
    overrides: SetFlag = None,
) -> None:
    """Write a job file with every key and its meaning."""
    from ..config.template import job_template
    from ..setup.run_folder import write_atomically

    path = expanded(path)
    text = job_template(job_table(None, flags, overrides), path.name if str(path) != "-" else "job.toml")
    if str(path) == "-":
        say(text.rstrip("\n"))
        return
    try:
        if os.path.lexists(path):
            raise InputError(f"{path} exists; name another file, or remove it")
        write_atomically(path, text)
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror}; name another file") from None
    say(f"{path}: change what you like, then: millrace run {shlex.quote(str(path))}")
