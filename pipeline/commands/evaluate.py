"""`millrace evaluate`: evaluate a finished run's model on every split."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.optional import when_present
from ...storage.store.paths import expanded
from .shared.flags import (
    AllowCodeFlag,
    ClusterFlag,
    JsonFlag,
    OtherDatasetFlag,
    OwnDeviceFlag,
    OwnModelFlag,
    SchedulerFlag,
    WorkersFlag,
)
from .shared.job_table import check_workers, settings_of_run
from .shared.output import show


def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    dataset: OtherDatasetFlag = None,
    device: OwnDeviceFlag = None,
    workers: WorkersFlag = 1,
    scheduler: SchedulerFlag = None,
    cluster: ClusterFlag = None,
    model: OwnModelFlag = None,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a run's model on every split.

    Evaluation goes layer by layer, over full neighbourhoods.
    """
    from ...storage.dataset import SPLITS
    from ...storage.optional import present_items
    from ..custom.user_module import module_named
    from ..inference.evaluate import evaluate
    from ..inference.finished_run import load
    from ..telemetry.console import Terminal

    settings, options = settings_of_run(cluster)
    check_workers(device, workers, scheduler, settings)
    own = when_present(module_named, model)
    with Terminal() as terminal:
        trained = load(expanded(run_folder), model=own, device=device, emit=terminal)
        by: dict[str, object] = {"scheduler": scheduler, "cluster": settings}
        report = evaluate(trained, dataset, options=options, workers=workers, emit=terminal, **by)
    lines = [f"{report['model']} on {report['dataset']} ({report['seconds']:.2f} s)"]
    metrics = report.get("metrics", {})
    for split in SPLITS:
        accuracy = report["accuracy"][split] if "accuracy" in report else None
        values = [] if accuracy is None else [f"{accuracy:.4f}"]
        values += [f"{name} {value:.4f}" for name, value in present_items(metrics.get(split, {})).items()]
        lines.append(f"  {split:<6} {', '.join(values) or 'none'}")
    show("\n".join(lines), report, as_json)
