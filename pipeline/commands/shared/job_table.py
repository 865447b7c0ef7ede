"""The configuration table of a command, merged from its job file, its flags and its `--set` options."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....storage.errors import InputError
from ....storage.optional import present_items, when_present
from ....storage.store.paths import expanded
from .output import say_aside

if TYPE_CHECKING:
    from ...datasets import ReadOptions


def job_table(
    job: Path | None, flags: dict[str, Any], overrides: list[str] | None, started: bool = False
) -> dict[str, Any]:
    """Merge a job file, flags and `--set` options into one table; later ones win.

    Args:
        job: the TOML file; None: no file.
        flags: values by flag name; None: not given.
        overrides: ``KEY=VALUE`` texts.
        started: the file is that of a run that was started, perhaps by an earlier version.

    Raises:
        InputError: the file is not a job file, or an override is malformed.
    """
    from ...config.aliases import expanded as with_full_keys
    from ...config.aliases import full_key, merged
    from ...config.load import parse_override, read_any_run_table, read_toml
    from ...config.named_code import check_code, sampler_named
    from ...setup.resume import resumable
    from ...setup.run_folder import flat

    table: dict[str, Any] = {}
    if job is not None:
        _check_job_file(job)
        file = expanded(job)
        table = resumable(read_any_run_table(file)) if started else read_toml(file)
    set_flags, table = present_items(flags), with_full_keys(table)
    named = flat(table).get("cluster.scheduler")
    table = _without_overridden(table, set_flags)
    for name, value in set_flags.items():
        table = merged(table, full_key([name], value), value)
    given: dict[str, Any] = {}
    for path, value in map(parse_override, overrides or []):
        table, given = (merged(into, full_key(path, value), value) for into in (table, given))
    if job is not None and sampler_named(given) is None:
        check_code(table, job)
    if named is not None and "scheduler" not in set_flags and "cluster.scheduler" not in flat(given):
        say_aside(f"note: {job} names the scheduler {named}; whoever is connected there can run code here")
    return table


def settings_of_run(overrides: list[str] | None) -> tuple[dict[str, Any], "ReadOptions | None"]:
    """Keys of the sections ``cluster`` and ``read`` from `--set` options of a command on a finished run; None: none of
    ``read``.

    Raises:
        InputError: a key of another section, an unknown one, or an override is malformed.
    """
    from ...config.load import resolve

    table = job_table(None, {}, overrides)
    if others := sorted(table.keys() - {"cluster", "read"}):
        raise InputError(
            f"--set {others[0]} is a key of the run, which has been trained; expected cluster.KEY=VALUE, or "
            "read.KEY=VALUE for how another dataset is read"
        )
    resolved = resolve(table)  # names keys that are unknown, and values
    return table.get("cluster", {}), resolved.read if "read" in table else None


def asked_of_run(flags: dict[str, Any]) -> dict[str, Any]:
    """Options of a command on a finished run, from the flags of `OF_RUN`, by the names of `FileRequest`.

    Raises:
        InputError: see `settings_of_run`; a GPU is asked for and the work is shared, since processes that share it use
            processors; or keys of a cluster are given, and one process works.
    """
    from ...custom.user_module import module_named

    cluster, options = settings_of_run(flags["cluster"])
    scheduler, workers = flags["scheduler"] or cluster.get("scheduler"), flags["workers"]
    if flags["device"] == "cuda" and (workers != 1 or scheduler is not None):
        other = "--workers" if scheduler is None else "--scheduler"
        raise InputError(f"--device cuda and {other} are given, and workers compute on processors; leave one out")
    if cluster and workers == 1 and scheduler is None:
        seen = f"--set cluster.{next(iter(cluster))} is given, but one process works"
        raise InputError(f"{seen}; give --workers, or leave it out")
    own = when_present(module_named, flags["model"])
    return {**flags, "options": options, "model": own, "cluster": cluster}


def _check_job_file(job: Path) -> None:
    """Raise InputError if a dataset was given in place of the job file."""
    from ...datasets.readers.registry import TABLES
    from ...setup.run_folder import JOB

    path = expanded(job)
    # A folder's name may contain a colon, as a dataset's does: an existing file is never taken for a dataset's name.
    if (
        str(job) == "digits"
        or job.name.lower().endswith((".npz", *TABLES))
        or (":" in str(job) and not path.is_file())
        or (path.is_dir() and not (path / JOB).is_file())
    ):
        raise InputError(f"{job} was read as a TOML job file; give a dataset as --dataset {job}")


def _without_overridden(table: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The job file's table without options that contradict the flags.

    A flag for another model drops the former model's options, except those that every model has. The number of layers
    and the fanout depend on each other: a flag for one drops the other.
    """
    from ...config.model_table import with_model

    table = dict(table)
    model, sampler = table.get("model"), table.get("sampler")
    if isinstance(model, dict):
        if "model" in flags:
            model = with_model(model, flags["model"])
        if "fanout" in flags and "layers" not in flags:
            model = {k: v for k, v in model.items() if k != "layers"}
        table["model"] = model
    if isinstance(sampler, dict) and "layers" in flags and "fanout" not in flags:
        table["sampler"] = {k: v for k, v in sampler.items() if k not in ("fanout", "sizes")}
    return table
