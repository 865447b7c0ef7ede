"""The page: HTML that draws `snapshot.record`. A browser asks for its changing part once a second."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ...storage.plural import counted
from ..telemetry.palette import STAGES, VARIABLES
from ..telemetry.quantities import amount, percent, thousands
from ..telemetry.templates import rendered
from .charts import charts
from .history import History
from .snapshot import SPENT, WAITS, record

EVERY_MS = 1000
DOTS = 80
"""Most ranks that have a dot in the box of training."""
IN_RANKS = "a thread in each rank"
OVER = {"recent": "the last seconds", "whole": "the whole run"}
WAITED_FOR = dict(zip(WAITS, ("minibatches", "rows of other ranks", "the slowest rank, and sums of gradients")))
FINE = ("running", "starting", "done")


def whole(history: History, token: str, tabs: Sequence[str], run: str, over: str) -> str:
    """The page, with Dask's `tabs`; see `body`."""
    return rendered("live.html", title="Millrace", tabs=tabs, body=body(history, token, run, over), every_ms=EVERY_MS)


def body(history: History, token: str, run: str = "", over: str = "recent") -> str:
    """The part of the page that changes.

    Args:
        history: what the scheduler has heard.
        token: that of the page, which its links carry.
        run: name of the run that is shown; by default, and if there is none of that name, the newest.
        over: ``recent`` or ``whole``: the time that the ranks' shares are of, while the run goes on.
    """
    runs = record(history)["runs"]
    chosen = next((r for r in runs if r["run"] == run), runs[0] if runs else None)
    if chosen is None:
        return rendered("body.html", run=None)
    over = over if chosen["state"] == "running" else "whole"

    def link(**query: str) -> str:
        return "?" + urlencode({"token": token, "run": run, "over": over, **query})

    return rendered(
        "body.html",
        run=chosen,
        others=[(link(run=r["run"]), _title(r), r is chosen) for r in runs] if len(runs) > 1 else [],
        waited_for=WAITED_FOR,
        boxes=[] if chosen["command"] else _boxes(chosen),
        spans=[(link(over=o), text, o == over) for o, text in OVER.items()],
        legend=[(name.replace("_", " "), VARIABLES[STAGES[name]]) for name in SPENT],
        ranks=[(r, _shares(r["share"][over])) for r in chosen["ranks"]],
        charts=[] if chosen["command"] else charts(chosen),
        fine=FINE,
    )


def _title(run: dict[str, Any]) -> str:
    return f"{Path(run['out'] or run['run']).name} ({run['state'].split(':')[0]})"


def _boxes(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The stages of the pipeline: who works, how fast, how much of the time is waited and for what."""
    found, boxes = run["stages"], list[dict[str, Any]]()
    if sample := found.get("sample"):
        by = f"{counted(run['producers'] or 1, 'task')} at a time" if sample["by"] == "tasks" else IN_RANKS
        rate = "" if sample["bulks_per_s"] is None else f"{thousands(sample['bulks_per_s'])} bulks/s"
        boxes.append(_box("sample", by, rate, sample["waits"], "no space in the queue, or all is drawn"))
    if queue := run["queue"]:
        full = min(1.0, queue["bytes"] / queue["bound"]) if queue["bound"] else 0.0
        rate = f"{amount(queue['bytes'])} of {amount(queue['bound'])}"
        boxes.append(_box("queue", counted(queue["bulks"], "bulk"), rate) | {"full": full})
    if fetch := found.get("fetch"):
        boxes.append(_box("fetch", IN_RANKS, "", fetch["waits"], "no minibatches, or no space"))
    train, seen = found["train"], run["ranks"][:DOTS]
    rate = f"{thousands(train['steps_per_s'])} steps/s, {thousands(train['edges_per_s'])} edges/s"
    why = (f"{percent(s)} for {WAITED_FOR[name]}" for name, s in train["for"].items() if s >= 0.005)
    mostly = [max(r["share"]["recent"], key=r["share"]["recent"].get, default="other") for r in seen]
    dots = [(r["rank"], VARIABLES[STAGES[most]], most) for r, most in zip(seen, mostly)]
    done = _box("train", counted(len(run["ranks"]), "rank"), rate, train["waits"], ", ".join(why))
    return [*boxes, done | {"dots": dots}]


def _box(name: str, by: str, rate: str, waits: float | None = None, why: str = "") -> dict[str, Any]:
    return {"name": name, "by": by, "rate": rate, "waits": waits, "why": why}


def _shares(share: dict[str, float]) -> list[tuple[str, str, str, str]]:
    """Name, colour, width and words of each piece of a rank's bar."""
    pieces = [(name, share.get(name, 0.0)) for name in SPENT]
    return [(n.replace("_", " "), VARIABLES[STAGES[n]], f"{100 * s:.2f}%", percent(s)) for n, s in pieces if s > 0.0005]
