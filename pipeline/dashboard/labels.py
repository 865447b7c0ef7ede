"""Text of the page: a run's description, progress and waits. Names chosen by users are escaped."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..telemetry.palette import STAGES
from .snapshot import SPENT, WAITS

NONE = "&ndash;"
BAD, GOOD, PALE = "#B00020", "#00703C", "#666666"
WAITED_FOR = dict(zip(WAITS, ("minibatches", "rows of other ranks", "the slowest rank, and sums of gradients")))


def amount(value: float, unit: str = "") -> str:
    """A number with three digits and a prefix."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":
            digits = f"{value:.0f}" if value == int(value) and not prefix else f"{value:.3g}"
            return f"{digits} {prefix}{unit}".strip()
        value /= 1000
    raise AssertionError


def size(value: float) -> str:
    """Bytes, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 999.5 else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def percent(share: float | None) -> str:
    """A share of one in percent."""
    return NONE if share is None else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {s:02d} s" if minutes else f"{seconds:.0f} s"


def legend() -> str:
    """Colours of the bars of ranks. Unlike a legend of Bokeh it breaks into lines in a narrow window."""
    square = "<span style='display:inline-block;width:12px;height:12px;background:{}'></span> {}"
    entries = (square.format(STAGES[name], name.replace("_", " ")) for name in SPENT)
    named = "".join(f"<span style='display:inline-block;margin-right:12px'>{entry}</span>" for entry in entries)
    return f"<b>Where each rank's time goes</b><div>{named}</div>"


def title(run: dict[str, Any]) -> str:
    """A run's name in the list of runs, as plain text."""
    return f"{Path(run['out'] or run['run']).name} ({run['state'].split(':')[0]})"


def heading(run: dict[str, Any]) -> str:
    """Description of a run, its progress, and its troubles."""
    ranks = count(run["num_ranks"] or len(run["ranks"]), "rank")
    if run["command"]:
        what = f"{run['command']} of {run['dataset']} into {run['out']}"
    else:
        what = f"{run['model'] or '?'} with {run['system'] or '?'} on {run['dataset'] or '?'}, {ranks}"
    state, colour = run["state"], {"running": GOOD, "done": GOOD, "starting": PALE}.get(run["state"], BAD)
    where = [
        f"<b style='color:{colour}'>{escape(state)}</b>",
        duration(run["elapsed_s"]),
        *([escape(run["doing"])] if run["doing"] else []),
    ]
    heard, asked = sum(r["state"] != "starting" for r in run["ranks"]), run["num_ranks"] or 0
    if run["state"] in ("starting", "running") and not run["command"] and heard < asked:
        where.append(f"waiting for ranks: {heard} of {asked} there")
    if run["epoch"] >= 0:
        step = f", step {run['step'] + 1} of {run['steps_per_epoch']}" if run["steps_per_epoch"] else ""
        of = f" of {run['epochs']}" if run["epochs"] else ""
        where.append(f"epoch {run['epoch'] + 1}{of}{step}")
    if run["left_s"] is not None:
        where.append(f"about {duration(run['left_s'])} left")
    if run["train_loss"] is not None:
        where.append(f"loss {run['train_loss']:.4f}")
    if run["best_validation"] is not None:
        where.append(f"best validation {run['metric']} {run['best_validation']:.4f} (epoch {run['best_epoch'] + 1})")
    wrong = "".join(f"<div style='color:{BAD}'>&#9888; {escape(text)}</div>" for text in troubles(run))
    first = f"<div style='font-size:18px'>{escape(what)}</div><div>{' &middot; '.join(where)}</div>"
    return f"{first}{wrong}<div>{verdict(run)}</div>"


def troubles(run: dict[str, Any]) -> list[str]:
    """Sentences about ranks that are silent or were lost."""
    found = [
        f"rank {r['rank']} has been silent for {duration(r['silent_s'])}"
        for r in run["ranks"]
        if r["state"] == "silent"
    ]
    well = ("running", "starting", "silent", "done", "stopped", run["state"])
    found += [f"rank {r['rank']}: {r['state']}" for r in run["ranks"] if r["state"] not in well]
    if again := max((r["generation"] for r in run["ranks"]), default=0):
        found.append(f"all ranks have started again {count(again, 'time')}")
    return found


def verdict(run: dict[str, Any]) -> str:
    """A sentence on what the ranks' time is spent on."""
    train = run["stages"]["train"]
    if run["state"] != "running" or train["waits"] is None:
        return ""
    worst, share = max(train["for"].items(), key=lambda item: item[1])
    most = f", most of that ({percent(share)}) for {WAITED_FOR[worst]}" if share >= 0.05 else ""
    return (
        f"In the last {run['rates']['over_s']:.0f} s ranks waited <b>{percent(train['waits'])}</b> of their time{most}."
    )


def stages(run: dict[str, Any]) -> str:
    """Table with a row for each stage: its speed, and the share of its time that it waits."""
    if run["command"]:
        return progress(run)
    found, rows = run["stages"], []
    if sample := found.get("sample"):
        by = f"{count(run['producers'] or 1, 'task')} at a time" if sample["by"] == "tasks" else "a thread in each rank"
        speed = NONE if sample["bulks_per_s"] is None else f"{amount(sample['bulks_per_s'])} bulks/s"
        rows.append(("sample", by, speed, sample["waits"], "for space in the queue, or has done all"))
    if fetch := found.get("fetch"):
        rows.append(("fetch", "a thread in each rank", NONE, fetch["waits"], "for minibatches, or for space"))
    train = found["train"]
    speed = f"{amount(train['steps_per_s'])} steps/s, {amount(train['edges_per_s'])} edges/s"
    rows.append(("train", count(len(run["ranks"]), "rank"), speed, train["waits"], _for_what(train["for"])))
    return table(
        ("stage", "by", "rate", "waits", "for"),
        [(f"<b>{name}</b>", by, speed, percent(waits), why) for name, by, speed, waits, why in rows],
    )


def progress(run: dict[str, Any]) -> str:
    """Table with a row for each stage of a command: how far it is, and its time."""
    rows = []
    for s in run["progress"]:
        of = f"{s['done']:,} of {s['total']:,}" if s["total"] else NONE
        share = percent(s["done"] / s["total"]) if s["total"] else NONE
        name = f"<b>{escape(s['stage'])}</b>" if s["state"] == "running" else escape(s["stage"])
        rows.append((name, escape(s["text"]), of, share, duration(s["seconds"]), s["state"]))
    return table(("stage", "what", "done", "", "time", ""), rows)


def count(number: int, what: str) -> str:
    """A number and its noun, such as ``3 ranks``."""
    return f"{number} {what}{'s' if number != 1 else ''}"


def _for_what(shares: dict[str, float]) -> str:
    found = [f"{percent(shares[name])} {what}" for name, what in WAITED_FOR.items() if shares[name] >= 0.005]
    return ", ".join(found) or NONE


def bytes_moved(run: dict[str, Any]) -> str:
    """Table with a row for each kind: bytes in all, and per second."""
    rates, rows = run["rates"]["bytes"], []
    for channel, kinds in run["bytes"].items():
        for kind, total in kinds.items():
            speed = rates.get(channel, {}).get(kind, 0)
            rows.append((channel, kind, size(total), f"{size(speed)}/s" if speed else NONE))
    if (hot := run["hot"]) and hot["rows"]:
        rows.append(
            ("hot rows", "hits", f"{percent(hot['rate'])} of {amount(hot['asked'])}", f"{amount(hot['rows'])} kept")
        )
    return (
        table(("bytes", "kind", "in all", "now"), rows)
        if rows
        else f"<span style='color:{PALE}'>nothing has been moved yet</span>"
    )


def notes(run: dict[str, Any]) -> str:
    """Notes of a run, the latest first."""
    rows = [
        (f"<span style='color:{PALE}'>{duration(n['time_s'])}</span>", escape(n["text"]))
        for n in reversed(run["notes"])
    ]
    return table(("when", "note"), rows[:8]) if rows else ""


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """An HTML table; cells are HTML."""
    left = "text-align:left;vertical-align:top;padding:1px 12px 1px 0"
    top = "".join(f"<th style='{left};color:{PALE};font-weight:normal'>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td style='{left}'>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table style='border-collapse:collapse;font-size:13px'><tr>{top}</tr>{body}</table>"
