"""One validated configuration: a TOML file, ``a.b=c`` overrides, or keyword arguments. Unknown keys are errors."""

import dataclasses
import tomllib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tomli_w
import torch
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ...stages.models import MODELS
from ...stages.partition.registry import PARTITIONERS
from ...stages.sample import SAMPLERS
from ...storage.errors import InputError, closest, nearest
from ...storage.registry import Registry
from ...storage.urls import has_secrets
from ..datasets import ReadOptions
from .aliases import REMOVED, RENAMED, advice, expanded
from .plain_values import MOST_DEPTH, SHOWN, parse_toml, require_sound, shown
from .schema import (
    BULK_ON_GPU,
    Bulk,
    CheckpointEvery,
    Cluster,
    Gpu,
    Grappa,
    Partition,
    Queue,
    Retexo,
    Sar,
    Section,
    Train,
    takes_numbers,
)

PER_LAYER: dict[str, tuple[int, ...]] = {"fanout": (15, 10, 5), "sizes": (512, 512, 512)}
"""Sampler options that hold one number per layer, and their values if unset; further layers repeat the last number."""


def canonical(registry: Container[str], name: str) -> str:
    """The registry's word for a name in another case (``SAGE``) or the public name of the class (``GraphSAGE``); else
    the name itself."""
    word = name.lower().removeprefix("graph")
    return word if word in registry else name


LONGEST_OPTION = 200
"""Characters of a model's or a sampler's option."""


class Job(Section):
    """Everything that decides a run. Written, resolved, into the run's folder as ``job.toml``."""

    dataset: str = "digits"
    """An embedded name, a file, a folder, a store, or an OGB name."""
    split: str | None = None
    """``public``, ``random:20,30`` (per class: training, validation), ``fraction:0.6,0.2``; by default what the dataset
    has."""
    features: Literal["memory", "mapped", "zarr", "owned"] = "memory"
    """Where the features of a Millrace store lie during the run; ``owned``: each rank holds its share in memory, and
    sends the others what they need."""
    system: Literal["bulk", "grappa", "retexo", "sar"] = "bulk"
    """``bulk``: minibatches on samples that are drawn many at a time; ``grappa``: isolated ranks that send gradients
    only; ``retexo``: layer after layer, one exchange for each; ``sar``: full batch, each rank visiting the others in
    turn."""
    epochs: int = Field(default=30, ge=1)
    """Passes over the train split; under ``retexo``, for each layer."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Random seed: of the split, the initial parameters, minibatches and dropout."""
    ranks: int = Field(default=1, ge=1)
    """P: trainer processes."""
    executor: Literal["inline", "dask"] | None = None
    """``inline``: this process; ``dask``: a cluster. By default inline for one rank."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where ranks train: on processors, or each on a GPU of its own."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of features, activations and parameters."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """Threads of each rank; by default all cores."""
    kernel: Literal["cpu", "reference", "cuda", "cugraph"] = "cpu"
    """Sampling kernels: compiled, the literal matrix formulation (slow), or those of a GPU; ``cugraph``: by RAPIDS, for
    the sampler ``neighbor``, with other random numbers. By default those of `device`."""
    check: bool = False
    """Prove the invariants of every message on the way."""
    start_from: str | None = None
    """The folder of a finished run whose parameters training begins with, such as one by ``retexo`` that ``sar`` is to
    tune end to end."""
    model: dict[str, Any] = Field(default_factory=lambda: {"name": "sage"})
    """``name`` and the options of that model."""
    sampler: dict[str, Any] = Field(default_factory=lambda: {"name": "neighbor"})
    """``name`` and the options of that sampler."""
    train: Train = Train()
    queue: Queue = Queue()
    partition: Partition = Partition()
    bulk: Bulk = Bulk()
    grappa: Grappa = Grappa()
    retexo: Retexo = Retexo()
    sar: Sar = Sar()
    gpu: Gpu = Gpu()
    cluster: Cluster = Cluster()
    checkpoint: CheckpointEvery = CheckpointEvery()
    read: ReadOptions = ReadOptions()
    """How the dataset's input is cleaned."""

    @field_validator("device", "dtype", mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        """The word for an object of torch's, such as ``torch.device("cpu")``."""
        word = str(value).removeprefix("torch.") if isinstance(value, torch.device | torch.dtype) else value
        if isinstance(word, str) and word.startswith("cuda:"):
            raise PydanticCustomError(
                "device",
                "expected 'cpu' or 'cuda': each rank takes a GPU of its own; choose among them by CUDA_VISIBLE_DEVICES",
            )
        return word

    @field_validator("model", "sampler", mode="before")
    @classmethod
    def _known_name(cls, value: Any, info: ValidationInfo) -> Any:
        """Names are known in any case, and models by the names of their classes too."""
        if not isinstance(value, Mapping) or not isinstance(name := value.get("name"), str):
            return value
        return {**value, "name": canonical(MODELS if info.field_name == "model" else SAMPLERS, name)}

    def to_toml(self) -> str:
        """The resolved configuration as TOML; keys that are unset are left out."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def _known(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _known(field.annotation, f"{prefix}{name}.")
    return names


def _hint(key: str) -> str:
    """Suggests what an unknown key was meant to be, as the end of an error."""
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
    lines = []
    for e in error.errors()[:3]:
        key = ".".join(str(part) for part in e["loc"])
        if e["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"unknown configuration key '{key[:SHOWN]}'{_hint(key[:SHOWN])}")
        else:
            lines.append(f"configuration key '{key}' is {shown(e['input'])}: {e['msg'][0].lower()}{e['msg'][1:]}")
    return "\n".join(lines)


def parse_override(text: str) -> tuple[list[str], Any]:
    """``a.b=c`` as (["a", "b"], c); c is read as a TOML value, or else as a string.

    Raises:
        InputError: no ``=`` or an empty key.
    """
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path) or len(path) > MOST_DEPTH:
        raise InputError(f"--set {shown(text)} is not of the form key=value, such as train.lr=0.01")
    value = value.strip()
    try:
        # What has a line of its own would be another key.
        read = value if "\n" in value else tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        read = value
    except (ValueError, RecursionError):
        raise InputError(f"--set {shown(text)} has a value that is too long or too deep") from None
    require_sound(read, f"--set {key}")
    return path, read


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        InputError: absent, no file, no TOML.
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected a TOML job file") from None
    except OSError as e:
        raise InputError(f"{path} cannot be read ({e.strerror}); expected a TOML job file") from None
    except ValueError as e:  # InputError is one
        raise InputError(f"{path} is not valid TOML: {e}") from None


def check_no_secrets(table: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse URLs with credentials or a query: a run writes its configuration down.

    Raises:
        InputError: names the key.
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            check_no_secrets(value, f"{prefix}{key}.")
        elif isinstance(value, str | Path) and has_secrets(str(value)):
            raise InputError(
                f"configuration key '{prefix}{key}' is '{value}': its credentials or query would be written into the run's folder; "
                "leave them out, and give keys in the environment (AWS_ACCESS_KEY_ID, ... for S3)"
            )


def resolve(table: Mapping[str, Any]) -> Job:
    """Validate a configuration and fill in what depends on other keys (layers follow the sampler's fanout or sizes, or
    they the layers).

    Raises:
        InputError: one line per problem, at most three.
    """
    require_sound(table)
    check_no_secrets(table)
    table = expanded(table)
    try:
        job = Job.model_validate(table)
    except ValidationError as e:
        raise InputError(_sentence(e)) from None
    whole = job.system == "bulk" and job.bulk.topology == "replicated"
    if job.device == "cuda" and "kernel" not in job.model_fields_set and whole and job.queue.kind == "memory":
        # What goes through a store is drawn by workers, which need not have a GPU.
        job = job.model_copy(update={"kernel": "cuda"})
    if job.kernel == "cuda" and "bulk_size" not in job.queue.model_fields_set:
        # A launch draws for all minibatches of a bulk, and takes the host as long for one as for many.
        job = job.model_copy(update={"queue": job.queue.model_copy(update={"bulk_size": BULK_ON_GPU})})
    if job.partition.method is None:
        method = "contiguous" if job.system == "bulk" and job.bulk.topology == "partitioned" else "metis-work"
        job = job.model_copy(update={"partition": job.partition.model_copy(update={"method": method})})
    if job.system in ("retexo", "sar"):
        return _without_sampler(job, table)
    if job.system == "grappa" and job.queue != Queue(bulk_size=job.queue.bulk_size):
        raise InputError(
            "section 'queue' is given, but under system 'grappa' each rank samples for itself: only queue.bulk_size is used"
        )
    if job.system == "grappa" and job.train.minibatches_per_step not in (None, job.ranks):
        raise InputError(
            f"configuration key 'train.minibatches_per_step' is {job.train.minibatches_per_step}, but under system 'grappa' each of the "
            f"{job.ranks} ranks trains on one minibatch of its own in every step; leave it out"
        )
    model, sampler = dict(job.model), dict(job.sampler)
    layers: Any = model.get("layers")
    known = {f.name for f in dataclasses.fields(_registered("sampler", SAMPLERS, sampler))}
    key = next((k for k in PER_LAYER if k in known), "fanout")
    numbers: Any = sampler.get(key)
    if isinstance(numbers, str):
        numbers = parse_fanout(numbers, key)
    if type(numbers) is int:
        numbers = [numbers]
    if numbers is not None and not isinstance(numbers, list | tuple):
        raise InputError(
            f"configuration key 'sampler.{key}' is {shown(numbers)}; expected whole numbers such as {list(PER_LAYER[key])}"
        )
    if numbers is None and key in known:
        default = PER_LAYER[key]
        count = layers if isinstance(layers, int) and 1 <= layers <= 64 else len(default)
        numbers = [*default, *[default[-1]] * count][:count]
    if numbers is not None:
        sampler[key] = list(numbers)
        model.setdefault("layers", len(numbers))
    model_record = build("model", MODELS, model)
    if numbers is not None and model_record.layers != len(numbers):
        raise InputError(
            f"model.layers is {model_record.layers} but sampler.{key} {list(numbers)} has {len(numbers)} numbers; give one number per layer"
        )
    sampler_record = build("sampler", SAMPLERS, sampler)
    return job.model_copy(
        update={
            "model": {"name": model.get("name", "sage"), **_plain(model_record)},
            "sampler": {"name": sampler.get("name", "neighbor"), **_plain(sampler_record)},
            "executor": job.executor or ("inline" if job.ranks == 1 else "dask"),
        }
    )


def _without_sampler(job: Job, table: Mapping[str, Any]) -> Job:
    """A job that samples nothing, resolved. Raises InputError: it says how to sample, or an unknown partitioner."""
    if table.get("sampler"):
        raise InputError(
            f"configuration key 'sampler' is {shown(table['sampler'])}, but system '{job.system}' samples nothing; leave it out"
        )
    if job.queue != Queue():
        raise InputError(
            f"configuration section 'queue' is given, but system '{job.system}' has no minibatches to queue; leave it out"
        )
    for key in ("batch_size", "minibatches_per_step"):
        if (given := getattr(job.train, key)) != Train.model_fields[key].default:
            raise InputError(
                f"configuration key 'train.{key}' is {given}, but system '{job.system}' takes all train nodes in one step; leave it out"
            )
    PARTITIONERS.find(str(job.partition.method), "configuration key 'partition.method'")
    record = build("model", MODELS, job.model)
    return job.model_copy(
        update={
            "model": {"name": job.model.get("name", "sage"), **_plain(record)},
            "sampler": {},
            "executor": job.executor or ("inline" if job.ranks == 1 else "dask"),
        }
    )


def parse_fanout(text: str, option: str = "fanout") -> list[int]:
    """``15,10,5`` as numbers; `option` is what an error calls them.

    Raises:
        InputError: anything else.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        hint = " (-1 takes every neighbour)" if option == "fanout" else ""
        example = ",".join(map(str, PER_LAYER[option]))
        raise InputError(f"{option} {shown(text)} is not a list of whole numbers such as {example}{hint}") from None


def _registered(section: str, registry: Registry[Any], table: Mapping[str, Any]) -> type:
    return registry.find(str(table.get("name", next(iter(registry)))), f"{section}.name")


def build(section: str, registry: Registry[Any], table: Mapping[str, Any]) -> Any:
    """The record that ``table["name"]`` and its options describe.

    Raises:
        InputError: unknown name, unknown option, or a value that does not fit.
    """
    kind = _registered(section, registry, table)
    options = {k: v for k, v in table.items() if k != "name"}
    known = [f.name for f in dataclasses.fields(kind)]
    for key in options:
        if key not in known:
            name = table.get("name", next(iter(registry)))
            raise InputError(
                f"{section} '{name}' has no option '{key}'{nearest(key, known) or advice(key)} (it has {', '.join(known)})"
            )
    hints = get_type_hints(kind)
    for key, value in options.items():
        if any(isinstance(v, bool) for v in (value if isinstance(value, list | tuple) else [value])) and takes_numbers(
            hints[key]
        ):
            raise InputError(f"configuration key '{section}.{key}' is {shown(value)}; expected a number")
        if isinstance(value, str) and len(value) > LONGEST_OPTION:
            raise InputError(f"configuration key '{section}.{key}' is {shown(value)}; expected a word")
    try:
        return TypeAdapter(kind).validate_python(options)
    except ValidationError as e:
        first = e.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise cause from None
        key = ".".join(str(p) for p in first["loc"])
        raise InputError(
            f"configuration key '{section}.{key}' is {shown(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None


def _plain(record: Any) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(record).items()}
