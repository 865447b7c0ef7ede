"""`millrace report`: write a page that shows where the time, bytes and memory of runs went."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.optional import when_present
from ...storage.store.paths import expanded, local_folder
from .shared.output import show


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folder of a run, finished or not; several are compared. Or stores."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the report; by default `report` in the run's folder, or NAME.report beside the store."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers of the summary as JSON on standard output.")
    ] = False,
) -> None:
    """Write a page of a run's time, bytes and memory."""
    from ..report.write import report as write

    written = write([expanded(run) for run in runs], when_present(local_folder, out))
    lines = [line for record in written.runs for line in (record["headline"], *record["findings"])]
    record = {"page": str(written.path), "pictures": [str(p) for p in written.pictures.values()], "runs": written.runs}
    show("\n".join([*lines, f"report in {written.path}"]), record, as_json)
