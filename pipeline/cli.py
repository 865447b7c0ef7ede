"""The command line. It parses, calls, prints, and turns errors into exit codes: 0 done, 2 input, 3 failed, 130
interrupted."""

import errno
import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..storage.errors import InputError, MillraceError, nearest
from ..storage.plural import counted
from ..storage.urls import without_secrets
from .cluster.signals import ended_by_signals, heeded, was_interrupted
from .commands.flags import (
    BatchSizeFlag,
    DatasetFlag,
    DropoutFlag,
    DtypeFlag,
    EpochsFlag,
    FanoutFlag,
    HiddenFlag,
    JobFile,
    JsonFlag,
    LayersFlag,
    ModelFlag,
    OtherDatasetFlag,
    OutFlag,
    OwnModelFlag,
    RanksFlag,
    RunModelFlag,
    SeedFlag,
    SetFlag,
    SplitFlag,
)
from .telemetry.events import Emit, Event, StageAdvanced, StageStarted

ClickError: type[Exception] = typer.BadParameter.__mro__[2]
"""What typer raises for a wrong command line. Newer versions bring their own click, older ones import it: this is
either's."""

OUT_OF_MEMORY = 'out of memory ({}); use a smaller model, batch_size or fanout, or features = "mapped"'

app = typer.Typer(
    name="millrace",
    help="Train graph neural networks on graphs that have outgrown one process.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say(text: str, err: bool = False) -> None:
    """Print, unless the reader has gone away: what was done stays done."""
    stream = sys.stderr if err else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        # Python flushes again when it exits, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say_aside(text: str) -> None:
    _say(text, err=True)


def _both(*listeners: Emit) -> Emit:
    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def _home(path: Path) -> Path:
    """Shells leave the ~ of --out=~/runs alone."""
    try:
        return path.expanduser()
    except RuntimeError as e:
        raise InputError(f"{path}: no such home folder ({e}); write the path out") from None


def _folder(out: Path) -> Path:
    from .setup.run_folder import local

    return _home(local(out))


def _table(job: Path | None, flags: dict[str, Any], overrides: list[str] | None) -> dict[str, Any]:
    from .config.aliases import expanded, full_key, merged
    from .config.load import MODELS, canonical, parse_override, read_toml
    from .datasets.open import TABLES
    from .setup.run_folder import JOB

    # A folder's name may hold a colon, as a dataset's does: what is a file is no name.
    if job is not None and (
        str(job) == "digits"
        or job.name.lower().endswith((".npz", *TABLES))
        or (":" in str(job) and not _home(job).is_file())
        or (_home(job).is_dir() and not (_home(job) / JOB).is_file())
    ):
        raise InputError(f"{job} was read as a TOML job file; give a dataset as --dataset {job}")
    table = expanded(read_toml(_home(job))) if job is not None else {}
    named = table.get("model")
    if (
        flags.get("model") is not None
        and isinstance(named, dict)
        and named.get("name") not in (None, canonical(MODELS, flags["model"]))
    ):
        # Another model's options would not fit this one; those that every model has are kept.
        table["model"] = {k: v for k, v in named.items() if k in ("hidden", "layers", "dropout", "norm")}
    if flags.get("layers") is not None and flags.get("fanout") is None and isinstance(table.get("sampler"), dict):
        table["sampler"] = {k: v for k, v in table["sampler"].items() if k not in ("fanout", "sizes")}
    if flags.get("fanout") is not None and flags.get("layers") is None and isinstance(table.get("model"), dict):
        table["model"] = {k: v for k, v in table["model"].items() if k != "layers"}
    for name, value in flags.items():
        if value is not None:
            table = merged(table, full_key([name], value), value)
    for text in overrides or []:
        path, value = parse_override(text)
        table = merged(table, full_key(path, value), value)
    return table


def _summary(result: Any) -> str:
    seconds = result.seconds
    lines = [
        f"{result.model} on {result.dataset} ({result.num_nodes:,} nodes, {result.num_edges:,} edges), system {result.system}",
        f"  epochs              {result.epochs}{f' (best: {result.best_epoch + 1})' if result.best_epoch >= 0 else ''}",
        f"  train loss          {'not finite: the run diverged' if result.train_loss is None else f'{result.train_loss:.4f}'}",
    ]
    if result.val_accuracy is not None:
        lines.append(f"  validation accuracy {result.val_accuracy:.4f}")
    if result.test_accuracy is not None:
        lines.append(f"  test accuracy       {result.test_accuracy:.4f}")
    lines.append(f"  seconds             {seconds['total']:.2f}")
    for label, stages in (("  by stage", ("sample", "queue_wait", "fetch")), ("", ("forward_backward", "evaluate"))):
        lines.append(f"  {label:<20}" + ", ".join(f"{stage} {seconds[stage]:.2f}" for stage in stages))
    lines.append(f"  trained on          {result.minibatches:,} minibatches, {result.sampled_edges:,} edges")
    step = max(m.get("step", 0) for m in result.memory_bytes)
    lines.append(
        f"  peak memory         {max(result.peak_rss_bytes) / 2**20:,.0f} MiB (a step's buffers: {step / 2**20:,.0f})"
    )
    lines.append(f"  run folder          {result.out}")
    return "\n".join(lines)


def _print_result(result: Any, as_json: bool) -> None:
    _say(_summary(result), err=as_json)
    if as_json:
        _say(json.dumps(result.to_record(), allow_nan=False))


@app.command()
def run(
    job: JobFile = None,
    dataset: DatasetFlag = None,
    system: Annotated[str | None, typer.Option(help="bulk | grappa | retexo | sar  [default: bulk]")] = None,
    model: RunModelFlag = None,
    hidden: HiddenFlag = None,
    layers: LayersFlag = None,
    fanout: FanoutFlag = None,
    batch_size: BatchSizeFlag = None,
    epochs: EpochsFlag = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.  [default: 0.003]")] = None,
    dropout: DropoutFlag = None,
    ranks: RanksFlag = None,
    executor: Annotated[
        str | None,
        typer.Option(help="inline (this process) | dask (a cluster)  [default: inline for one rank, else dask]"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu | cuda  [default: cpu]")] = None,
    seed: SeedFlag = None,
    dtype: DtypeFlag = None,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    out: OutFlag = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler; by default a cluster is started here.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="An address of this machine that workers and ranks can reach.  [default: 127.0.0.1]"),
    ] = None,
    samples: Annotated[
        str | None, typer.Option(help="Train from minibatches that `millrace sample` stored at this path or URL.")
    ] = None,
    reuse: Annotated[
        str | None,
        typer.Option(help="once | cycle: go round again through --samples of fewer epochs.  [default: once]"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train and evaluate: partition, sample, fetch, train, evaluate."""
    flags = {
        "dataset": dataset, "system": system, "model": model, "hidden": hidden, "layers": layers, "fanout": fanout,
        "batch_size": batch_size, "epochs": epochs, "lr": lr, "dropout": dropout, "ranks": ranks, "executor": executor,
        "device": device, "seed": seed, "dtype": dtype, "split": split, "scheduler": scheduler, "host": host, "reuse": reuse,
    }  # fmt: skip
    _train(job, flags, overrides, out, resume, samples, as_json)


app.command("train", help="The same as run; give it --samples to skip sampling.")(run)


def _train(
    job: Path | None,
    flags: dict[str, Any],
    overrides: list[str] | None,
    out: Path | None,
    resume: bool,
    samples: str | None,
    as_json: bool,
) -> None:
    from .config.load import resolve
    from .interop.user_module import from_flags
    from .run import run as run_job
    from .setup.result import STOPPED
    from .setup.resume import without_executor
    from .setup.run_folder import JOB, check_run_folder
    from .telemetry.console import Terminal
    from .training.dynamo import leave_compiler_out
    from .training.loop import Interrupted

    out = _folder(out) if out is not None else None
    if samples is not None and "://" not in samples:
        samples = str(_home(Path(samples)))
    if resume:
        if out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with")
        check_run_folder(out, resume)
        job = job if job is not None else (out / JOB)
    module, flags = from_flags(flags, resume)
    table = _table(job, flags, overrides)
    if resume and flags["executor"] is None and not any(text.startswith("executor=") for text in overrides or []):
        table = without_executor(table)
    resolved = resolve(table)
    leave_compiler_out()
    with heeded(_say_aside) as asked, Terminal() as terminal:
        result = run_job(
            out=out,
            resume=resume,
            samples=samples,
            emit=_both(asked, terminal),
            stop=asked.stop,
            save=asked.save,
            config=resolved,
            model=module,
        )
    if result.status == STOPPED:
        raise Interrupted("interrupted; a checkpoint was written: run the same command with --resume to go on")
    _print_result(result, as_json)


@app.command()
def sample(
    job: JobFile = None,
    out: Annotated[str, typer.Option(help="Folder of the store, or its URL on an object store.")] = "samples",
    epochs: Annotated[int | None, typer.Option(help="Epochs to sample.  [default: 30]")] = None,
    dataset: DatasetFlag = None,
    fanout: FanoutFlag = None,
    batch_size: BatchSizeFlag = None,
    seed: SeedFlag = None,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Sample minibatches once, to train from them many times. An interrupted run goes on where it stopped."""
    from .commands.sample import precompute
    from .config.load import resolve
    from .telemetry.console import Terminal

    flags = {
        "epochs": epochs,
        "dataset": dataset,
        "fanout": fanout,
        "batch_size": batch_size,
        "seed": seed,
        "split": split,
    }
    resolved, out = resolve(_table(job, flags, overrides)), out if "://" in out else str(_home(Path(out)))
    with heeded(_say_aside) as asked, Terminal() as terminal:
        report = precompute(resolved, out, emit=_both(asked, terminal), stop=asked.stop)
    size = "" if report["bytes"] is None else f", {report['bytes'] / 2**20:,.2f} MiB"
    _say(
        f"{counted(report['minibatches'], 'minibatch', 'minibatches')} of {counted(report['epochs'], 'epoch')}{size} in {out};"
        f" sampled now: {report['edges']:,} edges ({report['seconds']:.1f} s)",
        err=as_json,
    )
    if as_json:
        _say(json.dumps(report))


@app.command()
def partition(
    dataset: Annotated[
        str, typer.Argument(help="Embedded name; file or folder: .npz, .csv, .parquet, Millrace store; OGB name.")
    ],
    parts: Annotated[int, typer.Option(help="P, the number of partitions.")],
    out: Annotated[Path, typer.Option(help="Folder of the partitions.")],
    method: Annotated[
        str, typer.Option(help="contiguous | hash | ldg | fennel | metis | metis-work | louvain | leiden")
    ] = "metis",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Cut a dataset into partitions; print cut, balance and halo."""
    from ..stages.partition.base import check_parts
    from ..stages.partition.clustered import Clustered
    from ..stages.partition.registry import partitioner
    from ..stages.partition.stage import partition_dataset
    from .config.load import resolve
    from .setup.prepare import open_data
    from .telemetry.console import Terminal

    job, out = resolve(_table(None, {"dataset": dataset, "seed": seed, "split": split}, overrides)), _folder(out)
    chosen, parts = partitioner(method), check_parts(parts)
    if isinstance(chosen, Clustered) and not out.exists():
        chosen.check_available()
    on_cluster = job.executor == "dask"
    if on_cluster:
        from .cluster.dask_cluster import check_reachable

        check_reachable(job.cluster)
    with Terminal() as terminal:
        data = open_data(job, None, terminal)
        terminal(StageStarted("partition", f"cutting {data.name} into {parts} parts by {method}", parts))
        write_parts = None
        if on_cluster:
            from .cluster.partition_task import parts_on_cluster

            write_parts = partial(parts_on_cluster, job, data, out, emit=terminal)
        report = partition_dataset(
            data,
            chosen,
            parts,
            out,
            seed=job.seed,
            on_progress=lambda done, total: terminal(StageAdvanced("partition", done, total)),
            write_parts=write_parts,
        )
    _say(report.quality.table(), err=as_json)
    _say(f"{parts} parts in {out} ({report.seconds:.1f} s)", err=as_json)
    if as_json:
        _say(json.dumps({"out": str(out), "method": method, "seconds": report.seconds, **report.quality.as_record()}))


@app.command()
def plan(
    job: JobFile = None,
    dataset: DatasetFlag = None,
    nodes: Annotated[int | None, typer.Option(help="In place of a dataset: its nodes.")] = None,
    edges: Annotated[int | None, typer.Option(help="In place of a dataset: its edges, in both directions.")] = None,
    num_features: Annotated[int, typer.Option(help="With --nodes: the width of a feature row.")] = 100,
    classes: Annotated[int, typer.Option(help="With --nodes: classes.")] = 16,
    train_share: Annotated[float, typer.Option(help="With --nodes: the share of them to train on.")] = 0.1,
    hosts: Annotated[int, typer.Option(help="Machines like this one that share the ranks.")] = 1,
    memory: Annotated[
        float | None, typer.Option(help="GiB for each rank; by default its share of this machine's.")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Between ranks: data centre | wan | edge | proximity.")] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="Between ranks, Gb/s; with --latency in place of --link.")
    ] = None,
    latency: Annotated[float | None, typer.Option(help="Between ranks, milliseconds one way.")] = None,
    model: ModelFlag = None,
    hidden: HiddenFlag = None,
    layers: LayersFlag = None,
    fanout: FanoutFlag = None,
    batch_size: BatchSizeFlag = None,
    epochs: EpochsFlag = None,
    dropout: DropoutFlag = None,
    ranks: RanksFlag = None,
    seed: SeedFlag = None,
    dtype: DtypeFlag = None,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict each system's memory, bytes and time, and choose one."""
    from .planning.inputs import Cluster, Numbers
    from .planning.network import Link, link_named
    from .planning.planner import plan as make_plan
    from .planning.table import as_text
    from .telemetry.console import Terminal

    flags = {
        "dataset": dataset, "model": model, "hidden": hidden, "layers": layers, "fanout": fanout, "batch_size": batch_size,
        "epochs": epochs, "dropout": dropout, "ranks": ranks, "seed": seed, "dtype": dtype, "split": split,
    }  # fmt: skip
    table = _table(job, flags, overrides)
    if (nodes is None) != (edges is None) or (nodes is not None and dataset is not None):
        raise InputError("--nodes and --edges go together, in place of --dataset")
    if (bandwidth is None) != (latency is None) or (bandwidth is not None and link is not None):
        raise InputError("--bandwidth and --latency go together, in place of --link")
    numbers = (
        Numbers(nodes, edges, num_features, classes, train_share) if nodes is not None and edges is not None else None
    )
    over = Link(bandwidth * 1e9 / 8, latency / 1e3) if bandwidth is not None and latency is not None else None
    cluster = Cluster(
        hosts, None if memory is None else round(memory * 2**30), link_named(link) if link is not None else over
    )
    with Terminal() as terminal:
        made = make_plan(numbers=numbers, cluster=cluster, emit=terminal, config=table)
    _say(as_text(made), err=as_json)
    if as_json:
        _say(json.dumps(made.to_record(), allow_nan=False))
    if made.recommended is None:
        raise InputError(made.why)


@app.command()
def convert(
    dataset: Annotated[str, typer.Argument(help="Embedded name; file or folder: .npz, .csv, .parquet; OGB name.")],
    out: Annotated[Path, typer.Option(help="Folder of the store.")],
    features: Annotated[str, typer.Option(help="zarr (compressed, checksummed) | npy (memory-mapped)")] = "zarr",
    seed: Annotated[int, typer.Option(help="Seed of a random split.")] = 0,
    split: SplitFlag = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a dataset as a Millrace store.

    It opens fast and can leave its features on disk.
    """
    from ..storage.dataset_store import write_dataset
    from .config.load import resolve
    from .setup.prepare import open_data
    from .telemetry.console import Terminal

    if features not in ("zarr", "npy"):
        raise InputError(f"--features is '{features}'; expected zarr or npy{nearest(features, ['zarr', 'npy'])}")
    job, out = resolve(_table(None, {"dataset": dataset, "seed": seed, "split": split}, overrides)), _folder(out)
    if out.exists():
        raise InputError(f"{out} exists already; choose another --out")
    with Terminal() as terminal:
        data = open_data(job, None, terminal)
        terminal(StageStarted("store", f"writing {out}"))
        store = write_dataset(out, data, features_format=features)
    size = f"{data.num_nodes:,} nodes, {data.graph.num_edges:,} edges, {store.nbytes / 2**20:,.2f} MiB"
    _say(f"{data.name}: {size} in {out}", err=as_json)
    if as_json:
        record = {"out": str(out), "dataset": data.name, "num_nodes": data.num_nodes, "num_edges": data.graph.num_edges}
        _say(json.dumps({**record, "features": features, "bytes": store.nbytes}))


@app.command()
def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    dataset: OtherDatasetFlag = None,
    model: OwnModelFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a run's model on every split.

    Layer by layer, over full neighbourhoods.
    """
    from .commands.evaluate import assess
    from .interop.user_module import own_module
    from .telemetry.console import Terminal

    own = None if model is None else own_module(model)
    with Terminal() as terminal:
        report = assess(_home(run_folder), dataset, model=own, emit=terminal)
    lines = [f"{report['model']} on {report['dataset']} ({report['seconds']:.2f} s)"]
    lines += [
        f"  {name:<6} {'none' if value is None else f'{value:.4f}'}" for name, value in report["accuracy"].items()
    ]
    _say("\n".join(lines), err=as_json)
    if as_json:
        _say(json.dumps(report))


@app.command()
def predict(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The file to write, .parquet or .csv.")],
    dataset: OtherDatasetFlag = None,
    nodes: Annotated[
        str | None, typer.Option(help="Ids or names between commas, or train | val | test.  [default: all]")
    ] = None,
    all_probabilities: Annotated[bool, typer.Option("--all-probabilities", help="A column for each class.")] = False,
    model: OwnModelFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write what a run's model says of nodes into a file.

    The class and its probability, over full neighbourhoods.
    """
    from .commands.predict import predict_to_file
    from .interop.user_module import own_module
    from .telemetry.console import Terminal

    own, out = None if model is None else own_module(model), _home(out)
    with Terminal() as terminal:
        report = predict_to_file(_home(run_folder), out, dataset, nodes, all_probabilities, own, terminal)
    _say(
        f"{counted(report['nodes'], 'node')} of {report['dataset']} by {report['model']} in {out} ({report['seconds']:.1f} s)",
        err=as_json,
    )
    if as_json:
        _say(json.dumps(report))


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="A run, a store of samples, partitions or data, or any dataset.")],
    minibatch: Annotated[
        str | None, typer.Option(metavar="EPOCH,INDEX", help="Print one minibatch of a store of samples.")
    ] = None,
    overrides: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what a folder, a file or a dataset holds."""
    from .commands.inspect import inspect_path
    from .config.load import resolve

    record = inspect_path(path, minibatch, resolve(_table(None, {}, overrides)) if overrides else None)
    if as_json:
        _say(json.dumps(record))
    else:
        width = max(map(len, record)) + 2
        _say("\n".join(f"{key:<{width}}{value}" for key, value in record.items()))


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folder of a run, finished or not; several are compared.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; by default `report` in the first run's folder.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers of the summary as JSON on standard output.")
    ] = False,
) -> None:
    """Write a page on where a run's time, bytes and memory went."""
    from .report.write import report as write

    written = write([_home(run) for run in runs], _folder(out) if out is not None else None)
    for record in written.runs:
        _say("\n".join([record["headline"], *record["findings"]]), err=as_json)
    _say(f"report in {written.path}", err=as_json)
    if as_json:
        _say(
            json.dumps(
                {
                    "page": str(written.path),
                    "pictures": [str(p) for p in written.pictures.values()],
                    "runs": written.runs,
                }
            )
        )


@app.command()
def doctor(as_json: JsonFlag = False) -> None:
    """Say what is installed, what this machine has, what is missing."""
    from .commands.doctor import examine

    record = examine()
    if as_json:
        _say(json.dumps(record))
    else:
        for section, entries in record.items():
            _say("\n".join([section, *(f"  {key:<18} {value}" for key, value in entries.items())]))


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        from .setup.result import versions

        _say(f"millrace {versions().get('millrace-gnn', 'unknown')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        _say(context.get_help())


def main() -> None:
    """Entry point of the ``millrace`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path with a character that the terminal lacks must not end a run.
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings(), ended_by_signals():
        warnings.showwarning = lambda message, *_, **__: _say(f"note: {message}", err=True)
        sys.exit(_run_app())


def _run_app() -> int:
    """Run the command that the arguments name, and give its exit code; what went wrong is on standard error in a few
    lines."""
    try:
        code = _interruptible(partial(app, standalone_mode=False))
    except MillraceError as e:
        return _failed(str(e), e.exit_code)
    except ClickError as e:
        context = getattr(e, "ctx", None)
        command = context.command_path if context is not None else "millrace"
        text = e.format_message()  # pyright: ignore[reportAttributeAccessIssue]
        if (option := getattr(e, "option_name", None)) is not None and text.startswith("No such option"):
            from .config.aliases import instead_of_flag

            text = instead_of_flag(option) or text
        return _failed(f"{text}\nSee: {command} --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except MemoryError as e:
        return _failed(OUT_OF_MEMORY.format(e), 3)
    except RuntimeError as e:
        # torch has no error of its own for this.
        if "allocate memory" not in str(e):
            raise
        return _failed(OUT_OF_MEMORY.format(str(e).splitlines()[0]), 3)
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            return _failed("a path is longer than the file system takes; choose a shorter one", 2)
        return _failed(f"the system refused: {e}; fix that, then give the command again (a run: with --resume)", 3)
    if code == 130:
        return _failed("interrupted; what was committed stays", 130)
    return code if isinstance(code, int) else 0


def _interruptible(command: Callable[[], Any]) -> Any:
    """Call it. What breaks because a signal has ended it, in code that cannot pass an interrupt on, is an interrupt
    too."""
    try:
        return command()
    except Exception as e:
        if was_interrupted() and not isinstance(e, MillraceError):
            raise KeyboardInterrupt from e
        raise


def _failed(text: str, code: int) -> int:
    _say(f"millrace: {without_secrets(text)}", err=True)
    return code
