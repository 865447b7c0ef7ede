"""Construction of a run's model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...stages.models import MODELS
from ...stages.models.base import as_model
from ...stages.random import Purpose, stream, torch_seed
from ...storage.dataset import Dataset, Task
from ...storage.errors import InputError
from ..config.load import Job, build
from ..config.systems import System
from ..interop.model_argument import check_widths
from .warm_start import with_initial_parameters

TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Outline:
    """Properties of a dataset that are known without its data."""

    name: str
    num_features: int
    num_classes: int
    task: Task
    splits: dict[str, int]
    """Number of nodes in each split."""

    @classmethod
    def of(cls, dataset: Dataset) -> "Outline":
        """The outline of a dataset."""
        return cls(dataset.name, dataset.num_features, dataset.num_classes, dataset.task, dataset.split_sizes)


def model_of(
    job: Job, outline: Outline, system: System, model: Any
) -> tuple[Callable[[], nn.Module], dict[str, Any], str]:
    """A function that builds the model, a description of it, and its name. `model` as in `prepare`."""
    dtype = TORCH_DTYPES[job.dtype]
    record = model if model is not None else build("model", MODELS, job.model)
    if isinstance(record, nn.Module):
        if not system.schedule.takes_modules:
            raise InputError(
                f"the model is a module of your own, {type(record).__name__}, and system '{system.name}' must give "
                "each layer a head; expected one of Millrace's models, such as GraphSAGE(...)"
            )
        module = as_model(record)
        check_widths(
            module,
            outline.num_features,
            outline.num_classes,
            outline.task,
            torch_seed(stream(job.seed_of("initial"), Purpose.INIT)),
        )
        initial = {k: v.detach().clone() for k, v in module.state_dict().items()}

        def again() -> nn.Module:
            module.load_state_dict(initial)
            return with_initial_parameters(module.to(dtype), job)

        name = type(record).__name__
        return again, {"module": name, **{k: list(v.shape) for k, v in initial.items()}}, name

    def make() -> nn.Module:
        torch.manual_seed(torch_seed(stream(job.seed_of("initial"), Purpose.INIT)))
        return with_initial_parameters(
            system.schedule.build(record, outline.num_features, outline.num_classes).to(dtype), job
        )

    return make, {"name": record.name, **vars(record)}, record.name
