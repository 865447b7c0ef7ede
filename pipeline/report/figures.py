"""Pictures of one run."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..telemetry.curves import draw_curves, thinned
from ..telemetry.palette import INK, KINDS, LINES, STAGE_MEANINGS, STAGES
from ..telemetry.quantities import amount, duration
from ..telemetry.run_log import RunLog
from .canvas import Sheet
from .reading import RunRecord
from .summary import SLOW_START, Summary, first_step
from .timeline import ROWS, Timeline

Draw = Callable[[Sheet], None]
OTHER = f"“other”: {STAGE_MEANINGS['other']}."
SHOWN_RANKS = 16
BINS, FEW_BINS = 240, 120
WRITTEN_OUT = 12
"""Most ranks for which tables are drawn with numbers."""
DASHES = ("-", "--", ":", "-.")


def line_style(number: int) -> dict[str, Any]:
    """Colour and dashes of the line of a rank, a run or a part."""
    return {"color": LINES[number % len(LINES)], "linestyle": DASHES[number // len(LINES) % len(DASHES)]}


def shown_ranks(line: Timeline, summary: Summary) -> list[int]:
    """All ranks; if there are many, those that waited least and those that waited most."""
    ranks = list(line.ranks)
    if len(ranks) <= SHOWN_RANKS:
        return ranks
    by_wait = sorted(ranks, key=lambda rank: summary.seconds[ranks.index(rank)]["reduce"])
    return sorted({*by_wait[: SHOWN_RANKS // 2], *by_wait[-SHOWN_RANKS // 2 :]})


def when(run: RunRecord, line: Timeline, summary: Summary, first: float = 0.0) -> Draw:
    """Stages of the run, and below them the time of each rank by stage, from second `first` on."""

    def draw(sheet: Sheet) -> None:
        ranks = shown_ranks(line, summary)
        spans = [(s.stage, *line.positions([s.begin, s.end])) for s in run.log.spans]
        spans = [(stage, max(begin, first), end) for stage, begin, end in spans if end >= first]
        stages = list(dict.fromkeys(stage for stage, *_ in spans))
        axes = sheet.rows([0.28 + 0.17 * max(1, len(stages)), *[0.85 if len(ranks) < 9 else 0.5] * len(ranks)])
        thinnest = (line.length - first) / 400
        for row, stage in enumerate(stages):
            pieces = [(begin, max(end - begin, thinnest)) for of, begin, end in spans if of == stage]
            axes[0].broken_barh(pieces, (row - 0.35, 0.7), color=STAGES.get(stage, STAGES["other"]))
        axes[0].set(yticks=range(len(stages)), yticklabels=stages, title="the run")
        axes[0].invert_yaxis()
        for at in line.positions([at for at, _ in run.log.notes]):
            axes[0].axvline(at, color=INK, linewidth=0.6, linestyle=":")
        patches: dict[str, Any] = {}
        for ax, rank in zip(axes[1:], ranks):
            edges, shares = line.shares(rank, BINS if len(ranks) < 9 and not sheet.narrow else FEW_BINS, first)
            base = np.zeros(len(shares))
            for name, share in zip(ROWS, shares.T):
                if (share > 0.001).any():
                    patches[name] = _stairs(ax, edges, base, base + share, color=STAGES[name], linewidth=0.2)
                base = base + share
            ax.set(ylim=(0, 1), yticks=[0.5], yticklabels=[f"rank {rank}"])
            ax.tick_params(left=False)
        for ax in axes:
            for at, _ in line.cuts:
                ax.axvline(at, color=INK, linewidth=1)
        without = ", without the times in which nothing ran (lines)" if line.cuts else ""
        axes[-1].set(xlim=(first, line.length), xlabel=f"seconds{without}")
        names = [name for name in ROWS if name in patches]
        sheet.legend([patches[name] for name in names], names)

    return draw


def _stairs(ax: Any, edges: Any, low: Any, high: Any, **options: Any) -> Any:
    """Fill between two curves of steps, as `stairs`, which looks for the ends of each step in Python."""
    low, high = (np.repeat(values, 2) for values in (low, high))
    return ax.fill_between(np.repeat(edges, 2)[1:-1], low, high, **options)


def curves(log: RunLog, result: Mapping[str, Any]) -> Draw | None:
    """Loss of steps and epochs, and the metric of validations."""
    if not log.epochs and not log.steps:
        return None
    return lambda sheet: draw_curves(log, result, lambda count: sheet.grid(count, 2.5, 2))


def bars_of_bytes(summary: Summary) -> Draw | None:
    """Bytes by channel and kind."""
    rows = [(channel, kind, n) for channel, kinds in summary.bytes.items() for kind, n in kinds.items() if n]
    if not rows:
        return None

    def draw(sheet: Sheet) -> None:
        (ax,) = sheet.rows([0.5 + 0.24 * len(rows)])
        colours = [KINDS.get(kind, STAGES["other"]) for _, kind, _ in rows]
        ax.barh(range(len(rows)), [n for *_, n in rows], color=colours, height=0.7)
        ax.set_yticks(range(len(rows)), [f"{channel}: {kind}" for channel, kind, _ in rows])
        ax.invert_yaxis()
        most = max(n for *_, n in rows)
        for row, (*_, n) in enumerate(rows):
            ax.text(n + most / 100, row, amount(n), va="center")
        ax.set(xlim=(0, most * (1.45 if sheet.narrow else 1.15)), xticks=[])
        ax.spines["bottom"].set_visible(False)

    return draw


def pairs(summary: Summary) -> Draw | None:
    """Bytes of messages from rank to rank, one table per channel."""
    tables = {channel: np.array(table) for channel, table in summary.sent.items() if np.any(table)}
    if not tables:
        return None

    def draw(sheet: Sheet) -> None:
        size = len(next(iter(tables.values())))
        height = min(4.2, 1.0 + 0.42 * size)
        for ax, (channel, table) in zip(sheet.grid(len(tables), height, 2), tables.items()):
            most = table.max()
            for r, s in np.ndindex(size, size):
                shade = {"color": LINES[0], "alpha": 0.05 + 0.5 * float(table[r, s] / most), "linewidth": 0}
                ax.barh(r, 1, left=s - 0.5, height=1, **shade)
                if size <= WRITTEN_OUT and r != s:
                    ax.text(s, r, amount(table[r, s]), ha="center", va="center", fontsize=9 if size < 7 else 6)
            every = range(0, size, max(1, size // WRITTEN_OUT))
            ax.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xlabel="to rank", ylabel="from rank")
            ax.set(xticks=every, yticks=every)
            largest = "" if size <= WRITTEN_OUT else f", at most {amount(most)} a pair"
            ax.set_title(f"{channel}: {amount(table.sum())}{largest}")

    return draw


def memory(run: RunRecord, line: Timeline, summary: Summary) -> Draw | None:
    """Resident memory of each rank over time, drawn over its known parts."""
    logs = run.log.ranks
    ranks = [rank for rank in shown_ranks(line, summary) if len(logs[rank].beats) > 1]
    if not ranks:
        return None
    held = (run.result or {}).get("memory_bytes") or []

    def draw(sheet: Sheet) -> None:
        patches: dict[str, Any] = {}
        peaks = {rank: max(logs[rank].beats["rss_bytes"]) for rank in ranks}
        top = max(peaks.values()) / 2**20
        height, columns = (1.9, 2) if len(ranks) < 5 else (1.5, 4)
        for ax, rank in zip(sheet.grid(len(ranks), height, columns, sharex=True, sharey=True), ranks):
            base = 0.0
            for name, size in held[rank].items() if rank < len(held) else ():
                top_of, colour = base + size / 2**20, KINDS.get(name, STAGES["other"])
                patches[name] = ax.axhspan(base, top_of, color=colour, linewidth=0)
                base = top_of
            beats = logs[rank].beats
            points = thinned(np.stack([line.positions(beats["time"]), beats["rss_bytes"]], axis=1))
            patches["resident"] = ax.plot(points[:, 0], points[:, 1] / 2**20, color=INK, linewidth=1.4)[0]
            ax.set(title=f"rank {rank}: at most {amount(peaks[rank])}", xlabel="seconds", ylabel="MiB")
            ax.set(xlim=(0, line.length), ylim=(0, top * 1.08))
            ax.label_outer()
        sheet.legend(list(patches.values()), list(patches))

    return draw


def queue_level(run: RunRecord, line: Timeline, summary: Summary) -> Draw | None:
    """Bulks and bytes waiting in the queue of the sampling tasks, or else in those of the ranks."""
    levels = {"all ranks": run.log.levels} if run.log.levels else {}
    if not levels:
        logs = run.log.ranks
        levels = {f"rank {rank}": logs[rank].queue for rank in shown_ranks(line, summary) if logs[rank].queue}
    if not any(any(queue["bulks"]) for queue in levels.values()):
        return None
    bound = max(queue["bound"][-1] for queue in levels.values())

    def draw(sheet: Sheet) -> None:
        axes = sheet.grid(2, 2.0, 2, sharex=True)
        for number, (label, queue) in enumerate(levels.items()):
            waiting = line.positions(queue["time"]), queue["bulks"], np.array(queue["bytes"]) / 2**20
            points = thinned(np.column_stack(waiting))
            axes[0].step(points[:, 0], points[:, 1], where="post", label=label, **line_style(number))
            axes[1].step(points[:, 0], points[:, 2], where="post", **line_style(number))
        axes[0].set_title("bulks that wait")
        axes[1].set_title(f"MiB that wait (bound: {amount(bound)})")
        if axes[1].get_ylim()[1] > bound / 2**20 / 4:
            axes[1].axhline(bound / 2**20, color=INK, linestyle=":")
        for ax in axes:
            ax.set(ylim=(0, None), xlim=(0, line.length), xlabel="seconds")
            ax.grid(True)
        if len(levels) > 1:
            sheet.legend(*axes[0].get_legend_handles_labels())

    return draw


def parts(run: RunRecord) -> Draw | None:
    """Nodes and in-edges of each part, with halo nodes and cut edges."""
    quality = run.quality
    if quality is None:
        return None

    def draw(sheet: Sheet) -> None:
        count = len(quality.parts)
        rows = range(count)
        axes = sheet.grid(2, 0.7 + 0.22 * min(count, 24), 2)
        nodes = np.array([(p.nodes, p.halo) for p in quality.parts])
        edges = np.array([(p.edges - p.cut_edges, p.cut_edges) for p in quality.parts])
        for ax, title, (inner, outer), of, more in (
            (axes[0], "nodes", nodes.T, "owned", "halo"),
            (axes[1], "in-edges", edges.T, "from the same part", "cut"),
        ):
            ax.barh(rows, inner, color=KINDS["step"], label=of, height=0.75)
            ax.barh(rows, outer, left=inner, color=KINDS["features"], label=more, height=0.75)
            ax.set(title=title, ylabel="part", ylim=(count - 0.5, -0.5), yticks=range(0, count, -(-count // 24)))
            ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.25, 1.16), ncols=2, borderaxespad=0)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            ax.locator_params(axis="x", nbins=4)

    return draw


def pictures_of(run: RunRecord, line: Timeline | None, summary: Summary) -> dict[str, tuple[str, Draw]]:
    """Caption and drawing function of each picture, by name, leaving out pictures without data."""
    found: dict[str, tuple[str, Draw | None]] = {}
    if line and line.ranks:
        first = first_step(run, line)
        first = first if SLOW_START * line.length < first < line.length else 0.0
        caption = f"Time of each rank by stage, as stacked shares of each short stretch of time. {OTHER}"
        caption += f" From the first step on, after {duration(first)}." if first else ""
        found["timeline"] = caption, when(run, line, summary, first)
    found["curves"] = f"Loss and {run.log.metric} by epoch.", curves(run.log, run.result or {})
    found["bytes"] = "Payload by channel and kind, over all ranks.", bars_of_bytes(summary)
    found["pairs"] = "Bytes of messages from rank to rank.", pairs(summary)
    if line and line.ranks:
        found["memory"] = "Resident memory of each rank, and the known part of it.", memory(run, line, summary)
        found["queue"] = "Bulks and bytes that wait in the queue.", queue_level(run, line, summary)
    found["parts"] = "Nodes and in-edges of each part, and how many come from other parts.", parts(run)
    return {name: (caption, draw) for name, (caption, draw) in found.items() if draw}
