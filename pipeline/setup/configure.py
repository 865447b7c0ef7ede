"""A configuration from records passed by a Python caller."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from torch import nn

from ...stages.models.base import as_model
from ...stages.partition.given import Given
from ...storage.errors import InputError
from ..config.aliases import with_options
from ..config.load import DEFAULT_CUT, Job, resolve
from ..config.plain_values import quoted
from ..config.records import is_record, make_system, table_of
from ..config.systems import SYSTEMS, System
from ..custom.model_argument import as_record_or_module


def configure(
    config: Mapping[str, Any], *, system: System | str | None = None, model: Any = None, **options: Any
) -> Job:
    """A resolved configuration from tables, shorthands and the records passed by a Python caller."""
    table = with_options(config, {k: table_of(v) if k == "sampler" and is_record(v) else v for k, v in options.items()})
    if not isinstance(system, System | str | None):
        raise InputError(f"system is a {type(system).__name__}; expected a name such as 'bulk', or mr.bulk(...)")
    job = resolve(with_sections(table, sections_of(system, as_record_or_module(model))))
    if (name := str(job.sampler.get("name"))).startswith("__main__:") and job.executor == "dask":
        raise InputError(
            f"the sampler {name.partition(':')[2]} is defined in the script or notebook that runs, which ranks and "
            "sampling tasks cannot import; put it into a module of its own, and import it from there"
        )
    return job


def sections_of(system: System | str | None, model: object) -> dict[str, object]:
    """Keys of a configuration that a caller's system and model describe; the model is a record or a module."""
    sections: dict[str, object] = tables_of_system(system) if isinstance(system, System) else {"system": system}
    if model is not None:
        is_own = isinstance(model, nn.Module)
        sections["model"] = {"layers": as_model(model).num_layers} if is_own else table_of(model)
    return {k: v for k, v in sections.items() if v is not None}


def with_sections(table: Mapping[str, object], sections: Mapping[str, object]) -> dict[str, object]:
    """A configuration with sections that objects describe.

    Raises:
        InputError: the configuration has a key of such a section that the object says otherwise, or doesn't have.
    """
    for name, said in sections.items():
        if name == "system":  # by name: another one than that of the configuration
            continue
        given, told = (t if isinstance(t, Mapping) else {"": t} for t in (table.get(name, {}), said))
        for key, value in given.items():
            made, own = ([*t] if isinstance(t, tuple) else t for t in (told.get(key, given), value))
            if made != own:
                whose = "model" if name == "model" else "system"
                raise InputError(
                    f"{f'{name}.{key}'.strip('.')} is {quoted(value)}, but the {whose} is an object, which decides "
                    f"that; set it in the {whose}, or leave it out"
                )
    return {**table, **sections}


def check_cut_in_file(system: System, what: str) -> None:
    """Refuse a system whose nodes' owners are an array, which no section of a configuration holds."""
    if isinstance(system.partition.partitioner, Given):
        raise InputError(f"{what} the owners of nodes from a file: set partition.owners")


def tables_of_system(system: System) -> dict[str, Any]:
    """Keys of a configuration that describe a system."""
    table: dict[str, Any] = {"system": system.name}
    if (sampler := system.sample.sampler) is not None:
        table["sampler"] = table_of(sampler)
    if (cut := system.partition.partitioner) is not None and not isinstance(cut, Given):
        options = {key: getattr(cut, key) for key in ("balance", "passes") if hasattr(cut, key)}
        table["partition"] = {"method": cut.name, **options}
    if SYSTEMS.find(system.name).owns_features(system):
        table["features"] = "owned"
    if system.options:
        table[system.name] = dict(system.options)
    return table


def check_used(jobs: Sequence[Job], trains: bool) -> None:
    """Refuse keys that were given, if nothing reads them.

    Args:
        jobs: one, or those of a sweep, which share keys; resolved from what a caller gives for them alone.
        trains: to be trained; false: sampled, and whoever trains on the samples reads other sections.

    Raises:
        InputError: names one.
    """
    of_each = [_unread_sections(job, trains) for job in jobs]
    unread = {s: why for s, why in of_each[0].items() if all(s in sections for sections in of_each)}
    for said in chain.from_iterable(unread_keys(job, unread) for job in jobs):
        raise InputError(f"{said} with it, or leave it out")


def _unread_sections(job: Job, trains: bool) -> dict[str, str]:
    """Why a job does not read some sections."""
    others = [s for s in SYSTEMS.available() if s != job.system and s in vars(job)] if trains else []
    unread = {s: f'the system is {job.system}; set system = "{s}"' for s in others}
    if make_system(job).partition.partitioner is None:
        unread["partition"] = 'nothing is cut: every sampler has the whole graph; set bulk.topology = "partitioned"'
    return unread


def unread_keys(job: Job, unread: Mapping[str, str]) -> Iterator[str]:
    """A sentence on each given key of sections that nothing reads, of which `unread` says why."""
    for section, why in unread.items():
        given = getattr(job, section).model_dump(exclude_unset=True, exclude_defaults=True, exclude_none=True)
        yield from (f"{section}.{key} is set, but {why}" for key, value in given.items() if value != DEFAULT_CUT)
