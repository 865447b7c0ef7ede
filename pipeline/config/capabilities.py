"""What jobs ask of their parts, and what systems and their forms cannot do."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...stages.capabilities import Cannot, Need
from ...stages.sample.base import reads_times
from ...storage.dataset import Dataset
from ...storage.errors import InputError
from ...storage.plural import counted
from ...storage.typed.graph_types import GraphTypes
from .job import Job

OF_SYSTEM = ""
"""Part of a row that stands for the system which brings it."""


class Form(NamedTuple):
    """A form of a system that a job may choose, and what it cannot do beside the system's own rows."""

    name: str
    """Its name in the table."""
    chosen: Callable[[Job], bool]
    remedy: str
    """The end of a refusal, which chooses another form."""
    cannot: tuple[Cannot, ...]


class Asked(NamedTuple):
    """How a job asks for a need."""

    seen: str
    """The beginning of a refusal."""
    key: str = ""
    """Configuration key that asks for it, and can be left out; empty if the data do."""


QUEUE_GIVEN = Asked("configuration section 'queue' is given", "queue")


class RefusedError(InputError):
    """A job that one of its parts cannot run."""

    def __init__(self, message: str, row: Cannot | None = None) -> None:
        super().__init__(message)
        self.row = row


def counted_types(types: GraphTypes) -> str:
    """How many types a graph has, as a sentence's beginning."""
    relations = counted(types.num_relations, "relation")
    return f"the graph has {counted(len(types.node_types), 'node type')} and {relations}"


def needs_of(
    job: Job, dataset: Dataset | None = None, *, sampler: Any = None, reads_edges: bool = False
) -> dict[Need, Asked]:
    """What a job asks of its parts.

    Args:
        job: a configuration.
        dataset: the data; None: not open yet.
        sampler: draws its minibatches, if it has any.
        reads_edges: the model reads features of edges.
    """
    needs: dict[Need, Asked] = {}
    if dataset is not None:
        if not dataset.graph.types.is_single:
            needs[Need.TYPES] = Asked(counted_types(dataset.graph.types))
        if dataset.task == "link":
            needs[Need.LINKS] = Asked("the task is link")
        elif dataset.has_edge_labels:
            needs[Need.EDGE_LABELS] = Asked("labels are of edges")
    if reads_times(sampler):
        needs[Need.TIMES] = Asked(f"the sampler {sampler.name} draws edges by their times")
    draws = job.kernel in ("cuda", "cugraph") and "kernel" in job.model_fields_set
    others = (
        (Need.EDGE_FEATURES, reads_edges, Asked("the model reads features of edges")),
        (Need.LEARNED, job.learned.width > 0, Asked(f"learned.width is {job.learned.width}", "learned")),
        (Need.OWNED, job.features == "owned", Asked("features is 'owned'", "features")),
        (Need.MAPPED, job.graph == "mapped", Asked("graph is 'mapped'", "graph")),
        (Need.QUEUE, job.queue.kind != "memory", QUEUE_GIVEN),
        (Need.DEVICE, job.device != "cpu", Asked(f"device is '{job.device}'", "device")),
        (Need.DEVICE_DRAWS, draws, Asked(f'kernel is "{job.kernel}"', "kernel")),
        (Need.COMPILE, job.train.compile, Asked("train.compile is true", "train.compile")),
    )
    return needs | {need: asked for need, is_asked, asked in others if is_asked}


def rows(entry: Any, job: Job | None = None) -> Iterator[tuple[Cannot, str]]:
    """A system's rows, and the end of a refusal where the row is one form's.

    Args:
        entry: of the registry.
        job: chooses the forms; None: the rows of all systems of this kind.
    """
    yield from ((row, "") for row in named(entry, entry.cannot))
    for form in entry.forms if job is not None else ():
        if form.chosen(job):
            yield from ((row, form.remedy) for row in named(entry, form.cannot))


def named(entry: Any, given: tuple[Cannot, ...]) -> list[Cannot]:
    """Rows with the system's name where they stand for it."""
    return [row._replace(part=row.part or f"system '{entry.name}'") for row in given]
