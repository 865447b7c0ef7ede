"""Charts of the page: lines over the seconds of a run, as values of its template."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...storage.ledger import KINDS as LEDGER
from ..telemetry.palette import KINDS, LINES, STAGES, VARIABLES
from ..telemetry.quantities import amount, duration, thousands

MANY = 10
"""Most ranks whose lines are named."""
WIDTH, HEIGHT = 300, 100
"""Size of a chart in its own units; the page stretches it."""

Values = Sequence[float | None]
Line = tuple[str, str, Sequence[float], Values]
"""Name, colour, seconds and values; None breaks the line."""


def charts(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The charts of a run; those of what it does not do are left out."""
    curves, rates, done = run["curves"], run["curves"]["rates"], run["epochs_done"]
    times, each, ends, end = curves["time_s"], rates["rate_time_s"], [e["time_s"] for e in done], run["elapsed_s"]
    losses, validations = ([e[key] for e in done] for key in ("train_loss", "validation"))
    of_steps: Line = ("of steps", STAGES["other"], times, curves["loss"])
    found = [chart("Loss", _short, [of_steps, ("of epochs", STAGES["forward_backward"], ends, losses)], end)]
    if (first := run["first_validation"]) or {*validations} - {None}:
        line = ("", STAGES["evaluate"], ends, validations)
        made = chart(f"Validation {run['metric']}", _short, [line], end, from_zero=False)
        found.append({**made, "empty": f"fills after epoch {first}"})
    if queue := run["queue"]:
        line = ("waiting", STAGES["exchange"], times, curves["queue_bytes"])
        found.append(chart("Queue", amount, [line], end, bound=queue["bound"]))
    for title, name, colour in (
        ("Training steps", "steps", STAGES["forward_backward"]),
        ("Training edges", "edges", STAGES["forward_backward"]),
        ("Sampled bulks", "bulks", STAGES["sample"]),
    ):
        if name != "bulks" or run["bulks_sampled"] is not None:
            found.append(chart(title, lambda value: f"{thousands(value)}/s", [("", colour, each, rates[name])], end))
    seen, is_named = [(r["rank"], r["memory"]) for r in run["ranks"]], len(run["ranks"]) <= MANY
    colours = (LINES[rank % len(LINES)] for rank, _ in seen)
    names = (f"rank {rank}" if is_named else "" for rank, _ in seen)
    lines = [(name, colour, m["time_s"], m["rss_bytes"]) for name, colour, (_, m) in zip(names, colours, seen)]
    found.append(chart("Memory of ranks", amount, lines, end))
    if moved := [kind for kind in LEDGER["network"] if f"network {kind}" in rates]:
        lines = [(kind, KINDS[kind], each, rates[f"network {kind}"]) for kind in moved]
        found.append(chart("Network", lambda value: f"{amount(value)}/s", lines, end))
    return found


def _short(value: float) -> str:
    return f"{value:.3g}"


def chart(
    title: str,
    text: Callable[[float], str],
    lines: Sequence[Line],
    end_s: float,
    *,
    from_zero: bool = True,
    bound: float = math.inf,
) -> dict[str, Any]:
    """Values of a chart.

    Args:
        title: what it shows.
        text: a value in words.
        lines: its lines.
        end_s: seconds at its right end.
        from_zero: begin at 0, and not at the least value.
        bound: a level that is marked, unless it would flatten the lines.
    """
    drawn = [(name, colour, at, [math.nan if v is None else float(v) for v in of]) for name, colour, at, of in lines]
    seen = [value for *_, values in drawn for value in values if math.isfinite(value)]
    if not seen:
        return {"title": title, "empty": "nothing yet"}
    most, least = max(seen), min([0.0, *seen] if from_zero else seen)
    is_marked = bound <= 20 * most
    span = (max(most, bound) if is_marked else most) - least or abs(most) or 1.0

    def height(value: float) -> str:
        return f"{HEIGHT * (1 - (value - least) / span):.1f}"

    def path(times: Sequence[float], values: Sequence[float]) -> str:
        points, pen = [], "M"
        for at, value in zip(times, values):
            if math.isfinite(value):
                points.append(f"{pen}{WIDTH * min(1.0, at / max(end_s, 1e-9)):.1f} {height(value)}")
            pen = "L" if math.isfinite(value) else "M"
        # A point alone is drawn as a dot.
        return "".join(points) + ("h0" if len(points) == 1 else "")

    def last(values: Sequence[float]) -> str:
        return next((text(value) for value in reversed(values) if math.isfinite(value)), "")

    paths = [(name, VARIABLES[colour], path(times, values), last(values)) for name, colour, times, values in drawn]
    ends = {"most": text(least + span), "least": text(least), "end": duration(end_s)}
    mark = height(bound) if is_marked else ""
    return {"title": title, "lines": paths, **ends, "bound": mark, "size": (WIDTH, HEIGHT)}
