"""Sampling from Python: what `millrace sample` does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..storage.dataset import Dataset
from ..storage.store.paths import expanded
from ..storage.urls import is_url
from .config.load import Job
from .config.systems import System
from .custom.own_code import split_code
from .precompute import precompute
from .ready import RunCall, configured
from .setup.configure import check_cut_in_file, check_used
from .setup.open_data import absolute_source, opened_from_python
from .telemetry.console import console_events
from .telemetry.events import Emit, Note


def sample(
    dataset: object = None,
    *,
    out: str | Path,
    features: str = "",
    verbose: bool = True,
    emit: Emit | None = None,
    config: Job | Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, object]:
    """Sample minibatches once, to train from them many times with ``mr.run(..., samples=out)``.

    Bulks that `out` has already are kept: after an interrupt the same call goes on.

    Args:
        dataset: as in `run`.
        out: folder of the store, or its URL on an object store.
        features: pack the feature rows of each minibatch beside it: ``own``, as the dataset keeps them, or ``float32``,
            ``float16``, ``bfloat16``, ``int8``; empty: do not. The key ``features`` of a job is given in `config`.
        verbose: print notes and progress.
        emit: called with events; nothing is printed then.
        config: a configuration, resolved or not.
        options: ``system``, ``model``, configuration keys and shorthands, as `run` takes them; what concerns training
            is left to it.

    Returns:
        A record: ``epochs``, ``minibatches``, ``edges`` (sampled now), ``bytes`` (on disk; None on an object store),
        ``features`` (the form of packed rows, or None), ``packed_bytes`` (packed now), ``seconds``.

    Raises:
        InputError: data and configuration do not go together, or the disk has no room for the rows.
        StoreError: `out` was made from something else.
        RunError: `out` cannot be written, or does not answer.
    """
    own = {key: options.pop(key, None) for key in ("system", "model")}
    if isinstance(own["system"], System):
        check_cut_in_file(own["system"], "samples take")
    given = {key: options.pop(key, None) for key in ("loss", "optimizer", "scheduler", "metrics")}
    _, options = split_code(given, options, config)
    job, _ = configured(RunCall(dataset, **own, config=config, options=options))
    check_used([job], trains=False)
    place = str(out) if is_url(out) else expanded(out)
    with console_events(emit, verbose) as tell:
        found = opened_from_python(job, dataset, tell)
        for text in found.notes if isinstance(found, Dataset) and found is dataset else ():
            tell(Note(text))
        # A bare name would be taken for a folder of that name.
        name = f"in memory: {found.name}" if isinstance(found, Dataset) else absolute_source(found or job.dataset)
        job, data = job.model_copy(update={"dataset": name}), found if isinstance(found, Dataset) else None
        return precompute(job, place, emit=tell, stop=lambda: False, features=features, dataset=data)
