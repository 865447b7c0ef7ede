"""`millrace run` and `millrace train`: train a model and evaluate it."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...storage.errors import InputError, Interrupted
from ...storage.optional import present_items, when_present
from ...storage.plural import counted
from ...storage.store.paths import expanded, local_folder
from ...storage.store.regular import file_text
from ..cluster.signals import heeded
from ..telemetry.events import both
from .shared.flags import JOB, AllowCodeFlag, Flag, Flags, JobFile, JsonFlag, Options, SetFlag, with_flags
from .shared.job_table import job_table
from .shared.output import say_aside, show

if TYPE_CHECKING:
    from ..setup.result import Result


RUN = {
    "out": Flag("Folder of the run; by default a new one under runs/.", Path),
    "samples": Flag("Train from minibatches that `millrace sample` stored at this path or URL."),
    "code": Flag(
        "Code of your own, such as loss=my.losses:focal: loss | optimizer | scheduler | metric | callback.",
        list[str],
        metavar="KIND=MODULE:NAME",
    ),
    "dry_run": Flag("Check the job and its data, say what would run, and write nothing.", bool, False),
    "resume": Flag("Go on from the last checkpoint in --out.", bool, False),
}


@with_flags(JOB, RUN)
def run(
    job: JobFile = None,
    *,
    flags: Flags,
    overrides: SetFlag = None,
    options: Options,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Train and evaluate: partition, sample, fetch, train, evaluate."""
    if options.dry_run:
        record = _train(job, flags, overrides, options)
        show(_planned(record), record, as_json)
        return
    # Held until the end: they work beside the imports below, and beside the run.
    beside = compile_beside(job, flags)
    result = _train(job, flags, overrides, options)
    del beside
    show(summary(result), result.to_record(), as_json)


def _train(job: Path | None, flags: Flags, overrides: list[str] | None, options: Options) -> Any:
    from ..config.load import resolve
    from ..custom.own_code import check_beside, from_code_flags
    from ..custom.user_module import from_flags
    from ..ready import dry_run
    from ..run import run as run_job
    from ..setup.configure import check_used
    from ..setup.result import STOPPED
    from ..setup.resume import check_connections, without_executor
    from ..telemetry.console import Terminal
    from ..training.dynamo import leave_compiler_out

    resume, samples = options.resume, options.samples
    out = when_present(local_folder, options.out)
    if samples is not None and "://" not in samples:
        samples = str(expanded(Path(samples)))
    started = resume and job is None
    if resume:
        job = _job_to_resume(job, out)
    module, flags = from_flags(flags, resume)
    table = job_table(job, flags, overrides, started)
    if resume and flags["executor"] is None and not any(text.startswith("executor=") for text in overrides or []):
        table = without_executor(table)
    resolved = resolve(table)
    if started and out is not None:
        check_connections(resolved, out)
    leave_compiler_out()
    arguments: dict[str, Any] = {"out": out, "resume": resume, "samples": samples, "config": resolved, "model": module}
    arguments |= (own := from_code_flags(options.code))
    if not resume:
        check_used([resolved], trains=True)
        check_beside(table.get("train", {}), own)
    if options.dry_run:
        with Terminal() as terminal:
            return dry_run(**arguments, emit=terminal)
    with heeded(say_aside) as requests, Terminal() as terminal:
        result = run_job(**arguments, emit=both(requests, terminal), stop=requests.stop, save=requests.save)
    if result.status == STOPPED:
        raise Interrupted("interrupted; a checkpoint was written: run the same command with --resume to go on")
    return result


def _planned(record: dict[str, Any]) -> str:
    """The text of a dry run."""
    splits = ", ".join(f"{name} {count:,}" for name, count in record["splits"].items())
    where = f"{counted(record['ranks'], 'rank')} on {record['device']} ({record['executor']})"
    steps = counted(record["steps_per_epoch"], "step")
    return "\n".join(
        [
            f"{record['model']} on {record['dataset']} ({record['nodes']:,} nodes, {record['edges']:,} edges), system "
            f"{record['system']}",
            f"  splits              {splits} {record['unit']}s",
            f"  parameters          {record['parameters']:,}",
            f"  epochs              {record['epochs']} of {steps}",
            f"  runs in             {where}",
            f"  run folder          {record['out']}",
            "nothing was written; leave out --dry-run to run it",
        ]
    )


def compile_beside(job: Path | None, flags: Flags) -> Any:
    """Start to compile what the job probably needs, in processes of their own: before the imports that take as long."""
    import tomllib

    from ...stages.kernels.runtime import precompile

    table: dict[str, Any] = {}
    with suppress(OSError, ValueError, RecursionError):
        table = tomllib.loads(file_text(job)) if job is not None else {}
    table |= present_items(flags)
    return precompile.start() if precompile.is_of_use(table) else None


def _job_to_resume(job: Path | None, out: Path | None) -> Path:
    """The job file given, or else the one in the run's folder. Raises InputError if there is no run to resume."""
    from ..setup.run_folder import JOB, check_run_folder

    if out is None:
        raise InputError("--resume needs --out, the folder of the run to go on with")
    check_run_folder(out, resume=True)
    return job if job is not None else out / JOB


def summary(result: "Result") -> str:
    """The text printed at the end of a run."""
    seconds = result.seconds
    number = result.best_epoch
    best = f" (the best: epoch {number + 1}; best_epoch counts from 0: {number})" if number >= 0 else ""
    loss = "not finite: the run diverged" if result.train_loss is None else f"{result.train_loss:.4f}"
    size = f"{result.num_nodes:,} nodes, {result.num_edges:,} edges"
    lines = [
        f"{result.model} on {result.dataset} ({size}), system {result.system}",
        f"  epochs              {result.epochs}{best}",
        f"  train loss          {loss}",
    ]
    accuracies = {"validation": result.val_accuracy, "test": result.test_accuracy}
    lines += [f"  {f'{split} accuracy':<19} {value:.4f}" for split, value in present_items(accuracies).items()]
    for split, found in (("validation", result.val_metrics), ("test", result.test_metrics)):
        values = [f"{name} {value:.4f}" for name, value in present_items(found).items()]
        lines += [f"  {split:<19} {', '.join(values)}"] if values else []
    lines.append(f"  seconds             {seconds['total']:.2f}")
    for label, stages in (("  by stage", ("sample", "queue_wait", "fetch")), ("", ("forward_backward", "evaluate"))):
        lines.append(f"  {label:<20}" + ", ".join(f"{stage} {seconds[stage]:.2f}" for stage in stages))
    step = max(m.get("step", 0) for m in result.memory_bytes) / 2**20
    peak = max(result.peak_rss_bytes) / 2**20
    return "\n".join(
        [
            *lines,
            f"  trained on          {result.minibatches:,} minibatches, {result.sampled_edges:,} edges",
            f"  peak memory         {peak:,.0f} MiB (a step's buffers: {step:,.0f})",
            f"  run folder          {result.out}",
        ]
    )
