"""The folder of a run: names of its files, its lock, and checks before a run starts or resumes there."""

import fcntl
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...stages.kernels import OTHER_BITS
from ...storage.checkpoint import CheckpointStore
from ...storage.dataset import Dataset
from ...storage.errors import InputError, StoreError
from ...storage.features import MappedFeatures
from ...storage.store.full_disk import whole_file
from ...storage.store.own_files import own_file, refuse_links
from ...storage.store.paths import check_no_url
from ...storage.store.regular import opened_file
from ..config.load import Job, read_run_table, resolve
from ..config.named_code import allowing, sampler_named
from ..config.systems import SYSTEMS
from .fingerprint import of_version_1

JOB, RESULT, METRICS, MODEL, LEARNED = "job.toml", "result.json", "metrics.jsonl", "model.pt", "learned.npy"
NODES = "learned-nodes.npz"
CHECKPOINTS, PARTS, LOCK, LOGS = "checkpoints", "parts", ".lock", "logs"
TRIES = 5
SHOWN_DIFFERENCES = 4
FREE = (
    "epochs", "threads", "kernel", "check", "features", "graph", "executor", "read.edges_on", "train.patience",
    "train.metrics", "track", "queue.", "checkpoint.", "cluster.", "gpu.",
)  # fmt: skip
"""Settings that may change on resume, since they do not affect the parameters (except a kernel in `OTHER_BITS`)."""


def learned_rows(folder: Path, width: int) -> MappedFeatures:
    """[V, D], the learnt features in a run's folder.

    Args:
        folder: the run's.
        width: D.

    Raises:
        StoreError: the file is damaged, or of another width.
    """
    path = folder / LEARNED
    try:
        rows = MappedFeatures(path)
        if rows.num_features == width:
            return rows
        seen = f"{rows.num_features} numbers of a node, not {width}"
    except StoreError:
        seen = "no complete .npy file"
    except InputError:
        seen = "no table of floating-point numbers"
    raise StoreError(
        f"{path} is damaged: {seen}; copy it again, or write it again by `millrace run --resume --out {folder}`"
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def check_holds_run(folder: Path, expected: str = "a run") -> None:
    """Check that a folder is a run's.

    Raises:
        InputError: it is not; names a run of it, if it is a sweep's.
    """
    if (folder / JOB).is_file():
        return
    check_no_url(folder, f"the folder of {expected} on a file system")
    one = next(iter(sorted(p.parent for p in folder.glob(f"*/{JOB}"))), None)
    of_sweep = f", such as {one}" if one is not None else ""
    raise InputError(f"{folder} holds no run (no {JOB}); expected the folder of {expected}{of_sweep}")


def check_run_folder(out: Path, resume: bool) -> None:
    """Check that a run may start in `out`, or resume there. Nothing is written.

    Raises:
        InputError: the folder holds something and `resume` is false, or holds no run and `resume` is true.
    """
    if resume:
        if not (out / JOB).is_file():
            raise InputError(f"{out} holds no run to resume (no {JOB}); start it without --resume")
    elif (out / JOB).exists():
        raise InputError(f"{out} already holds a run; choose another --out, or resume it with --resume")
    elif out.exists() and (not out.is_dir() or any(p.name != LOCK for p in out.iterdir())):
        raise InputError(f"{out} exists and is not an empty folder; choose another --out")


def is_locked(folder: Path) -> bool:
    """True if a live process has locked the folder."""
    try:
        with opened_file(folder / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, StoreError):
        pass  # no lock, or a file system without locks
    return False


def being_written(folder: Path) -> InputError:
    """The error for a folder that another process has locked."""
    return InputError(f"another process is writing {folder}; wait until it has ended, or choose another --out")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes, and create it if it is missing. A killed process releases its lock.

    Raises:
        InputError: another process has locked it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder, (LOGS, CHECKPOINTS, PARTS))
        lock = own_file(folder / LOCK)
    except OSError as e:
        raise InputError(f"cannot write the folder {folder}: {e.strerror}; choose another --out") from None
    with lock:
        for attempt in range(TRIES):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # `is_locked` in another process holds the lock for an instant.
                if attempt + 1 == TRIES:
                    raise being_written(folder) from None
                time.sleep(0.02)
            except OSError:
                break  # a file system without locks: unguarded, but usable
        yield


def check_resumable(
    out: Path, job: Job, fingerprint: Mapping[str, str], dataset: Dataset | None, *, renew: bool = False
) -> None:
    """Refuse to resume a run whose checkpoints are damaged, or with settings that would have led to other parameters.

    Args:
        out: the run's folder.
        job: the job of the resumed run.
        fingerprint: digests of everything that affects the parameters.
        dataset: the training data, if they are at hand.
        renew: give checkpoints of an earlier version this version's manifests, if they are of the same job.

    Raises:
        StoreError: no checkpoint is intact, or settings differ, which the message names.
    """
    try:
        with warnings.catch_warnings():
            # Loading the checkpoint warns of damaged ones later.
            warnings.simplefilter("ignore")
            checkpoints = CheckpointStore(out / CHECKPOINTS, fingerprint, read_only=True)
            if checkpoints.of_earlier_version():
                _check_earlier(out, checkpoints, dataset)
                if not renew:
                    return
                checkpoints.renew()
            checkpoints.latest()
    except StoreError as e:
        try:
            with allowing(sampler_named(vars(job))):  # what goes on has it already
                before = flat(resolve(read_run_table(out / JOB)).model_dump(mode="json"))
        except InputError:
            raise e from None
        now = flat(job.model_dump(mode="json"))
        entry = SYSTEMS.find(job.system)
        epochs_decide = entry.epochs_decide or job.train.schedule.needs_epochs
        free = tuple(k for k in FREE if k != "epochs" or not epochs_decide)
        free += tuple(f"{job.system}.{k}" for k in entry.free_options)
        if {before.get("kernel"), now.get("kernel")} & set(OTHER_BITS):
            free = tuple(k for k in free if k != "kernel")
        if "parts" not in fingerprint:
            free += ("ranks",)
        differing = [k for k in sorted(before | now) if before.get(k) != now.get(k) and not k.startswith(free)]
        if differing == ["ranks"]:
            raise StoreError(
                f"{out} was started with ranks = {before['ranks']}, for which its data are cut into parts, and cannot "
                f"continue with {now['ranks']}; resume with --ranks {before['ranks']}"
            ) from None
        for name in ("model.name", "sampler.name"):
            if name in differing:  # whose options then differ too
                differing = [k for k in differing if k == name or k.partition(".")[0] != name.partition(".")[0]]
        changed = [f"{k} (was {before.get(k)}, now {now.get(k)})" for k in differing]
        if not changed:
            raise
        more = f" and {len(changed) - SHOWN_DIFFERENCES} more" if len(changed) > SHOWN_DIFFERENCES else ""
        raise StoreError(
            f"{out} was started with other settings: {', '.join(changed[:SHOWN_DIFFERENCES])}{more}; resume with the "
            "same settings, or choose another --out"
        ) from None


def _check_earlier(out: Path, checkpoints: CheckpointStore, dataset: Dataset | None) -> None:
    """Refuse checkpoints of an earlier version that are of another job, or whose run cannot go on here."""
    fingerprint = checkpoints.fingerprint
    if "parts" in fingerprint or dataset is None:
        raise StoreError(
            f"{out} is of an earlier version of Millrace, and trained on parts of the graph that this one cuts anew; "
            "train again in another --out (a finished run's model still predicts)"
        )
    checkpoints.check_earlier(of_version_1(fingerprint, dataset))


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested tables by dotted key."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
