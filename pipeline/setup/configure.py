"""A configuration from records passed by a Python caller."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from ...stages.models.base import as_model
from ...stages.partition.given import Given
from ...storage.errors import InputError
from ..config.aliases import with_options
from ..config.load import Job, resolve
from ..config.records import is_record, table_of
from ..config.systems import SYSTEMS, System
from ..custom.model_argument import as_record_or_module, check_no_model_options


def configure(
    config: Mapping[str, Any], *, system: System | str | None = None, model: Any = None, **options: Any
) -> Job:
    """A resolved configuration from tables, shorthands and the records passed by a Python caller."""
    table = with_options(config, {k: table_of(v) if k == "sampler" and is_record(v) else v for k, v in options.items()})
    layers = None
    model = as_record_or_module(model)
    if model is not None:
        check_no_model_options(model, options)
        layers = as_model(model).num_layers if isinstance(model, nn.Module) else model.layers
        table["model"] = {"layers": layers} if isinstance(model, nn.Module) else table_of(model)
    if system is not None:
        if not isinstance(system, System | str):
            raise InputError(f"system is a {type(system).__name__}; expected a name such as 'bulk', or mr.bulk(...)")
        table["system"] = system if isinstance(system, str) else system.name
    if isinstance(system, System):
        table |= tables_of_system(system)
    job = resolve(table)
    if (name := str(job.sampler.get("name"))).startswith("__main__:") and job.executor == "dask":
        raise InputError(
            f"the sampler {name.partition(':')[2]} is defined in the script or notebook that runs, which ranks and "
            "sampling tasks cannot import; put it into a module of its own, and import it from there"
        )
    return job


def check_cut_in_file(system: System, what: str) -> None:
    """Refuse a system whose nodes' owners are an array, which no section of a configuration holds."""
    if isinstance(system.partition.partitioner, Given):
        raise InputError(f"{what} the owners of nodes from a file: set partition.owners")


def tables_of_system(system: System) -> dict[str, Any]:
    """Sections of a configuration that describe a system."""
    table: dict[str, Any] = {}
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
