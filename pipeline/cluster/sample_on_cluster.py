"""Sampling of a store of minibatches by the workers of a cluster, which open the dataset's store themselves."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from ...stages.feed.queue_feed import Receipt
from ...storage.errors import MillraceError, RunError
from ...storage.lazy_dataset import LazyDataset
from ...storage.urls import is_url
from ..assembly.data_part import DataPart
from ..machine.gpus import visible
from ..setup.open_queue import SampleStore
from ..setup.sampling import Sampling
from ..telemetry.control import Control
from ..telemetry.events import Note
from .dask_cluster import opened
from .futures import completed, result_of, seeing
from .sample_task import SampleOrder, sample_bulk
from .scheduler_watch import SchedulerWatch, cancel

BULKS_AT_ONCE = 1024
"""Most tasks that are submitted at a time."""


def sample_on_cluster(
    sampling: Sampling, store: SampleStore, control: Control, on_receipt: Callable[[Receipt], None]
) -> None:
    """Sample all bulks of the job's epochs that the queue lacks.

    Args:
        sampling: what to sample; the dataset's store is read by the workers.
        store: of minibatches.
        control: takes events; `stop` is asked between bulks.
        on_receipt: called with what has been stored.

    Raises:
        RunError: a task failed, or the scheduler does not answer.
    """
    job, dataset, emit = sampling.job, sampling.dataset, control.emit
    assert isinstance(dataset, LazyDataset)
    data = DataPart(str(dataset.path.resolve()), dataset.name, dataset.features_access, job.graph)
    order = SampleOrder.from_sampling(sampling, data, store.place)
    lacking = [*sampling.bulks.missing(store.queue)]
    if not lacking:
        return
    stored = () if is_url(store.place) else (Path(store.place),)
    gpus = len(visible()) if job.kernel == "cuda" else 0
    with (
        opened(job.model_copy(update={"device": "cpu"}), emit, job.cluster.producers, gpus) as client,
        closing(SchedulerWatch(client, job.cluster, lambda text: emit(Note(text)))) as watch,
    ):
        submit = partial(client.submit, seeing, (dataset.path.resolve(), *stored), pure=False)
        for first in range(0, len(lacking), BULKS_AT_ONCE):
            bulks = lacking[first : first + BULKS_AT_ONCE]
            futures = [submit(sample_bulk, order, *bulk, key=("sample", *bulk)) for bulk in bulks]
            try:
                for future in completed(watch, futures):
                    on_receipt(result_of(watch, future)[0])
                    if control.stop():
                        return
            except MillraceError:
                raise
            except Exception as e:
                raise RunError(
                    f"sampling failed: {type(e).__name__}: {e}; fix that, then give the same command again"
                ) from e
            finally:
                cancel(client, futures)
