"""A plan as text for a terminal."""

from textwrap import fill

from ...storage.dataset import counted_outputs
from ..telemetry.templates import rendered
from .choice import network_bytes, whole_seconds
from .forecast import Forecast
from .planner import Plan

ROW = "{:<21} {:>10} {:>4} {:>10} {:>10} {:>10} {:>7} {:>9} {:>10}"
HEAD = ("system", "memory", "fits", "network", "rows+ids", "from store", "steps", "epoch", "evaluation")
ERRORS = ("measured error", "-25..+25%", "", "<1%", "<1%", "<1%", "", "-68..+87%", "")
"""By how much forecasts of whole runs were off (``benchmarks/plan.py``), below the heads of the columns."""
STAND_IN_ERRORS = ("measured error", "-7..+23%", "", "-72..+1%", "-72..+1%", "-72..+1%", "", "-82..+157%", "")
"""The same where a smaller graph stood in."""
GRID_HEAD = ("replication", "algorithm", "words sent", "waits for", "seconds", "")
GRID_ROW = "{:>11} {:>10} {:>14} {:>10} {:>10} {}"
UNITS = ("B", "KB", "MB", "GB", "TB")


def as_text(plan: Plan) -> str:
    """A table of the systems, the choice, and notes."""
    n, forecasts = plan.numbers, {f.label: f for f in plan.systems}
    train, unit = n.train * n.nodes, "pairs" if n.task == "link" else "edges"
    figures = {
        "shortest pass over all labels": lambda f: f"{whole_seconds(f, plan.epochs):.3g} s",
        "least memory": lambda f: size(f.memory_bytes),
        "fewest bytes between ranks": lambda f: f"{size(network_bytes(f))} a run",
    }
    grids = (
        (g.replication, g.algorithm, f"{g.words:,.0f}", f"{g.messages:.0f}", f"{g.seconds:.3g}", "*" * g.chosen)
        for g in plan.grids
    )
    return rendered(
        "plan.txt",
        plan=plan,
        size=size,
        outputs=counted_outputs(n.task, n.classes, n.of_pairs),
        train=f"{train:,.0f} {unit}" if n.of_pairs else f"{n.train:.1%}",
        rows=[
            ROW.format(*HEAD) + f"{'on GPU':>11}" * (plan.device_bytes > 0),
            ROW.format(*(STAND_IN_ERRORS if plan.stands_in else ERRORS)).rstrip(),
            *map(_row, plan.systems),
        ],
        choice=fill(f"{f'Choose {plan.recommended}' if plan.recommended else 'Nothing to choose'}: {plan.why}.", 140),
        goals=[(goal, label, figures[goal](forecasts[label])) for goal, label in plan.goals.items()],
        grids=[GRID_ROW.format(*row).rstrip() for row in (GRID_HEAD, *grids)] if plan.grids else [],
    ).rstrip("\n")


def _row(f: Forecast) -> str:
    """The line of a system, without what only a trial tells if it had none."""
    cells, seconds = [""] * 3, [""] * 2
    if f.seconds_per_epoch is not None:
        cells = [_bytes(f, "network"), _bytes(f, "network", ("gradients", "control")), _bytes(f, "store")]
        seconds = [f"{f.seconds_per_epoch:.3g}", f"{f.evaluate_seconds:.2g}" if f.evaluate_seconds else ""]
    row = ROW.format(f.label, size(f.memory_bytes), "yes" if f.fits else "no", *cells, f.steps_per_epoch, *seconds)
    return row + f" {size(f.device_bytes):>10}" * bool(f.device_memory)


def _bytes(f: Forecast, channel: str, without: tuple[str, ...] = ()) -> str:
    """Bytes of an epoch; in brackets, those moved once in a run."""
    run, epoch = (
        sum(count for kind, count in of.get(channel, {}).items() if kind not in without)
        for of in (f.bytes, f.bytes_per_epoch)
    )
    once = run - f.epochs * epoch
    return size(epoch) if epoch else f"({size(once)})" if once >= 1 else "0"


def size(count: float) -> str:
    """Bytes in three digits."""
    power = 0
    while abs(count) >= 999.5 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {UNITS[power]}"
