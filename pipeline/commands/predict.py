"""`millrace predict`: write a finished run's predictions into a file."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.errors import InputError
from ...storage.optional import present_items, when_present
from ...storage.plural import counted
from ...storage.store.paths import expanded
from .shared.flags import OF_RUN, AllowCodeFlag, Flag, Flags, JsonFlag, Options, with_flags
from .shared.job_table import asked_of_run
from .shared.output import show

PREDICT = {
    "nodes": Flag("Ids or names between commas, or train | val | test | unlabelled | all.  [default: all]"),
    "all_probabilities": Flag("A column for each class.", bool, False),
    "labels": Flag("Columns with each node's given label and its set.", bool, False),
    "embeddings": Flag("Write the rows that the last layer reads, in place of classes.", bool, False),
    "pairs": Flag(
        "Of a run with task=link: file of pairs to score, with columns src, dst; with labels_of=edges also train | val "
        "| test | all.  [default: all labelled edges]"
    ),
    "top": Flag("Of a run with task=link: the K best destinations of each node.", int, metavar="K"),
    "relation": Flag("With --top or --pairs, of a run that predicts links of several relations: the one wanted."),
    "include_known": Flag("With --top: destinations that a node is linked to, too.", bool, False),
    "at_time": Flag("With --top, of a run by the sampler temporal: as of this time, or date.", flag="--time"),
}


@with_flags(OF_RUN, PREDICT)
def predict(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The file to write: .parquet, .csv, .npy or .zarr.")],
    *,
    options: Options,
    flags: Flags,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a run's predictions into a file.

    Each node, or each labelled edge, gets a class and its probability, or values, over full neighbourhoods; each pair
    of --pairs a score; or with --top each node its best destinations.
    """
    from ..inference.files import FileRequest
    from ..inference.finished_run import of_edges
    from ..inference.pairs import SETS, predict_edges_to_file, predict_links_to_file
    from ..inference.predict import predict_to_file
    from ..inference.recommend import Wanted, recommend_to_file
    from ..telemetry.console import Terminal

    asked, run, out = asked_of_run(flags), expanded(run_folder), expanded(out)
    nodes, pairs, top, relation = options.nodes, options.pairs, options.top, options.relation
    all_probabilities, embeddings = options.all_probabilities, options.embeddings
    given = present_items(vars(options)).keys()
    if "top" not in given and (options.include_known or "at_time" in given):
        first = "--include-known" if options.include_known else "--time"
        raise InputError(f"{first} is given without --top; give --top K")
    if "relation" in given and not given & {"top", "pairs"}:
        raise InputError("--relation is given without --top or --pairs; give one of them")
    if "top" in given and ("pairs" in given or all_probabilities or embeddings):
        other = "--pairs" if "pairs" in given else "--embeddings" if embeddings else "--all-probabilities"
        raise InputError(f"--top and {other} are given; expected one of them")
    predicts_edges = not given & {"nodes", "top"} and not embeddings and of_edges(run)
    if options.labels and (given & {"top", "pairs"} or predicts_edges):
        raise InputError("--labels is given, but no nodes are predicted; leave it out")
    when = when_present(_moment, options.at_time)
    with Terminal() as terminal:
        request = FileRequest(run, out, **asked, emit=terminal)
        if top is not None:
            report = recommend_to_file(request, Wanted(top, nodes, relation, not options.include_known, when))
            done = f"{counted(report['pairs'], 'pair')} of {counted(report['sources'], 'source')}"
        elif predicts_edges:
            if "relation" in given:
                raise InputError("--relation is given, but labels of edges are of one relation; leave it out")
            wanted = pairs if pairs is None or pairs in SETS else str(expanded(Path(pairs)))
            report = predict_edges_to_file(request, wanted, all_probabilities)
            done = counted(report["edges"], "edge")
        elif pairs is not None:
            if "nodes" in given or all_probabilities or embeddings:
                raise InputError("--pairs is given beside options for nodes; expected one of them")
            report = predict_links_to_file(request, expanded(Path(pairs)), relation)
            done = counted(report["pairs"], "pair")
        else:
            report = predict_to_file(request, nodes, all_probabilities, embeddings, options.labels)
            done = counted(report["nodes"], "node")
    text = f"{done} of {report['dataset']} by {report['model']} in {out} ({report['seconds']:.1f} s)"
    text += f"; {report['scale']}" if "scale" in report else ""
    show(text, report, as_json)


def _moment(text: str) -> int | float | str:
    """The number, or the text of the date, that --time gives. Raises InputError if it is neither."""
    from ...storage.times.moments import Moment, moment_of

    moment = moment_of(text, "--time")
    return moment.text if isinstance(moment, Moment) else moment
