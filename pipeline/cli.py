"""The command line. It parses, calls, prints, and turns errors into exit codes: 0 done, 2 input, 3 failed, 130 interrupted."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..storage.errors import InputError, MillraceError, nearest
from .events import StageAdvanced, StageStarted

app = typer.Typer(
    name="millrace",
    help="Train graph neural networks on graphs that have outgrown one process.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)

JobFile = Annotated[Path | None, typer.Argument(metavar="[JOB.TOML]", help="Configuration; flags override it.")]
DatasetFlag = Annotated[str | None, typer.Option(help="Embedded name, .npz file, Parquet folder, Millrace store, or OGB name.")]
SplitFlag = Annotated[str | None, typer.Option(help="public | random:20,30 (per class) | fraction:0.6,0.2")]
SetFlag = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override any configuration key, such as train.lr=0.01.")
]
OutFlag = Annotated[Path | None, typer.Option(help="Folder of the run; by default a new one under runs/.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


@contextmanager
def _graceful_stop() -> Iterator[Callable[[], bool]]:
    """The first interrupt asks the run to stop at the next step; a second one ends it on the spot."""
    asked: list[int] = []

    def handle(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print("stopping at the next step; interrupt again to stop now", file=sys.stderr)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _table(job: Path | None, flags: dict[str, Any], overrides: list[str] | None) -> dict[str, Any]:
    from .config import merged, parse_override, read_toml
    from .run import SHORTHANDS

    table = read_toml(job) if job is not None else {}
    if flags.get("model") is not None and table.get("model", {}).get("name") not in (None, flags["model"]):
        # Another model's options would not fit this one; those that every model has are kept.
        table["model"] = {k: v for k, v in table["model"].items() if k in ("hidden", "layers", "dropout", "norm")}
    if flags.get("layers") is not None and flags.get("fanout") is None and isinstance(table.get("sampler"), dict):
        table["sampler"] = {k: v for k, v in table["sampler"].items() if k != "fanout"}
    if flags.get("fanout") is not None and flags.get("layers") is None and isinstance(table.get("model"), dict):
        table["model"] = {k: v for k, v in table["model"].items() if k != "layers"}
    short = {**SHORTHANDS, "model": ("model", "name")}
    for name, value in flags.items():
        if value is not None:
            table = merged(table, short.get(name, (name,)), value)
    for text in overrides or []:
        path, value = parse_override(text)
        table = merged(table, path, value)
    return table


def _summary(result: Any) -> str:
    seconds = result.seconds
    parts = ("sample", "queue_wait", "fetch", "forward_backward", "evaluate", "total")
    lines = [
        f"{result.model} on {result.dataset} ({result.num_nodes:,} nodes, {result.num_edges:,} edges), system {result.system}",
        f"  epochs              {result.epochs} (best: {result.best_epoch + 1})",
        f"  train loss          {result.train_loss:.4f}",
    ]
    if result.val_accuracy is not None:
        lines.append(f"  validation accuracy {result.val_accuracy:.4f}")
    if result.test_accuracy is not None:
        lines.append(f"  test accuracy       {result.test_accuracy:.4f}")
    lines.append("  seconds             " + ", ".join(f"{p} {seconds[p]:.2f}" for p in parts))
    lines.append(f"  sampled             {result.minibatches:,} minibatches, {result.sampled_edges:,} edges")
    lines.append(f"  peak memory         {max(result.peak_rss_bytes) / 2**20:,.0f} MiB")
    lines.append(f"  run folder          {result.out}")
    return "\n".join(lines)


def _print_result(result: Any, as_json: bool) -> None:
    typer.echo(_summary(result), err=as_json)
    if as_json:
        typer.echo(json.dumps(result.to_record()))


@app.command()
def run(
    job: JobFile = None,
    dataset: DatasetFlag = None,
    system: Annotated[str | None, typer.Option(help="bulk")] = None,
    model: Annotated[str | None, typer.Option(help="sage | gcn | gat | gin")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of hidden layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the model.")] = None,
    fanout: Annotated[str | None, typer.Option(help="Neighbours per hop, nearest the seeds first: 15,10,5; -1 takes all.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Seeds in a minibatch.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the train split.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout probability.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Trainer processes.")] = None,
    executor: Annotated[str | None, typer.Option(help="inline | dask")] = None,
    device: Annotated[str | None, typer.Option(help="cpu | cuda")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 | float64")] = None,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    out: OutFlag = None,
    samples: Annotated[Path | None, typer.Option(help="Train from minibatches that `millrace sample` stored here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train and evaluate: partition, sample, fetch, train, evaluate."""
    flags = {
        "dataset": dataset, "system": system, "model": model, "hidden": hidden, "layers": layers, "fanout": fanout,
        "batch_size": batch_size, "epochs": epochs, "lr": lr, "dropout": dropout, "ranks": ranks, "executor": executor,
        "device": device, "seed": seed, "dtype": dtype, "split": split,
    }  # fmt: skip
    _train(job, flags, overrides, out, resume, samples, as_json)


app.command("train", help="The same command under the name of its main stage; give it --samples to skip sampling.")(run)


def _train(
    job: Path | None,
    flags: dict[str, Any],
    overrides: list[str] | None,
    out: Path | None,
    resume: bool,
    samples: Path | None,
    as_json: bool,
) -> None:
    from .config import resolve
    from .progress import Terminal
    from .run import JOB
    from .run import run as run_job

    if resume:
        if out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with")
        job = job if job is not None else (out / JOB)
        if not job.exists():
            raise InputError(f"{out} holds no run to resume (no {JOB}); start it without --resume")
    resolved = resolve(_table(job, flags, overrides))
    with _graceful_stop() as stop, Terminal() as terminal:
        result = run_job(out=out, resume=resume, samples=samples, emit=terminal, stop=stop, config=resolved)
    _print_result(result, as_json)


@app.command()
def sample(
    job: JobFile = None,
    out: Annotated[Path, typer.Option(help="Folder of the store.")] = Path("samples"),
    epochs: Annotated[int | None, typer.Option(help="Epochs to sample.")] = None,
    dataset: DatasetFlag = None,
    fanout: Annotated[str | None, typer.Option(help="Neighbours per hop, nearest the seeds first: 15,10,5; -1 takes all.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Seeds in a minibatch.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Sample minibatches once, to train from them many times. An interrupted run goes on where it stopped."""
    from .config import resolve
    from .precompute import precompute
    from .progress import Terminal

    flags = {"epochs": epochs, "dataset": dataset, "fanout": fanout, "batch_size": batch_size, "seed": seed, "split": split}
    resolved = resolve(_table(job, flags, overrides))
    with _graceful_stop() as stop, Terminal() as terminal:
        report = precompute(resolved, out, emit=terminal, stop=stop)
    typer.echo(
        f"{report['minibatches']:,} minibatches of {report['epochs']} epoch(s), {report['edges']:,} edges,"
        f" {report['bytes'] / 2**20:,.1f} MiB in {out} ({report['seconds']:.1f} s)",
        err=as_json,
    )
    if as_json:
        typer.echo(json.dumps(report))


@app.command()
def partition(
    dataset: Annotated[str, typer.Argument(help="Embedded name, .npz file, Parquet folder, Millrace store, or OGB name.")],
    parts: Annotated[int, typer.Option(help="P, the number of partitions.")],
    out: Annotated[Path, typer.Option(help="Folder of the partitions.")],
    method: Annotated[str, typer.Option(help="contiguous | hash | metis")] = "metis",
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Cut a dataset into partitions and print the cut, the balance and the halo share."""
    from ..stages.partition.registry import partitioner
    from ..stages.partition.stage import partition_dataset
    from .config import resolve
    from .progress import Terminal
    from .run import open_data

    job = resolve(_table(None, {"dataset": dataset, "seed": seed, "split": split}, overrides))
    chosen = partitioner(method)
    with Terminal() as terminal:
        data = open_data(job, None, terminal)
        terminal(StageStarted("partition", f"cutting {data.name} into {parts} parts by {method}", parts))
        report = partition_dataset(
            data, chosen, parts, out, seed=job.seed, on_progress=lambda done, total: terminal(StageAdvanced("partition", done, total))
        )
    typer.echo(report.quality.table(), err=as_json)
    typer.echo(f"{parts} parts in {out} ({report.seconds:.1f} s)", err=as_json)
    if as_json:
        typer.echo(json.dumps({"out": str(out), "method": method, "seconds": report.seconds, **report.quality.as_record()}))


@app.command()
def convert(
    dataset: Annotated[str, typer.Argument(help="Embedded name, .npz file, Parquet folder, or OGB name.")],
    out: Annotated[Path, typer.Option(help="Folder of the store.")],
    features: Annotated[str, typer.Option(help="zarr (compressed, checksummed) | npy (memory-mapped)")] = "zarr",
    seed: Annotated[int, typer.Option(help="Seed of a random split.")] = 0,
    split: SplitFlag = None,
    overrides: SetFlag = None,
) -> None:
    """Write a dataset as a Millrace store, which opens fast and can leave its features on disk."""
    from ..storage.dataset_store import write_dataset
    from .config import resolve
    from .progress import Terminal
    from .run import open_data

    if features not in ("zarr", "npy"):
        raise InputError(f"--features is '{features}'; expected zarr or npy{nearest(features, ['zarr', 'npy'])}")
    job = resolve(_table(None, {"dataset": dataset, "seed": seed, "split": split}, overrides))
    with Terminal() as terminal:
        data = open_data(job, None, terminal)
        terminal(StageStarted("store", f"writing {out}"))
        store = write_dataset(out, data, features_format=features)
    typer.echo(f"{data.name}: {data.num_nodes:,} nodes, {data.graph.num_edges:,} edges, {store.nbytes / 2**20:,.1f} MiB in {out}")


@app.command()
def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    dataset: DatasetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a run's model on every split, layer by layer over full neighbourhoods."""
    from .assess import assess
    from .progress import Terminal

    with Terminal() as terminal:
        report = assess(run_folder, dataset, emit=terminal)
    lines = [f"{report['model']} on {report['dataset']} ({report['seconds']:.2f} s)"]
    lines += [f"  {name:<6} {'none' if value is None else f'{value:.4f}'}" for name, value in report["accuracy"].items()]
    typer.echo("\n".join(lines), err=as_json)
    if as_json:
        typer.echo(json.dumps(report))


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="A run, a store of samples, partitions or data, or any dataset.")],
    minibatch: Annotated[str | None, typer.Option(metavar="EPOCH,INDEX", help="Print one minibatch of a store of samples.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what a folder, a file or a dataset holds."""
    from .inspection import inspect_path

    record = inspect_path(path, minibatch)
    if as_json:
        typer.echo(json.dumps(record))
    else:
        for key, value in record.items():
            typer.echo(f"{key:<20} {value}")


@app.command()
def doctor(as_json: JsonFlag = False) -> None:
    """Say what is installed, what this machine offers, and what is missing for what."""
    from .doctor import examine

    record = examine()
    if as_json:
        typer.echo(json.dumps(record))
    else:
        for section, entries in record.items():
            typer.echo(section)
            for key, value in entries.items():
                typer.echo(f"  {key:<18} {value}")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from .result import versions

        typer.echo(f"millrace {versions().get('millrace-gnn', 'unknown')}")
        raise typer.Exit


def main() -> None:
    """Entry point of the ``millrace`` command."""
    try:
        app()
    except MillraceError as e:
        print(f"millrace: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        print("millrace: interrupted; go on from the last checkpoint with --resume", file=sys.stderr)
        sys.exit(130)
    except MemoryError as e:
        print(f'millrace: out of memory ({e}); use a smaller batch_size or fanout, or features = "mapped"', file=sys.stderr)
        sys.exit(3)
