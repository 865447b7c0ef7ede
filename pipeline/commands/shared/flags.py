"""Flags shared by several commands. The help of a flag for a configuration key names the key's default, which applies
where no job file sets the key."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer


def _allow(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Let files name this code until the command ends."""
    from ...config.named_code import allowing

    context.with_resource(allowing(names))
    return names


JobFile = Annotated[Path | None, typer.Argument(metavar="JOB.TOML", help="Configuration; flags override it.")]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override any configuration key, such as train.lr=0.01."),
]
AllowCodeFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="MODULE:NAME",
        callback=_allow,
        help="Code of your own that a file names, such as a sampler, and that may be imported; may be given again.",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]

Flags = dict[str, Any]
"""Values of flags by name; None where one is not given."""
Options = SimpleNamespace
"""Values of a command's own flags, as attributes; None where one is not given and has no default."""


@dataclass(frozen=True)
class Flag:
    """A flag of commands, in tables by the name of its parameter."""

    help: str
    kind: type = str
    default: object = None
    flag: str = ""
    """As it is given; by default ``--`` and the name."""
    metavar: str | None = None

    def parameter(self, name: str) -> inspect.Parameter:
        """The parameter of a command for it."""
        option = typer.Option(self.flag or f"--{name.replace('_', '-')}", help=self.help, metavar=self.metavar)
        kind = self.kind | None if self.default is None else self.kind
        by_name = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, by_name, default=self.default, annotation=Annotated[kind, option])


SPLIT = Flag("public | random:20,30 (per class) | fraction:0.6,0.2 | time:0.7,0.15  [default: what the dataset has]")
MODEL = Flag("sage | gcn | gat | gin  [default: sage]")
MODULE = Flag("For a run of a module of your own: what makes it, such as my.models:Own.", metavar="MODULE:NAME")
JOB = {
    "dataset": Flag(
        "Embedded name; file or folder: .npz, .csv, .parquet, Millrace store; OGB name.  [default: digits]"
    ),
    "system": Flag("bulk | grappa | retexo | sar  [default: bulk]"),
    "model": Flag("sage | gcn | gat | gin, or MODULE:NAME of your own  [default: sage]"),
    "hidden": Flag("Width of hidden layers.  [default: 256]", int),
    "layers": Flag("Layers of the model.  [default: 3, or as many as --fanout has numbers]", int),
    "fanout": Flag("Neighbours per hop, nearest the seeds first; -1 takes all.  [default: 15,10,5; further layers 5]"),
    "batch_size": Flag("Seeds in a minibatch.  [default: 1024]", int),
    "epochs": Flag("Passes over the train split.  [default: 30]", int),
    "lr": Flag("Learning rate.  [default: 0.003]", float),
    "dropout": Flag("Dropout probability.  [default: 0.5]", float),
    "ranks": Flag("Trainer processes.  [default: 1]", int),
    "executor": Flag("inline (this process) | dask (a cluster)  [default: inline for one rank, else dask]"),
    "device": Flag("cpu | cuda  [default: cpu]"),
    "seed": Flag("Random seed.  [default: 0]", int),
    "dtype": Flag("float32 | float64  [default: float32]"),
    "split": SPLIT,
    "scheduler": Flag("Address of a Dask scheduler; by default a cluster is started here."),
    "host": Flag("An address of this machine that workers and ranks can reach.  [default: 127.0.0.1]"),
    "reuse": Flag("once | cycle: reuse --samples of fewer epochs from the start.  [default: once]"),
    "track": Flag(
        "tensorboard | mlflow | wandb: tell it of the run; may be given again.", list[str], metavar="TRACKER"
    ),
}
"""Flags for keys of a job, by name, as `millrace run` has them."""

OF_RUN = {
    "dataset": Flag("Another dataset than the run's, as `run` takes it."),
    "device": Flag("cpu | cuda  [default: the run's, or cpu where there is no GPU]"),
    "scheduler": Flag("A Dask scheduler whose workers share the work, layer by layer.", metavar="ADDRESS"),
    "cluster": Flag(
        "Set a key of the cluster, such as cluster.insecure=true, or of how --dataset is read: read.KEY=VALUE.",
        list[str],
        flag="--set",
        metavar="KEY=VALUE",
    ),
    "model": MODULE,
    "workers": Flag("Processes that share the work, layer by layer.", int, 1),
}
"""Flags of commands that apply a finished run, by name."""


def only(names: str) -> dict[str, Flag]:
    """Flags of `JOB`, by `names` with blanks between them."""
    return {name: JOB[name] for name in names.split()}


def with_flags(
    flags: Mapping[str, Flag], options: Mapping[str, Flag]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a command that has the flags of two tables in the place of its parameters `flags` and `options`,
    which get their values. Those of `flags` that the command has in another way are left out."""

    def with_these(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        kept = {name: flag for name, flag in flags.items() if name not in {*own.parameters, *options}}
        tables = {"flags": kept, "options": options}

        @functools.wraps(command)
        def called(**values: Any) -> None:
            of = {name: values.pop(name) for name in (*kept, *options)}
            of = {name: None if value in ([], ()) else value for name, value in of.items()}
            given = {"flags": {name: of[name] for name in kept}, "options": Options(**{n: of[n] for n in options})}
            command(**values, **{name: given[name] for name in tables.keys() & own.parameters})

        each: list[inspect.Parameter] = []
        for p in own.parameters.values():
            table = tables.get(p.name)
            each += [p.replace(kind=p.KEYWORD_ONLY)] if table is None else [f.parameter(n) for n, f in table.items()]
        signature: Any = own.replace(parameters=each)
        # pyrefly: ignore[missing-attribute]
        called.__signature__ = signature
        called.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return called

    return with_these
