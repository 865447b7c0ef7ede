"""Flags shared by several commands. The help of a flag for a configuration key names the key's default, which applies
where no job file sets the key."""

from pathlib import Path
from typing import Annotated

import typer


def _allow(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Let files name this code until the command ends."""
    from ...config.named_code import allowing

    context.with_resource(allowing(names))
    return names


JobFile = Annotated[Path | None, typer.Argument(metavar="JOB.TOML", help="Configuration; flags override it.")]
DatasetFlag = Annotated[
    str | None,
    typer.Option(
        help="Embedded name; file or folder: .npz, .csv, .parquet, Millrace store; OGB name.  [default: digits]"
    ),
]
SplitFlag = Annotated[
    str | None,
    typer.Option(
        help="public | random:20,30 (per class) | fraction:0.6,0.2 | time:0.7,0.15  [default: what the dataset has]"
    ),
]
ModelFlag = Annotated[str | None, typer.Option(help="sage | gcn | gat | gin  [default: sage]")]
RunModelFlag = Annotated[
    str | None, typer.Option(help="sage | gcn | gat | gin, or MODULE:NAME of your own  [default: sage]")
]
OwnModelFlag = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:NAME",
        help="For a run of a module of your own: what makes it, such as my.models:Own.",
    ),
]
OtherDatasetFlag = Annotated[
    str | None, typer.Option("--dataset", help="Another dataset than the run's, as `run` takes it.")
]
OwnDeviceFlag = Annotated[
    str | None, typer.Option("--device", help="cpu | cuda  [default: the run's, or cpu where there is no GPU]")
]
WorkersFlag = Annotated[int, typer.Option(help="Processes that share the work, layer by layer.")]
SchedulerFlag = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers share the work, layer by layer.")
]
ClusterFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the cluster, such as cluster.insecure=true, or of how --dataset is read: read.KEY=VALUE.",
    ),
]
HiddenFlag = Annotated[int | None, typer.Option(help="Width of hidden layers.  [default: 256]")]
LayersFlag = Annotated[
    int | None, typer.Option(help="Layers of the model.  [default: 3, or as many as --fanout has numbers]")
]
FanoutFlag = Annotated[
    str | None,
    typer.Option(
        help="Neighbours per hop, nearest the seeds first; -1 takes all.  [default: 15,10,5; further layers 5]"
    ),
]
BatchSizeFlag = Annotated[int | None, typer.Option(help="Seeds in a minibatch.  [default: 1024]")]
EpochsFlag = Annotated[int | None, typer.Option(help="Passes over the train split.  [default: 30]")]
SystemFlag = Annotated[str | None, typer.Option(help="bulk | grappa | retexo | sar  [default: bulk]")]
LrFlag = Annotated[float | None, typer.Option(help="Learning rate.  [default: 0.003]")]
ExecutorFlag = Annotated[
    str | None, typer.Option(help="inline (this process) | dask (a cluster)  [default: inline for one rank, else dask]")
]
OfClusterFlag = Annotated[
    str | None, typer.Option("--scheduler", help="Address of a Dask scheduler; by default a cluster is started here.")
]
HostFlag = Annotated[
    str | None, typer.Option(help="An address of this machine that workers and ranks can reach.  [default: 127.0.0.1]")
]
ReuseFlag = Annotated[
    str | None, typer.Option(help="once | cycle: reuse --samples of fewer epochs from the start.  [default: once]")
]
TrackFlag = Annotated[
    list[str] | None,
    typer.Option(metavar="TRACKER", help="tensorboard | mlflow | wandb: tell it of the run; may be given again."),
]
DropoutFlag = Annotated[float | None, typer.Option(help="Dropout probability.  [default: 0.5]")]
RanksFlag = Annotated[int | None, typer.Option(help="Trainer processes.  [default: 1]")]
DeviceFlag = Annotated[str | None, typer.Option(help="cpu | cuda  [default: cpu]")]
SeedFlag = Annotated[int | None, typer.Option(help="Random seed.  [default: 0]")]
DtypeFlag = Annotated[str | None, typer.Option(help="float32 | float64  [default: float32]")]
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
