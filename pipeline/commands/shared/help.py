"""Help pages: commands by theme, each with an example."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

THEMES: dict[str, dict[str, str]] = {
    "Train": {
        "run": "millrace run --dataset sbm:nodes=5000,classes=8 --epochs 5",
        "train": "millrace train job.toml --samples samples",
        "sweep": "millrace sweep job.toml --set train.lr=0.01,0.003 --seeds 3",
        "init": "millrace init job.toml",
        "plan": "millrace plan job.toml --ranks 4",
    },
    "Data": {
        "convert": "millrace convert tables --out graph",
        "partition": "millrace partition graph --parts 4 --out parts",
        "sample": "millrace sample job.toml --out samples",
        "inspect": "millrace inspect graph",
        "check": "millrace check runs/a",
    },
    "After training": {
        "predict": "millrace predict runs/a --out predictions.parquet",
        "evaluate": "millrace evaluate runs/a",
        "export": "millrace export runs/a --out model.pt2",
        "report": "millrace report runs/a runs/b --out runs/compared",
    },
    "This machine": {"doctor": "millrace doctor", "warm": "millrace warm"},
}
"""An example of every command, by theme."""


def example_of(name: str) -> str:
    """The example at the end of a command's help page."""
    return next(f"Example: {examples[name]}" for examples in THEMES.values() if name in examples)


class ByTheme(TyperGroup):
    """A group that lists its commands by theme."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands and what each does, one section for each theme."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for theme, examples in THEMES.items():
            with formatter.section(theme):
                formatter.write_dl([(n, self.commands[n].get_short_help_str(limit)) for n in examples])


OPTIONS = {
    "Data": ("dataset", "split"),
    "Model": ("model", "hidden", "layers", "dropout"),
    "Training": ("system", "fanout", "batch_size", "epochs", "lr", "seed", "dtype", "device"),
    "Ranks and machines": ("ranks", "executor", "scheduler", "host"),
    "Stored minibatches": ("samples", "reuse"),
    "Your own code": ("code", "allow_code"),
    "The run": ("overrides", "out", "resume", "dry_run", "track", "as_json", "help"),
}
"""Options of a run, by theme."""


class RunHelp(TyperCommand):
    """A command that lists its options by `OPTIONS`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the argument, then the options of each theme."""
        params = {str(param.name): param.get_help_record(ctx) for param in self.get_params(ctx)}
        known = [name for names in OPTIONS.values() for name in names]
        for theme, names in {"Arguments": [name for name in params if name not in known], **OPTIONS}.items():
            with formatter.section(theme):
                formatter.write_dl([params[name] for name in names])
