"""`millrace predict`: write a finished run's predictions into a file."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.plural import counted
from .shared.flags import ClusterFlag, JsonFlag, OtherDatasetFlag, OwnModelFlag, SchedulerFlag, WorkersFlag
from .shared.job_table import cluster_settings
from .shared.output import show
from .shared.paths import expanded


def predict(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The file to write: .parquet, .csv, .npy or .zarr.")],
    dataset: OtherDatasetFlag = None,
    nodes: Annotated[
        str | None, typer.Option(help="Ids or names between commas, or train | val | test | all.  [default: all]")
    ] = None,
    all_probabilities: Annotated[bool, typer.Option("--all-probabilities", help="A column for each class.")] = False,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Write the rows that the last layer reads, in place of classes.")
    ] = False,
    pairs: Annotated[
        Path | None, typer.Option(help="Of a run with task=link: file of pairs to score, with columns src, dst.")
    ] = None,
    workers: WorkersFlag = 1,
    scheduler: SchedulerFlag = None,
    cluster: ClusterFlag = None,
    model: OwnModelFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a run's predictions into a file.

    Each node gets a class and its probability, or values, over full neighbourhoods; each pair of --pairs a score.
    """
    from ...storage.errors import InputError
    from ..inference.links import predict_links_to_file
    from ..inference.predict import check_new_file, predict_to_file
    from ..interop.user_module import module_named
    from ..telemetry.console import Terminal

    settings = cluster_settings(cluster)
    own, out = None if model is None else module_named(model), expanded(out)
    if pairs is not None:
        if nodes is not None or all_probabilities or embeddings:
            raise InputError("--pairs is given beside options for nodes; expected one of them")
        check_new_file(out)
        with Terminal() as terminal:
            report = predict_links_to_file(
                expanded(run_folder), out, expanded(pairs), dataset, own, terminal, workers, scheduler, settings
            )
        scored = f"{counted(report['pairs'], 'pair')} of {report['dataset']} by {report['model']}"
        show(f"{scored} in {out} ({report['seconds']:.1f} s)", report, as_json)
        return
    with Terminal() as terminal:
        report = predict_to_file(
            expanded(run_folder),
            out,
            dataset,
            nodes,
            all_probabilities,
            own,
            terminal,
            embeddings,
            workers,
            scheduler,
            settings,
        )
    predicted = f"{counted(report['nodes'], 'node')} of {report['dataset']} by {report['model']}"
    show(f"{predicted} in {out} ({report['seconds']:.1f} s)", report, as_json)
