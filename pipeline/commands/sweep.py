"""`millrace sweep`: run all combinations of some settings."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...storage.errors import RunError
from ...storage.plural import counted
from ...storage.store.paths import expanded
from .shared.flags import AllowCodeFlag, Flags, JobFile, JsonFlag, OwnModelFlag, with_flags
from .shared.job_table import job_table
from .shared.output import show


@with_flags("dataset epochs scheduler")
def sweep(
    job: JobFile = None,
    out: Annotated[Path, typer.Option(help="Folder of the sweep, with a folder for each run.")] = Path("runs/sweep"),
    *,
    flags: Flags,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE,VALUE", help="Values of a configuration key: all are combined."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each setting, with other initial parameters.")] = 1,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.  [default: one for each core]")] = None,
    model: OwnModelFlag = None,
    code: Annotated[
        list[str] | None, typer.Option(metavar="KIND=MODULE:NAME", help="Code of your own, as `run` takes it.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write a report that compares the best settings' runs.")
    ] = False,
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

    grid = grid_of(overrides or [])
    table = job_table(job, flags, [])
    own: dict[str, Any] = {} if model is None else {"model": model}
    with Terminal() as terminal:
        found = run_sweep(
            grid=grid, seeds=seeds, out=expanded(out), jobs=jobs, emit=terminal, config=table, **own,
            **from_code_flags(code),
        )  # fmt: skip
    text = table_text(found.rows)
    if report:
        from ..report.write import report as write_report

        best = [found.out / row["folders"][0] for row in found.rows if row["runs"] == len(row["folders"])][
            :MOST_REPORTED
        ]
        if best:
            text += f"\nreport: {write_report(best, found.out / 'report').path}"
    record = {"out": str(found.out), "rows": found.rows, "failures": found.failures, "sampled_s": found.sampled_s}
    show(text, record, as_json)
    if found.failures:
        failed = counted(len(found.failures), "run")
        raise RunError(f"{failed} failed: {', '.join(found.failures)}; the same command tries them again")


MOST_REPORTED = 6
"""Runs that a report compares."""
