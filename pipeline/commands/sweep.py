"""`millrace sweep`: run all combinations of some settings."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...storage.errors import RunError
from ...storage.optional import present_items
from ...storage.plural import counted
from ...storage.store.paths import expanded
from .shared.flags import MODULE, AllowCodeFlag, Flag, Flags, JobFile, JsonFlag, Options, only, with_flags
from .shared.job_table import job_table
from .shared.output import show

SWEEP = {
    "overrides": Flag(
        "Values of a configuration key: all are combined.", list[str], flag="--set", metavar="KEY=VALUE,VALUE"
    ),
    "seeds": Flag("Runs of each setting, with other initial parameters.", int, 1),
    "jobs": Flag("Runs at a time.  [default: one for each core]", int),
    "model": MODULE,
    "code": Flag("Code of your own, as `run` takes it.", list[str], metavar="KIND=MODULE:NAME"),
    "report": Flag("Write a report that compares the best settings' runs.", bool, False),
}


@with_flags(only("dataset epochs scheduler"), SWEEP)
def sweep(
    job: JobFile = None,
    out: Annotated[Path, typer.Option(help="Folder of the sweep, with a folder for each run.")] = Path("runs/sweep"),
    *,
    flags: Flags,
    options: Options,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Run all combinations of some settings, each with several seeds.

    Runs that draw the same minibatches share them. The same command goes on with what an interrupted sweep left.
    """
    from ..custom.own_code import from_code_flags
    from ..sweep.grid import grid_of
    from ..sweep.sweep import sweep as run_sweep
    from ..sweep.sweep import table_text
    from ..telemetry.console import Terminal

    table = job_table(job, flags, [])
    own: dict[str, Any] = present_items({"model": options.model}) | from_code_flags(options.code)
    how = {"grid": grid_of(options.overrides or []), "seeds": options.seeds, "jobs": options.jobs}
    with Terminal() as terminal:
        found = run_sweep(**how, out=expanded(out), emit=terminal, config=table, **own)
    text = table_text(found.rows)
    if options.report:
        from ..report.write import report as write_report

        best = [found.out / row["folders"][0] for row in found.rows if row["runs"] == len(row["folders"])]
        if best:
            text += f"\nreport: {write_report(best[:MOST_REPORTED], found.out / 'report').path}"
    record = {"out": str(found.out), "rows": found.rows, "failures": found.failures, "sampled_s": found.sampled_s}
    show(text, record, as_json)
    if found.failures:
        failed = counted(len(found.failures), "run")
        raise RunError(f"{failed} failed: {', '.join(found.failures)}; the same command tries them again")


MOST_REPORTED = 6
"""Runs that a report compares."""
