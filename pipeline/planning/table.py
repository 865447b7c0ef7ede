"""A plan as text for a terminal."""

from textwrap import fill

from ...storage.dataset import counted_outputs
from ...storage.plural import counted
from .choice import network_bytes, whole_seconds
from .forecast import Forecast
from .planner import Plan

ROW = "{:<21} {:>10} {:>4} {:>10} {:>10} {:>10} {:>7} {:>9} {:>9}"
HEAD = ("system", "memory", "fits", "network", "rows+ids", "from store", "steps", "epoch", "evaluation")
GRID_ROW = "{:>11} {:>10} {:>14} {:>10} {:>10} {}"
UNITS = ("B", "KB", "MB", "GB", "TB")


def as_text(plan: Plan) -> str:
    """A table of the systems, the choice, and notes."""
    cluster, link, n = plan.cluster, plan.cluster.link, plan.numbers
    between = f", {link.bandwidth * 8 / 1e9:g} Gb/s and {link.latency_s * 1e3:g} ms between ranks" if link else ""
    between = f" and {size(plan.device_bytes)} on its GPU" * (plan.device_bytes > 0) + between
    where = "this machine" if cluster.hosts == 1 else f"{cluster.hosts} machines like this one"
    types = f" of {n.node_types} types" * (n.node_types > 1)
    relations = f" of {counted(n.relations, 'relation')}" * (n.relations > 1)
    edges = f"{n.edges:,} edges{relations}" + f" with {counted(n.edge_features, 'feature')}" * (n.edge_features > 0)
    unit = "pairs" if n.task == "link" else "edges"
    train = f"{n.train * n.nodes:,.0f} {unit}" if n.of_pairs else f"{n.train:.1%}"
    lines = [
        f"{plan.dataset}: {n.nodes:,} nodes{types}, {edges}, {n.features} features, "
        f"{counted_outputs(n.task, n.classes, n.of_pairs)}, {train} to train on",
        f"{counted(plan.ranks, 'rank')} on {where}, {size(plan.memory_bytes)} for each{between}",
        "",
        ROW.format(*HEAD) + f"{'on GPU':>11}" * (plan.device_bytes > 0),
        *(_row(f) for f in plan.systems),
        "",
        "memory: of the largest rank. Bytes: of all ranks, one epoch (in brackets: once in a run). epoch, "
        "evaluation: seconds.",
        *(f"{f.label} does not fit: {f.arithmetic}" for f in plan.systems if not f.fits),
        fill(f"{f'Choose {plan.recommended}' if plan.recommended else 'Nothing to choose'}: {plan.why}.", 140),
    ]
    figures = {
        "shortest pass over all labels": lambda f: f"{whole_seconds(f, plan.epochs):.3g} s",
        "least memory": lambda f: size(f.memory_bytes),
        "fewest bytes between ranks": lambda f: f"{size(network_bytes(f))} a run",
    }
    by_label = {f.label: f for f in plan.systems}
    lines += ["Other goals:"] * bool(plan.goals)
    lines += [f"  {goal}: {label}, {figures[goal](by_label[label])}" for goal, label in plan.goals.items()]
    lines += plan.notes
    if plan.grids:
        lines += [
            "",
            'With bulk.topology = "partitioned", sampling a bulk, for one rank (seconds of messages '
            f'{"over this link" if link else "at 25 Gb/s and 50 us"}; *: bulk.algorithm = "auto"):',
            GRID_ROW.format("replication", "algorithm", "words sent", "waits for", "seconds", "").rstrip(),
        ]
    for g in plan.grids:
        cells = f"{g.words:,.0f}", f"{g.messages:.0f}", f"{g.seconds:.3g}", "*" * g.chosen
        lines.append(GRID_ROW.format(g.replication, g.algorithm, *cells).rstrip())
    return "\n".join(lines)


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
