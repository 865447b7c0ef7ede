"""`millrace sample`: sample minibatches once, to train from them many times."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.plural import counted
from ...storage.store.paths import expanded
from ..cluster.signals import heeded
from ..telemetry.events import both
from .shared.flags import JOB, AllowCodeFlag, Flag, Flags, JobFile, JsonFlag, SetFlag, with_flags
from .shared.job_table import job_table
from .shared.output import say_aside, show

FEATURES = Flag(
    "Pack the feature rows of each minibatch beside it, so that training reads them in order: as the dataset keeps "
    "them, or as float32 | float16 | bfloat16 | int8.",
    metavar="[FORM]",
)


@with_flags(JOB | {"features": FEATURES}, {})
def sample(
    job: JobFile = None,
    out: Annotated[str, typer.Option(help="Folder of the store, or its URL on an object store.")] = "samples",
    epochs: Annotated[int | None, typer.Option(help="Epochs to sample.  [default: 30]")] = None,
    *,
    flags: Flags,
    overrides: SetFlag = None,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Sample minibatches once, to train from them many times. An interrupted run continues where it stopped.

    Takes the job of `run`; what concerns training is left to it.
    """
    from ..config.load import resolve
    from ..custom.user_module import from_flags
    from ..precompute import precompute
    from ..setup.configure import check_used
    from ..telemetry.console import Terminal

    features = flags.pop("features") or ""
    resolved = resolve(job_table(job, from_flags({**flags, "epochs": epochs}, resume=False)[1], overrides))
    out = out if "://" in out else str(expanded(Path(out)))
    check_used([resolved], trains=False)
    with heeded(say_aside) as requests, Terminal() as terminal:
        report = precompute(resolved, out, emit=both(requests, terminal), stop=requests.stop, features=features)
    minibatches = counted(report["minibatches"], "minibatch", "minibatches")
    size = "" if report["bytes"] is None else f", {report['bytes'] / 2**20:,.2f} MiB"
    packed = f", with features as {report['features']}" if report["features"] else ""
    text = (
        f"{minibatches} of {counted(report['epochs'], 'epoch')}{size} in {out}{packed};"
        f" sampled now: {report['edges']:,} edges ({report['seconds']:.1f} s)"
    )
    show(text, report, as_json)
