"""`millrace evaluate`: evaluate a finished run's model on every split."""

from pathlib import Path
from typing import Annotated

import typer

from .shared.flags import JsonFlag, OtherDatasetFlag, OwnModelFlag
from .shared.output import show
from .shared.paths import expanded


def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    dataset: OtherDatasetFlag = None,
    model: OwnModelFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a run's model on every split.

    Evaluation goes layer by layer, over full neighbourhoods.
    """
    from ..inference.evaluate import evaluate_run
    from ..interop.user_module import module_named
    from ..telemetry.console import Terminal

    own = None if model is None else module_named(model)
    with Terminal() as terminal:
        report = evaluate_run(expanded(run_folder), dataset, model=own, emit=terminal)
    lines = [f"{report['model']} on {report['dataset']} ({report['seconds']:.2f} s)"]
    for name, value in report["accuracy"].items():
        lines.append(f"  {name:<6} {'none' if value is None else f'{value:.4f}'}")
    show("\n".join(lines), report, as_json)
