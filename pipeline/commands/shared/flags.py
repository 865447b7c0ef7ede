"""Flags shared by several commands. The help of a flag for a configuration key names the key's default, which applies
where no job file sets the key."""

import functools
import inspect
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer


def _allow(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Let files name this code until the command ends."""
    from ...config.named_code import allowing

    context.with_resource(allowing(names))
    return names


JobFile = Annotated[Path | None, typer.Argument(metavar="JOB.TOML", help="Configuration; flags override it.")]
SplitFlag = Annotated[
    str | None,
    typer.Option(
        help="public | random:20,30 (per class) | fraction:0.6,0.2 | time:0.7,0.15  [default: what the dataset has]"
    ),
]
ModelFlag = Annotated[str | None, typer.Option(help="sage | gcn | gat | gin  [default: sage]")]
OwnModelFlag = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:NAME",
        help="For a run of a module of your own: what makes it, such as my.models:Own.",
    ),
]
WorkersFlag = Annotated[int, typer.Option(help="Processes that share the work, layer by layer.")]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override any configuration key, such as train.lr=0.01."),
]
OutFlag = Annotated[Path | None, typer.Option(help="Folder of the run; by default a new one under runs/.")]
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
JOB: dict[str, object] = {
    "dataset": Annotated[
        str | None,
        typer.Option(
            help="Embedded name; file or folder: .npz, .csv, .parquet, Millrace store; OGB name.  [default: digits]"
        ),
    ],
    "system": Annotated[str | None, typer.Option(help="bulk | grappa | retexo | sar  [default: bulk]")],
    "model": Annotated[
        str | None, typer.Option(help="sage | gcn | gat | gin, or MODULE:NAME of your own  [default: sage]")
    ],
    "hidden": Annotated[int | None, typer.Option(help="Width of hidden layers.  [default: 256]")],
    "layers": Annotated[
        int | None, typer.Option(help="Layers of the model.  [default: 3, or as many as --fanout has numbers]")
    ],
    "fanout": Annotated[
        str | None,
        typer.Option(
            help="Neighbours per hop, nearest the seeds first; -1 takes all.  [default: 15,10,5; further layers 5]"
        ),
    ],
    "batch_size": Annotated[int | None, typer.Option(help="Seeds in a minibatch.  [default: 1024]")],
    "epochs": Annotated[int | None, typer.Option(help="Passes over the train split.  [default: 30]")],
    "lr": Annotated[float | None, typer.Option(help="Learning rate.  [default: 0.003]")],
    "dropout": Annotated[float | None, typer.Option(help="Dropout probability.  [default: 0.5]")],
    "ranks": Annotated[int | None, typer.Option(help="Trainer processes.  [default: 1]")],
    "executor": Annotated[
        str | None,
        typer.Option(help="inline (this process) | dask (a cluster)  [default: inline for one rank, else dask]"),
    ],
    "device": Annotated[str | None, typer.Option(help="cpu | cuda  [default: cpu]")],
    "seed": Annotated[int | None, typer.Option(help="Random seed.  [default: 0]")],
    "dtype": Annotated[str | None, typer.Option(help="float32 | float64  [default: float32]")],
    "split": SplitFlag,
    "scheduler": Annotated[
        str | None,
        typer.Option("--scheduler", help="Address of a Dask scheduler; by default a cluster is started here."),
    ],
    "host": Annotated[
        str | None,
        typer.Option(help="An address of this machine that workers and ranks can reach.  [default: 127.0.0.1]"),
    ],
    "reuse": Annotated[
        str | None, typer.Option(help="once | cycle: reuse --samples of fewer epochs from the start.  [default: once]")
    ],
    "track": Annotated[
        list[str] | None,
        typer.Option(metavar="TRACKER", help="tensorboard | mlflow | wandb: tell it of the run; may be given again."),
    ],
}
"""Flags for keys of a job, by name, as `millrace run` has them."""

OF_RUN: dict[str, object] = {
    "dataset": Annotated[
        str | None, typer.Option("--dataset", help="Another dataset than the run's, as `run` takes it.")
    ],
    "device": Annotated[
        str | None, typer.Option("--device", help="cpu | cuda  [default: the run's, or cpu where there is no GPU]")
    ],
    "scheduler": Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers share the work, layer by layer."),
    ],
    "cluster": Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key of the cluster, such as cluster.insecure=true, "
            "or of how --dataset is read: read.KEY=VALUE.",
        ),
    ],
    "model": OwnModelFlag,
}
"""Flags of commands that apply a finished run, by name."""


def with_flags(
    names: str = " ".join(JOB), among: Mapping[str, object] = JOB
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a command that has flags of `JOB`, or of others, in the place of its parameter `flags`, which gets
    their values by name: those of `names`, with blanks between them, that the command does not have itself."""

    def with_these(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        kinds = {name: among[name] for name in names.split() if name not in own.parameters}

        @functools.wraps(command)
        def called(**values: Any) -> None:
            flags = {name: None if (given := values.pop(name)) in ([], ()) else given for name in kinds}
            command(flags=flags, **values)

        by_name = inspect.Parameter.KEYWORD_ONLY
        more = [inspect.Parameter(name, by_name, default=None, annotation=kind) for name, kind in kinds.items()]
        each = [more if p.name == "flags" else [p.replace(kind=by_name)] for p in own.parameters.values()]
        signature: Any = own.replace(parameters=[*chain(*each)])
        # pyrefly: ignore[missing-attribute]
        called.__signature__ = signature
        called.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return called

    return with_these
