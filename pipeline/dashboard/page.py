"""The page: a Bokeh document that draws `snapshot.record` once a second. Each browser has its own document."""

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    CustomJSTickFormatter,
    DataRange1d,
    Div,
    GlobalInlineStyleSheet,
    HoverTool,
    LinearAxis,
    RadioButtonGroup,
    Range1d,
    Select,
)
from bokeh.plotting import figure

from ...storage.ledger import KINDS as LEDGER
from ..telemetry.palette import KINDS, LINES, STAGES
from . import labels
from .history import History
from .snapshot import SPENT, record

EVERY_MS = 1000
NETWORK = LEDGER["network"]
HEIGHT = 210
BAR = 26
"""Height of a rank's bar in pixels."""
MANY = 10
"""Most ranks named in a legend."""
NARROW = 320
"""Width in pixels below which figures go below each other."""
DARK = "@media (prefers-color-scheme: dark) { html { background: white; filter: invert(0.91) hue-rotate(180deg); } }"
"""Inverts lightness and keeps hues, Bokeh's own widgets included."""


def show(history: History, doc: Any, extra: dict[str, Any]) -> None:
    """Fill a browser's document. See `plugin`."""
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env

    page = Page(history)

    def update() -> None:
        try:
            page.update()
        except Exception as e:
            # Bokeh would print it once a second in the terminal of the scheduler.
            page.heading.text = (
                f"This page has failed: {escape(f'{type(e).__name__}: {e}')}. The run continues; /millrace.json may "
                "say more."
            )

    update()
    doc.title = "Millrace"
    doc.add_root(page.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME
    doc.add_periodic_callback(update, EVERY_MS)


class Page:
    """Document of one browser, showing one run: the newest, unless another is chosen."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._chosen: str | None = None
        self.run = Select(title="", options=[], visible=False, width=320)
        self.run.on_change("value", self._choose)
        self.over = RadioButtonGroup(labels=["the last seconds", "the whole run"], active=0, width=220)
        self.over.on_change("active", lambda attr, old, new: self.update())
        self.heading, self.stages, self.bytes, self.notes = (
            Div(sizing_mode="stretch_width", min_width=NARROW) for _ in range(4)
        )
        self.heading.stylesheets = [GlobalInlineStyleSheet(css=DARK)]
        self.bars = ColumnDataSource(
            {"y": [], **{name: [] for name in SPENT}, **{f"{name}_text": [] for name in SPENT}}
        )
        self.states = ColumnDataSource({"y": [], "x": [], "text": [], "colour": []})
        self.levels = ColumnDataSource({"t": [], "loss": [], "bulks": [], "bytes": []})
        self.epochs = ColumnDataSource({"t": [], "loss": [], "val": []})
        self.rates = ColumnDataSource(
            {"t": [], "steps": [], "edges": [], "bulks": [], **{kind: [] for kind in NETWORK}}
        )
        self.memory = ColumnDataSource({"t": [], "rss": [], "rank": [], "colour": []})
        self.time = Range1d(start=0, end=1)
        self.shares, self.losses, self.validation = self._shares(), self._losses(), self._validation()
        self.queue, self.steps, self.edges, self.bulks = self._queue(), *self._speeds()
        self.moved, self.resident = self._moved(), self._resident()
        legend = Div(text=labels.legend(), sizing_mode="stretch_width", min_width=NARROW)
        shares = _row(column(self.over, legend, self.shares, sizing_mode="stretch_width"))
        self.of_ranks = [
            shares,
            _row(self.losses, self.validation, self.queue),
            _row(self.steps, self.edges, self.bulks),
            _row(self.resident, self.moved, self.bytes),
        ]
        """Rows that a command without ranks leaves empty."""
        rows = (_row(self.heading, self.run), shares, _row(self.stages, self.notes), *self.of_ranks[1:])
        self.root = column(*rows, sizing_mode="stretch_width")

    def _choose(self, attr: str, old: str, new: str) -> None:
        self._chosen = new
        self.update()

    def _figure(self, title: str) -> Any:
        """A figure of something over time."""
        made: Any = figure(
            title=title, height=HEIGHT, min_width=NARROW, sizing_mode="stretch_width", toolbar_location=None, tools=""
        )
        made.x_range = self.time
        made.xaxis.formatter = CustomJSTickFormatter(
            code="return tick >= 600 ? `${+(tick / 60).toPrecision(3)} min` : `${tick} s`"
        )
        return made

    def _shares(self) -> Any:
        made: Any = figure(
            # Room for the names of ranks: a frame that moves when they come would leave a trace.
            min_border_left=60,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools="",
        )
        # Beside the bars is each rank's current activity.
        made.x_range, made.y_range = Range1d(start=0, end=1.25), Range1d(start=-0.5, end=0.5)
        drawn = made.hbar_stack(
            list(SPENT),
            y="y",
            height=0.8,
            source=self.bars,
            color=[STAGES[name] for name in SPENT],
            line_color="white",
        )
        for name, glyph in zip(SPENT, drawn):
            made.add_tools(
                HoverTool(
                    renderers=[glyph],
                    tooltips=f"rank @y: {name.replace('_', ' ')} @{name}_text",
                    point_policy="follow_mouse",
                )
            )
        made.text(
            x="x",
            y="y",
            text="text",
            text_color="colour",
            source=self.states,
            text_baseline="middle",
            text_font_size="13px",
        )
        made.xaxis.ticker = [0, 0.25, 0.5, 0.75, 1]
        made.xaxis.formatter = CustomJSTickFormatter(code="return `${100 * tick} %`")
        made.yaxis.formatter = CustomJSTickFormatter(code="return `rank ${tick}`")
        made.grid.visible = False
        return made

    def _losses(self) -> Any:
        made = self._figure("Loss: each epoch's mean (dots), steps (line)")
        made.line("t", "loss", source=self.levels, color="#BBBBBB")
        made.scatter("t", "loss", source=self.epochs, color=STAGES["forward_backward"], size=5)
        made.line("t", "loss", source=self.epochs, color=STAGES["forward_backward"])
        return made

    def _validation(self) -> Any:
        made = self._figure("Validation accuracy")
        made.line("t", "val", source=self.epochs, color=STAGES["evaluate"])
        made.scatter("t", "val", source=self.epochs, color=STAGES["evaluate"], size=5)
        made.add_tools(HoverTool(tooltips="@val{0.0000} after @t{0} s"))
        return made

    def _queue(self) -> Any:
        made = self._figure("Queue")
        made.varea("t", 0, "bytes", source=self.levels, color="#56B4E9", alpha=0.5, legend_label="bytes")
        self.bound = made.line([], [], color=labels.BAD, line_dash="dashed", legend_label="bound")
        _in_bytes(made)
        made.y_range.start = 0
        made.extra_y_ranges = {"bulks": DataRange1d(start=0)}
        made.add_layout(LinearAxis(y_range_name="bulks", axis_label="bulks"), "right")
        made.step(
            "t", "bulks", source=self.levels, color="#000000", y_range_name="bulks", mode="after", legend_label="bulks"
        )
        return _with_legend(made)

    def _speeds(self) -> tuple[Any, Any, Any]:
        figures = []
        for name, title, colour in (
            ("steps", "Training: steps per second", STAGES["forward_backward"]),
            ("edges", "Training: edges per second", STAGES["forward_backward"]),
            ("bulks", "Sampling: bulks per second", STAGES["sample"]),
        ):
            made = self._figure(title)
            made.line("t", name, source=self.rates, color=colour, line_width=2)
            made.y_range.start = 0
            made.yaxis.formatter = _ticks(1000, "", " k", " M", " G")
            figures.append(made)
        return tuple(figures)

    def _moved(self) -> Any:
        made = self._figure("Network: bytes per second, by kind")
        made.varea_stack(
            list(NETWORK), x="t", source=self.rates, color=[KINDS[kind] for kind in NETWORK], legend_label=list(NETWORK)
        )
        _in_bytes(made)
        made.y_range.start = 0
        return _with_legend(made)

    def _resident(self) -> Any:
        made = self._figure("Memory of each rank")
        made.multi_line("t", "rss", source=self.memory, color="colour", line_width=2, legend_field="rank")
        made.add_tools(HoverTool(tooltips="@rank"))
        _in_bytes(made)
        made.y_range.start = 0
        return _with_legend(made)

    def update(self) -> None:
        """Draw the present state of the history."""
        runs = record(self._history)["runs"]
        if not runs:
            self.heading.text = "No Millrace run has reported yet."
            return
        names = [r["run"] for r in runs]
        self.run.options = [(r["run"], labels.title(r)) for r in runs]
        self.run.visible = len(runs) > 1
        run = runs[names.index(self._chosen)] if self._chosen in names else runs[0]
        if self.run.value != run["run"]:
            self.run.remove_on_change("value", self._choose)
            self.run.value = run["run"]
            self.run.on_change("value", self._choose)
        self.heading.text, self.stages.text = labels.heading(run), labels.stages(run)
        self.bytes.text, self.notes.text = labels.bytes_moved(run), labels.notes(run)
        for made in self.of_ranks:
            made.visible = not run["command"]
        self.time.end = max(1.0, run["elapsed_s"])
        self._draw_ranks(run["ranks"], "recent" if self.over.active == 0 and run["state"] == "running" else "whole")
        self._draw_curves(run)

    def _draw_ranks(self, ranks: list[dict[str, Any]], over: str) -> None:
        shares = [r["share"][over] for r in ranks]
        numbers = [r["rank"] for r in ranks]
        drawn: dict[str, list[Any]] = {name: [s.get(name, 0.0) for s in shares] for name in SPENT}
        drawn |= {f"{name}_text": [labels.percent(s.get(name, 0.0)) for s in shares] for name in SPENT}
        self.bars.data = {"y": numbers, **drawn}
        fine = ("running", "starting", "done")
        text = [_state(r) for r in ranks]
        colours = ["#444444" if r["state"] in fine else labels.BAD for r in ranks]
        self.states.data = {"y": numbers, "x": [1.01] * len(ranks), "text": text, "colour": colours}
        self.shares.yaxis.ticker = numbers if len(numbers) <= 24 else numbers[:: len(numbers) // 12]
        # The first rank on top.
        self.shares.y_range.start, self.shares.y_range.end = max(numbers, default=0) + 0.5, -0.5
        self.shares.height = 110 + max(1, len(ranks)) * (BAR if len(ranks) <= 24 else 12)

    def _draw_curves(self, run: dict[str, Any]) -> None:
        curves, rates, done = run["curves"], run["curves"]["rates"], run["epochs_done"]
        times = curves["time_s"]
        self.levels.data = {
            "t": times,
            "loss": _drawn(curves["loss"]),
            "bulks": curves["queue_bulks"],
            "bytes": curves["queue_bytes"],
        }
        self.epochs.data = {
            "t": [e["time_s"] for e in done],
            "loss": _drawn(e["train_loss"] for e in done),
            "val": _drawn(e["validation"] for e in done),
        }
        none = [0.0] * len(rates["rate_time_s"])
        self.rates.data = {
            "t": rates["rate_time_s"],
            **{name: rates[name] for name in ("steps", "edges", "bulks")},
            **{kind: rates.get(f"network {kind}", none) for kind in NETWORK},
        }
        self.memory.data = {
            "t": [r["memory"]["time_s"] for r in run["ranks"]],
            "rss": [r["memory"]["rss_bytes"] for r in run["ranks"]],
            "rank": [f"rank {r['rank']}" for r in run["ranks"]],
            "colour": [LINES[r["rank"] % len(LINES)] for r in run["ranks"]],
        }
        self.resident.legend.visible = len(run["ranks"]) <= MANY
        filled, first = any(e["validation"] is not None for e in done), run["first_validation"]
        awaits = "" if filled or not first else f": after epoch {first}"
        self.validation.title.text = f"Validation {run['metric']}{awaits}"
        self.validation.visible = filled or bool(first)
        queue = run["queue"]
        self.queue.visible, self.bulks.visible = queue is not None, run["bulks_sampled"] is not None
        if queue is not None and times:
            # A bound far above the values would flatten the curves.
            most = max(curves["queue_bytes"])
            filled = f"{labels.size(queue['bytes'])} of {labels.size(queue['bound'])}"
            self.queue.title.text = f"Queue: {labels.count(queue['bulks'], 'bulk')}, {filled}"
            self.queue.y_range.end = 1.1 * max(most, queue["bound"] if queue["bound"] <= 20 * most else 1)
            self.bound.data_source.data = {"x": [times[0], times[-1]], "y": [queue["bound"]] * 2}
            self.queue.extra_y_ranges["bulks"].end = 1.1 * max(1, *curves["queue_bulks"])
        self.moved.visible = any(channel == "network" for channel in run["bytes"])
        for item in self.moved.legend[0].items:
            item.visible = bool(run["bytes"].get("network", {}).get(item.label.value))


def _state(rank: dict[str, Any]) -> str:
    if rank["state"] == "silent":
        return f"silent for {labels.duration(rank['silent_s'])}, last in {rank['stage'].replace('_', ' ') or 'nothing'}"
    if rank["state"] == "running":
        where = f"epoch {rank['epoch'] + 1}, step {rank['step'] + 1}" if rank["epoch"] >= 0 else ""
        return ", ".join(part for part in (where, rank["stage"].replace("_", " ")) if part) or "running"
    return rank["state"]


def _drawn(values: Iterable[float | None]) -> list[float]:
    """Values with NaN for None: Bokeh leaves those out, and would draw None as 0."""
    return [math.nan if value is None else value for value in values]


def _ticks(base: int, *units: str) -> CustomJSTickFormatter:
    code = """
        let i = 0, v = tick
        while (Math.abs(v) >= base && i < units.length - 1) { v /= base; i++ }
        return `${+v.toPrecision(3)}${units[i]}`"""
    return CustomJSTickFormatter(args={"base": base, "units": list(units)}, code=code)


def _in_bytes(made: Any) -> None:
    made.yaxis.formatter = _ticks(1024, " B", " KiB", " MiB", " GiB")
    made.yaxis.ticker = AdaptiveTicker(
        base=1024, mantissas=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], desired_num_ticks=5
    )


def _with_legend(made: Any) -> Any:
    """The figure with its legend above, where it hides nothing."""
    legend = made.legend[0]
    made.add_layout(legend, "above")
    legend.location, legend.orientation, legend.padding, legend.border_line_color = "left", "horizontal", 2, None
    legend.label_text_font_size, legend.glyph_width, legend.background_fill_alpha = "11px", 14, 0
    return made


def _row(*made: Any) -> Any:
    """Figures side by side; below each other in a narrow window."""
    return row(*made, sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})
