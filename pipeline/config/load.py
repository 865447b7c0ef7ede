"""Validation of a configuration from a TOML file, ``a.b=c`` overrides or keyword arguments. Unknown keys are errors."""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ...stages.capabilities import Need
from ...stages.models import MODELS
from ...stages.models.base import ModelConfig, reads_edges
from ...stages.partition.registry import PARTITIONERS
from ...stages.sample import SAMPLERS
from ...storage.errors import InputError, StoreError, closest
from ...storage.store.regular import file_text
from ...storage.urls import has_secrets
from ..datasets.cleaning.options import COLUMNS
from .aliases import NUMBERED, REMOVED, RENAMED, advice, expanded
from .capabilities import QUEUE_GIVEN, needs_of
from .job import Job
from .named_code import check_code
from .plain_values import MOST_DEPTH, SHOWN, parse_toml, quoted, require_sound
from .records import build, plain, record_type
from .refusals import refuse
from .schema import BULK_ON_GPU, Queue, Train
from .systems import SYSTEMS

PER_LAYER: dict[str, tuple[int, ...]] = {"fanout": (15, 10, 5), "sizes": (512, 512, 512)}
"""Sampler options with one number per layer, and their defaults; further layers repeat the last number."""

DEFAULT_CUT = "metis-work"
"""Name of the partitioner of systems that say nothing else."""
_UNION = re.compile(r"literal\[.*\]|list\[.*\]|str|int|float|bool")
"""Names of types in the location of an error."""


def add_sections() -> None:
    """Add a section to `Job` for each registered system. Call it again after registering a system by hand."""
    systems = SYSTEMS.available()
    literal: Any = Literal
    Job.model_fields["system"].annotation = literal[tuple(sorted(systems))]
    Job.model_fields["system"].default = next(iter(SYSTEMS))
    for name, entry in sorted(systems.items()):
        Job.model_fields[name] = FieldInfo.from_annotated_attribute(entry.options, entry.options())
    Job.model_rebuild(force=True)


add_sections()


def _known(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _known(field.annotation, f"{prefix}{name}.")
        elif isinstance(field.annotation, type) and dataclasses.is_dataclass(field.annotation):
            names += [f"{prefix}{name}.{f.name}" for f in dataclasses.fields(field.annotation)]
    return names


def _hint(key: str) -> str:
    """Suggestion for an unknown key, as the end of an error message."""
    if key in RENAMED:
        return f"; it is called '{RENAMED[key]}' now"
    if key in REMOVED:
        return f"; it was removed: {REMOVED[key]}; leave it out"
    section, _, last = key.rpartition(".")
    known = _known(Job)
    for name, registry in (("model", MODELS), ("sampler", SAMPLERS)):
        known += dict.fromkeys(f"{name}.{f.name}" for kind in registry.values() for f in dataclasses.fields(kind))
    leaves = {k: k.rpartition(".")[2] for k in known}
    beside = [leaf for k, leaf in leaves.items() if k == f"{section}.{leaf}".lstrip(".")]
    if (message := advice(last)) and last not in beside:
        return message
    word = last if last in leaves.values() else closest(last, beside) or closest(last, leaves.values())
    if word in beside:
        return f"; did you mean '{f'{section}.{word}'.lstrip('.')}'?"
    meant = [f"'{k}'" for k, leaf in leaves.items() if leaf == word][:3]
    return f"; did you mean {' or '.join(meant)}?" if meant else "; docs/configuration.md lists all keys"


def _sentence(error: ValidationError) -> str:
    unknown, told = list[str](), dict[str, list[Any]]()
    for e in error.errors():
        # A value that may have one of several types has an error for each, whose location ends with the type.
        key = ".".join(str(part) for part in e["loc"] if not _UNION.fullmatch(str(part)))
        if e["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            unknown.append(f"unknown configuration key '{key[:SHOWN]}'{_hint(key[:SHOWN])}")
        else:
            told.setdefault(key, []).append(e)
    lines = [*unknown]
    for key, errors in told.items():
        learned = key == "features" and "learn" in str(errors[0]["input"])
        more = "; the key 'learned' learns features, such as learned = 64" if learned else ""
        expected = ", or ".join(dict.fromkeys(_expected(e) for e in errors))
        lines.append(f"configuration key '{key}' is {quoted(errors[0]['input'])}: {expected}{more}")
    return "\n".join(lines[:3])


def _expected(e: Any) -> str:
    """The end of an error message, which says what was expected."""
    if e["type"] in ("model_type", "dataclass_type"):
        main = NUMBERED.get(".".join(str(part) for part in e["loc"]))
        return "expected a table of keys" + (f", or a whole number, the {main}" if main else "")
    return f"{e['msg'][0].lower()}{e['msg'][1:]}"


def parse_override(text: str) -> tuple[list[str], Any]:
    """Parse ``a.b=c`` into (["a", "b"], c); c is read as a TOML value, or else as a string.

    Raises:
        InputError: no ``=``, or an empty key.
    """
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path) or len(path) > MOST_DEPTH:
        raise InputError(f"--set {quoted(text)} is not of the form key=value, such as train.lr=0.01")
    value = value.strip()
    try:
        # A value with a line break could contain another key.
        read = value if "\n" in value else tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        read = value
    except (ValueError, RecursionError):
        raise InputError(f"--set {quoted(text)} has a value that is too long or too deep") from None
    require_sound(read, f"--set {key}")
    # A column, or a stored split, may be called by a number.
    return path, value if path[0] == "read" and path[-1] in COLUMNS and isinstance(read, int | float) else read


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        InputError: the file does not exist, is not a file, or is not TOML.
    """
    try:
        return parse_toml(file_text(path))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected a TOML job file") from None
    except StoreError:
        raise
    except OSError as e:
        raise InputError(f"{path} cannot be read ({e.strerror}); expected a TOML job file") from None
    except ValueError as e:  # InputError is one
        raise InputError(f"{path} is not valid TOML: {e}; correct it") from None


def read_run_table(path: Path) -> dict[str, Any]:
    """`read_any_run_table`, of a run that names no code but what the caller names too.

    Raises:
        UnnamedCodeError: it names other code.
        InputError: see `read_toml`.
    """
    table = read_any_run_table(path)
    check_code(table, path)
    return table


def read_any_run_table(path: Path) -> dict[str, Any]:
    """The tables of the ``job.toml`` in a run's folder, perhaps of an earlier version: keys that were renamed have
    today's names, and those that were removed are left out. It may name code: see `check_code` and `without_code`.

    Raises:
        InputError: see `read_toml`.
        StoreError: the file is empty.
    """
    table = read_toml(path)
    if not table:
        raise StoreError(f"{path} is empty, which no run writes: it is damaged; copy it again")
    if table.get("kernel") == "reference":
        del table["kernel"]  # others draw the same minibatches
    for key in (*RENAMED, *REMOVED):
        section, _, name = key.partition(".")
        within = table.get(section)
        if not isinstance(within, dict) or name not in within:
            continue
        value = within.pop(name)
        if key in RENAMED:
            section, _, name = RENAMED[key].partition(".")
            table.setdefault(section, {}).setdefault(name, value)
    return table


def check_no_secrets(table: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse URLs with credentials or a query, since a run writes its configuration to its folder.

    Raises:
        InputError: names the key.
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            check_no_secrets(value, f"{prefix}{key}.")
        elif isinstance(value, str | Path) and has_secrets(str(value)):
            raise InputError(
                f"configuration key '{prefix}{key}' is '{value}': its credentials or query would be written into the "
                "run's folder; leave them out, and give keys in the environment (AWS_ACCESS_KEY_ID, ... for S3)"
            )


def resolve(table: Mapping[str, Any]) -> Job:
    """Validate a configuration and fill in values that depend on other keys: the number of layers follows the sampler's
    fanout or sizes, or the other way round.

    Raises:
        InputError: one line per problem, at most three.
    """
    require_sound(table)
    check_no_secrets(table)
    table = expanded(table)
    if isinstance(name := table.get("system"), str) and name in SYSTEMS:
        _ = SYSTEMS.find(name)  # raises for an installed one that cannot be imported
    try:
        job = Job.model_validate(table)
    except ValidationError as e:
        raise InputError(_sentence(e)) from None
    entry = SYSTEMS.find(job.system)
    job = entry.complete(job)
    if job.kernel == "cuda" and "bulk_size" not in job.queue.model_fields_set:
        # One launch draws for all minibatches of a bulk, and costs the host as much for one as for many.
        job = job.with_defaults(queue=job.queue.with_defaults(bulk_size=BULK_ON_GPU))
    if job.partition.method is None:
        job = job.model_copy(update={"partition": job.partition.model_copy(update={"method": DEFAULT_CUT})})
    if not entry.draws(job):
        return _without_sampler(job, table)
    model, sampler = dict(job.model), dict(job.sampler)
    layers: Any = model.get("layers")
    known = {f.name for f in dataclasses.fields(record_type("sampler", SAMPLERS, sampler))}
    key = next((k for k in PER_LAYER if k in known), "fanout")
    numbers: Any = sampler.get(key)
    if isinstance(numbers, str):
        numbers = parse_fanout(numbers, key)
    if type(numbers) is int:
        numbers = [numbers]
    if numbers is not None and not isinstance(numbers, list | tuple):
        raise InputError(
            f"configuration key 'sampler.{key}' is {quoted(numbers)}; expected whole numbers such as "
            f"{list(PER_LAYER[key])}"
        )
    if numbers is None and key in known:
        default = PER_LAYER[key]
        count = layers if isinstance(layers, int) and 1 <= layers <= 64 else len(default)
        numbers = [*default, *[default[-1]] * count][:count]
    if "layers" in known:
        # A subgraph that all layers see: as many as the model has.
        sampler.setdefault("layers", layers if layers is not None else 3)
        model.setdefault("layers", sampler["layers"])
    if numbers is not None:
        sampler[key] = list(numbers)
        model.setdefault("layers", len(numbers))
    model_record = build("model", MODELS, model)
    if numbers is not None and model_record.layers != len(numbers):
        raise InputError(
            f"model.layers is {model_record.layers} but sampler.{key} {list(numbers)} has {len(numbers)} numbers; give "
            "one number per layer"
        )
    if reads_edges(model_record) and "edge_ids" in known:
        sampler["edge_ids"] = True
    sampler_record = build("sampler", SAMPLERS, sampler)
    return _described(job, model_record, {"name": sampler.get("name", "neighbor"), **plain(sampler_record)})


def _described(job: Job, model: ModelConfig, sampler: dict[str, Any]) -> Job:
    """The job with all options of its model and its sampler, and an executor."""
    table, executor = {"name": job.model.get("name", "sage"), **plain(model)}, "inline" if job.ranks == 1 else "dask"
    return job.model_copy(update={"model": table, "sampler": sampler, "executor": job.executor or executor})


def _named_sampler(table: Mapping[str, Any]) -> type | None:
    """The registered kind of sampler that a table names."""
    named = table.get("sampler")
    name = named.get("name") if isinstance(named, Mapping) else None
    return SAMPLERS.find(name) if isinstance(name, str) and name in SAMPLERS else None


def _without_sampler(job: Job, table: Mapping[str, Any]) -> Job:
    """A resolved job of a system without sampling. Raises InputError if the table has sampling keys or names an unknown
    partitioner."""
    needs = needs_of(job, sampler=_named_sampler(table))
    system = f"system '{job.system}'" + (" with full_batch" if SYSTEMS.find(job.system).samples else "")
    refuse(Need.DEVICE_DRAWS, needs, job)
    refuse(Need.TIMES, needs, job)
    if table.get("sampler"):
        raise InputError(
            f"configuration key 'sampler' is {quoted(table['sampler'])}, but {system} samples nothing; leave it out"
        )
    if job.queue != Queue():
        refuse(Need.QUEUE, needs | {Need.QUEUE: QUEUE_GIVEN}, job)
    for key in ("batch_size", "minibatches_per_step"):
        if (given := getattr(job.train, key)) != Train.model_fields[key].default:
            raise InputError(
                f"configuration key 'train.{key}' is {given}, but {system} takes all train nodes in one "
                "step; leave it out"
            )
    PARTITIONERS.find(str(job.partition.method), "configuration key 'partition.method'")
    return _described(job, build("model", MODELS, job.model), {})


def parse_fanout(text: str, option: str = "fanout") -> list[int]:
    """Parse ``15,10,5`` into numbers; `option` is its name in error messages.

    Raises:
        InputError: `text` is not such a list.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        hint = " (-1 takes every neighbour)" if option == "fanout" else ""
        example = ",".join(map(str, PER_LAYER[option]))
        raise InputError(f"{option} {quoted(text)} is not a list of whole numbers such as {example}{hint}") from None
