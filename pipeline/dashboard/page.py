"""The page: HTML that draws `snapshot.record`. A browser asks for its changing part once a second."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ...storage.plural import counted
from ..telemetry.palette import STAGES, VARIABLES
from ..telemetry.quantities import amount, duration, thousands
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
    shown = body(history, token, run, over)
    return rendered("live.html", title="Millrace", tabs=tabs, body=shown, every_ms=EVERY_MS)


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
        what=_what(chosen),
        where=_where(chosen),
        facts=_facts(chosen),
        troubles=_troubles(chosen),
        verdict=_verdict(chosen),
        boxes=[] if chosen["command"] else _boxes(chosen),
        spans=[
            (link(over=o), text, o == over) for o, text in (("recent", "the last seconds"), ("whole", "the whole run"))
        ],
        legend=[(name.replace("_", " "), VARIABLES[STAGES[name]]) for name in SPENT],
        ranks=[(r, _shares(r["share"][over]), _state(r), r["state"] not in FINE) for r in chosen["ranks"]],
        charts=[] if chosen["command"] else charts(chosen),
        fine=FINE,
    )


def percent(share: float | None) -> str:
    """A share of one in percent."""
    return "–" if share is None else f"{100 * share:.0f} %"


def _title(run: dict[str, Any]) -> str:
    return f"{Path(run['out'] or run['run']).name} ({run['state'].split(':')[0]})"


def _what(run: dict[str, Any]) -> str:
    if run["command"]:
        return f"{run['command']} of {run['dataset']} into {run['out']}"
    ranks = counted(run["num_ranks"] or len(run["ranks"]), "rank")
    return f"{run['model'] or '?'} with {run['system'] or '?'} on {run['dataset'] or '?'}, {ranks}"


def _where(run: dict[str, Any]) -> list[str]:
    """Progress of the run, in clauses."""
    heard, asked = sum(r["state"] != "starting" for r in run["ranks"]), run["num_ranks"] or 0
    found = [duration(run["elapsed_s"]), run["doing"]]
    if run["state"] in ("starting", "running") and not run["command"] and heard < asked:
        found.append(f"waiting for ranks: {heard} of {asked} there")
    if run["epoch"] >= 0:
        step = f", step {run['step'] + 1} of {run['steps_per_epoch']}" if run["steps_per_epoch"] else ""
        found.append(f"epoch {run['epoch'] + 1}" + (f" of {run['epochs']}" if run["epochs"] else "") + step)
    if run["left_s"] is not None:
        left = run["left_s"]
        found.append(f"about {f'{left:.0f} s' if left < 120 else duration(left)} left")
    return [clause for clause in found if clause]


def _facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    best, loss = run["best_validation"], run["train_loss"]
    found = [] if loss is None else [("loss of the last epoch", f"{loss:.4f}")]
    if best is not None:
        found.append((f"best validation {run['metric']} (epoch {run['best_epoch'] + 1})", f"{best:.4f}"))
    if hot := run["hot"]:
        found.append(
            (f"hits of {thousands(hot['rows'])} hot rows", f"{percent(hot['rate'])} of {thousands(hot['asked'])}")
        )
    return found


def _troubles(run: dict[str, Any]) -> list[str]:
    """Sentences about ranks that are silent or were lost."""
    silent = [r for r in run["ranks"] if r["state"] == "silent"]
    found = [f"rank {r['rank']} has been silent for {duration(r['silent_s'])}" for r in silent]
    well = (*FINE, "silent", "stopped", run["state"])
    found += [f"rank {r['rank']}: {r['state']}" for r in run["ranks"] if r["state"] not in well]
    if again := max((r["generation"] for r in run["ranks"]), default=0):
        found.append(f"all ranks have started again {counted(again, 'time')}")
    if run["unreadable"]:
        found.append(f"{counted(run['unreadable'], 'report')} could not be read")
    return found


def _verdict(run: dict[str, Any]) -> str:
    """A sentence on what the ranks' time is spent on."""
    train = run["stages"]["train"]
    if run["state"] != "running" or train["waits"] is None:
        return ""
    worst, share = max(train["for"].items(), key=lambda item: item[1])
    most = f", most of that ({percent(share)}) for {WAITED_FOR[worst]}" if share >= 0.05 else ""
    return f"In the last {run['rates']['over_s']:.0f} s ranks waited {percent(train['waits'])} of their time{most}."


def _boxes(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The stages of the pipeline: who works, how fast, how much of the time is waited and for what."""
    found, boxes, ranks = run["stages"], [], run["ranks"]
    if sample := found.get("sample"):
        is_by_tasks = sample["by"] == "tasks"
        by = f"{counted(run['producers'] or 1, 'task')} at a time" if is_by_tasks else IN_RANKS
        rate = "" if sample["bulks_per_s"] is None else f"{thousands(sample['bulks_per_s'])} bulks/s"
        boxes.append(_box("sample", by, rate, sample["waits"], "no space in the queue, or all is drawn"))
    if queue := run["queue"]:
        rate = f"{amount(queue['bytes'])} of {amount(queue['bound'])}"
        full = min(1.0, queue["bytes"] / queue["bound"]) if queue["bound"] else 0.0
        boxes.append(_box("queue", counted(queue["bulks"], "bulk"), rate) | {"full": full})
    if fetch := found.get("fetch"):
        boxes.append(_box("fetch", IN_RANKS, "", fetch["waits"], "no minibatches, or no space"))
    train = found["train"]
    rate = f"{thousands(train['steps_per_s'])} steps/s, {thousands(train['edges_per_s'])} edges/s"
    why = (
        f"{percent(train['for'][name])} for {what}" for name, what in WAITED_FOR.items() if train["for"][name] >= 0.005
    )
    mostly = [max(r["share"]["recent"], key=r["share"]["recent"].get, default="other") for r in ranks[:DOTS]]
    dots = [(r["rank"], VARIABLES[STAGES[most]], most) for r, most in zip(ranks, mostly)]
    return [*boxes, _box("train", counted(len(ranks), "rank"), rate, train["waits"], ", ".join(why)) | {"dots": dots}]


def _box(name: str, by: str, rate: str, waits: float | None = None, why: str = "") -> dict[str, Any]:
    return {"name": name, "by": by, "rate": rate, "waits": waits, "why": why}


def _shares(share: dict[str, float]) -> list[tuple[str, str, str, str]]:
    """Name, colour, width and words of each piece of a rank's bar."""
    pieces = [(name, share.get(name, 0.0)) for name in SPENT]
    return [(n.replace("_", " "), VARIABLES[STAGES[n]], f"{100 * s:.2f}%", percent(s)) for n, s in pieces if s > 0.0005]


def _state(rank: dict[str, Any]) -> str:
    stage = rank["stage"].replace("_", " ")
    if rank["state"] == "silent":
        return f"silent for {duration(rank['silent_s'])}, last in {stage or 'nothing'}"
    where = f"epoch {rank['epoch'] + 1}, step {rank['step'] + 1}" if rank["epoch"] >= 0 else ""
    return (", ".join(filter(None, (where, stage))) if rank["state"] == "running" else "") or rank["state"]
