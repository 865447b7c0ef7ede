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
        str | None,
        typer.Option(
            help="Of a run with task=link: file of pairs to score, with columns src, dst; with labels_of=edges also "
            "train | val | test | all.  [default: all labelled edges]"
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(metavar="K", help="Of a run with task=link: the K best destinations of each node.")
    ] = None,
    include_known: Annotated[
        bool, typer.Option("--include-known", help="With --top: destinations that a node is linked to, too.")
    ] = False,
    at_time: Annotated[
        str | None, typer.Option("--time", help="With --top, of a run by the sampler temporal: as of this time.")
    ] = None,
    workers: WorkersFlag = 1,
    scheduler: SchedulerFlag = None,
    cluster: ClusterFlag = None,
    model: OwnModelFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a run's predictions into a file.

    Each node, or each labelled edge, gets a class and its probability, or values, over full neighbourhoods; each pair
    of --pairs a score; or with --top each node its best destinations.
    """
    from ...storage.errors import InputError
    from ..inference.edges import SETS, predict_edges_to_file
    from ..inference.finished_run import of_edges
    from ..inference.links import predict_links_to_file
    from ..inference.predict import check_new_file, predict_to_file
    from ..inference.recommend import recommend_to_file
    from ..interop.user_module import module_named
    from ..telemetry.console import Terminal

    settings = cluster_settings(cluster)
    own, out = None if model is None else module_named(model), expanded(out)
    if top is None and (include_known or at_time is not None):
        raise InputError(f"{'--include-known' if include_known else '--time'} is given without --top; give --top K")
    if top is not None:
        if pairs is not None or all_probabilities or embeddings:
            other = "--pairs" if pairs is not None else "--embeddings" if embeddings else "--all-probabilities"
            raise InputError(f"--top and {other} are given; expected one of them")
        when = None if at_time is None else _number(at_time)
        with Terminal() as terminal:
            report = recommend_to_file(
                expanded(run_folder),
                out,
                top,
                nodes,
                not include_known,
                when,
                dataset,
                own,
                terminal,
                workers,
                scheduler,
                settings,
            )
        ranked = f"{counted(report['pairs'], 'pair')} of {counted(report['sources'], 'source')} of {report['dataset']}"
        show(f"{ranked} by {report['model']} in {out} ({report['seconds']:.1f} s)", report, as_json)
        return
    if not embeddings and nodes is None and of_edges(expanded(run_folder)):
        check_new_file(out)
        given = pairs if pairs is None or pairs in SETS else str(expanded(Path(pairs)))
        shared = (workers, scheduler, settings)
        with Terminal() as terminal:
            report = predict_edges_to_file(
                expanded(run_folder), out, given, dataset, all_probabilities, own, terminal, *shared
            )
        predicted = f"{counted(report['edges'], 'edge')} of {report['dataset']} by {report['model']}"
        show(f"{predicted} in {out} ({report['seconds']:.1f} s)", report, as_json)
        return
    if pairs is not None:
        if nodes is not None or all_probabilities or embeddings:
            raise InputError("--pairs is given beside options for nodes; expected one of them")
        check_new_file(out)
        with Terminal() as terminal:
            report = predict_links_to_file(
                expanded(run_folder), out, expanded(Path(pairs)), dataset, own, terminal, workers, scheduler, settings
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


def _number(text: str) -> int | float:
    """The time that --time gives. Raises InputError if it is no number."""
    from ...storage.errors import InputError

    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise InputError(f"--time is '{text}'; expected a number, as the times of edges are")
