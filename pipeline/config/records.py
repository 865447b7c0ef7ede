"""Records of a configuration: the model, sampler, partitioner and system described by its tables."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ...stages.capabilities import Need
from ...stages.links.train_pairs import Negatives
from ...stages.models.base import ModelConfig
from ...stages.partition.base import Partitioner
from ...stages.partition.given import Given
from ...stages.partition.registry import partitioner
from ...stages.sample import SAMPLERS
from ...stages.sample.base import Sampler, reads_times
from ...storage.dataset import Dataset
from ...storage.errors import InputError, nearest
from ...storage.links.pairs import given_negatives
from ...storage.registry import Registry, found_by_name
from ...storage.store.paths import expanded
from .aliases import advice
from .capabilities import needs_of
from .job import Job
from .plain_values import quoted
from .refusals import refuse
from .schema import Queue, takes_numbers
from .systems import SYSTEMS, Inputs, System

LONGEST_OPTION = 200
"""Most characters of a model's or a sampler's option."""


def record_type(section: str, registry: Registry[Any], table: Mapping[str, Any]) -> type:
    """The class of a model or a sampler: registered under its name, or a sampler of the user's own, ``MODULE:NAME``.

    Raises:
        InputError: there is none.
    """
    name = str(table.get("name", next(iter(registry))))
    if registry is not SAMPLERS or ":" not in name:
        return registry.find(name, f"{section}.name")
    found = found_by_name(name, "sampler")
    if not (isinstance(found, type) and dataclasses.is_dataclass(found) and hasattr(found, "sample_by_owners")):
        raise InputError(
            f"sampler.name is '{name}', which is no sampler; expected a frozen dataclass, such as a subclass of "
            "mr.MatrixSampler"
        )
    return found


def device_topology_only(job: Job) -> bool:
    """True if the job keeps neighbour lists in the host's memory, where its sampler's GPU kernels do not read them."""
    kind = record_type("sampler", SAMPLERS, dict(job.sampler))
    return job.gpu.topology == "pinned" and bool(getattr(kind, "needs_topology_there", False))


def name_of(sampler: Sampler) -> str:
    """The name of a sampler in a configuration; see `record_type`."""
    kind = type(sampler)
    return sampler.name if SAMPLERS.get(sampler.name) is kind else f"{kind.__module__}:{kind.__qualname__}"


def is_record(value: Any) -> bool:
    """True for a model's or a sampler's record, as a Python caller makes it."""
    return isinstance(value, ModelConfig) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "sample_by_owners")
    )


def table_of(record: Any) -> dict[str, Any]:
    """The table of a configuration that describes a model's or a sampler's record."""
    return {"name": record.name if isinstance(record, ModelConfig) else name_of(record), **vars(record)}


def build(section: str, registry: Registry[Any], table: Mapping[str, Any]) -> Any:
    """The record described by ``table["name"]`` and its options.

    Raises:
        InputError: unknown name, unknown option, or a value that does not fit.
    """
    kind = record_type(section, registry, table)
    options = {k: v for k, v in table.items() if k != "name"}
    known = [f.name for f in dataclasses.fields(kind)]
    for key in options:
        if key not in known:
            name = table.get("name", next(iter(registry)))
            have = [f"'{n}'" for n, e in registry.available().items() if key in getattr(e, "__dataclass_fields__", ())]
            hint = f"; it is an option of {', '.join(have)}" if have else nearest(key, known)
            hint = hint or advice(f"{section}.{key}") or advice(key)
            raise InputError(f"{section} '{name}' has no option '{key}'{hint} (options: {', '.join(known)})")
    hints = get_type_hints(kind)
    for key, value in options.items():
        if any(isinstance(v, bool) for v in (value if isinstance(value, list | tuple) else [value])) and takes_numbers(
            hints[key]
        ):
            raise InputError(f"configuration key '{section}.{key}' is {quoted(value)}; expected a number")
        if isinstance(value, str) and len(value) > LONGEST_OPTION:
            raise InputError(f"configuration key '{section}.{key}' is {quoted(value)}; expected a word")
    try:
        return adapter_of(kind).validate_python(options)
    except ValidationError as e:
        first = e.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise cause from None
        key = ".".join(str(p) for p in first["loc"])
        raise InputError(
            f"configuration key '{section}.{key}' is {quoted(first['input'])}: "
            f"{first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None


@cache
def adapter_of(kind: type) -> TypeAdapter[Any]:
    """What validates values of a type, made once: that takes longer than to validate one."""
    return TypeAdapter(kind)


def plain(record: Any) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(record).items()}


def make_system(job: Job) -> System:
    """The system described by a configuration.

    Raises:
        InputError: an unknown sampler or partitioner, or options that do not go together.
    """
    entry, options = SYSTEMS.find(job.system), job.options
    inputs = Inputs(
        build("sampler", SAMPLERS, job.sampler) if entry.draws(job) else None,
        cut_of(job) if entry.cuts(options) else None,
        job.features == "owned",
        job.queue.max_bytes,
    )
    return entry.build(options, inputs)


def with_links(job: Job, system: System, dataset: Dataset) -> System:
    """The system for a dataset: with minibatches of pairs, if its task is link or its edges are labelled.

    Raises:
        InputError: the system trains nodes only, or there are no negatives as wanted.
    """
    if not dataset.of_pairs:
        return system
    entry, needs = SYSTEMS.find(system.name), needs_of(job, dataset, sampler=system.sample.sampler)
    refuse(Need.EDGE_LABELS, needs, job)
    refuse(Need.LINKS, needs, job)
    if dataset.has_edge_labels:
        return entry.with_links(system, None, dataset.hides_pairs)
    negatives = negatives_of(job)
    if job.link.ranked == "both":
        _check_ranks_sources(job, system, dataset)
    found = entry.with_links(system, negatives)
    negatives.check(dataset.graph, dataset.labels, dataset.split.train)
    return found


def _check_ranks_sources(job: Job, system: System, dataset: Dataset) -> None:
    """Refuse to rank sources where only destinations can be."""
    why = ""
    if reads_times(getattr(system.sample, "sampler", None)):
        why = "samples by time are drawn around destinations"
    elif job.ranks > 1 and SYSTEMS.find(system.name).cuts(job.options):
        why = "ranks that hold parts tell each other the known destinations of sources only"
    elif any(len(given_negatives(dataset.labels, name)) for name in ("val", "test")):
        why = "given negatives are ranked against, whose destinations stand for both ends"
    if why:
        raise InputError(f'link.ranked is "both", but {why}; leave it out')


def for_task(job: Job, dataset: Dataset, sampler: object) -> Job:
    """Complete a job by its dataset and the system's sampler: processors draw where GPUs cannot, unless the job names
    a kernel."""
    if job.kernel != "cuda" or "kernel" in job.model_fields_set:
        return job
    by_relation = getattr(sampler, "draws_relations_on_device", False)
    if not getattr(sampler, "host_only", False) and (dataset.graph.types.is_single or by_relation):
        return job
    given = "bulk_size" in job.queue.model_fields_set
    queue = job.queue if given else job.queue.with_defaults(bulk_size=Queue().bulk_size)
    return job.with_defaults(kernel="cpu", queue=queue)


def negatives_of(job: Job) -> Negatives:
    """Law of the negatives of a configuration."""
    link = job.link
    return Negatives(link.negatives, link.num_negatives, link.negative_ends, link.shared_negatives, link.exclude_known)


def cut_of(job: Job) -> Partitioner | None:
    """The partitioner of a configuration; None: not set."""
    cut = job.partition
    if cut.owners is not None:
        if (key := next((k for k in ("balance", "passes") if getattr(cut, k) is not None), None)) is not None:
            raise InputError(f"partition.{key} is set, but partition.owners decides who owns a node; leave one out")
        return Given.read(expanded(cut.owners))
    return None if cut.method is None else partitioner(cut.method, balance=cut.balance, passes=cut.passes)


def without_partitioner(job: Job) -> Job:
    """The job without a partitioner, for data that is already cut: a file of owners, which may be gone or out of reach,
    is not read."""
    return job.model_copy(update={"partition": job.partition.model_copy(update={"owners": None})})
