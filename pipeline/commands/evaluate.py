"""`millrace evaluate`: evaluate a finished run's model on every split."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.optional import present_items
from ...storage.store.paths import expanded
from .shared.flags import OF_RUN, AllowCodeFlag, Flags, JsonFlag, with_flags
from .shared.job_table import asked_of_run
from .shared.output import show


@with_flags(OF_RUN, {})
def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    *,
    flags: Flags,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a run's model on every split.

    Evaluation goes layer by layer, over full neighbourhoods.
    """
    from ...storage.dataset import SPLITS
    from ..inference.evaluate import evaluate
    from ..inference.finished_run import load
    from ..telemetry.console import Terminal

    asked = asked_of_run(flags)
    with Terminal() as terminal:
        loaded = {key: asked.pop(key) for key in ("model", "device")}
        report = evaluate(load(expanded(run_folder), **loaded, emit=terminal), **asked, emit=terminal)
    lines = [f"{report['model']} on {report['dataset']} ({report['seconds']:.2f} s)"]
    metrics = report.get("metrics", {})
    for split in SPLITS:
        accuracy = report["accuracy"][split] if "accuracy" in report else None
        values = [] if accuracy is None else [f"{accuracy:.4f}"]
        values += [f"{name} {value:.4f}" for name, value in present_items(metrics.get(split, {})).items()]
        lines.append(f"  {split:<6} {', '.join(values) or 'none'}")
    show("\n".join(lines), report, as_json)
