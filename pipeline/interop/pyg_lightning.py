"""`LightningNodeData` and `LightningLinkData`, PyG's data modules for Lightning, on Millrace's sampler."""

import sys
import warnings
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

from ...storage.errors import InputError
from .export import require_pyg
from .pyg_sampler import PyGSampler

SAMPLERS = {"LightningNodeData": "node_sampler", "LightningLinkData": "link_sampler"}
"""PyG's argument for a sampler of its own, by class."""


def __getattr__(name: str) -> Any:
    if name not in SAMPLERS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return _on_sampler(name)


@cache
def _on_sampler(name: str) -> type:
    """PyG's class, with a `PyGSampler` where its loaders draw neighbours and no other sampler is given."""
    require_pyg(name)
    theirs, sampler = getattr(import_module("torch_geometric.data.lightning"), name), SAMPLERS[name]

    words = f"PyG's `{name}`, whose loaders draw neighbours by a `PyGSampler`; its arguments are PyG's."

    def begin(self: Any, data: Any, *args: Any, **options: Any) -> None:
        if "pytorch_lightning" in sys.modules and any(c.__module__.startswith("lightning.") for c in theirs.__mro__):
            warnings.warn(
                f"{name} is of the package lightning, as in PyG where both are installed, and a Trainer of "
                "pytorch_lightning does not take it; import lightning.pytorch as pl",
                stacklevel=2,
            )
        names = signature(PyGSampler).parameters
        if options.get(sampler) is None and "neighbor" in options.get("loader", "neighbor"):
            described = {option: options.pop(option) for option in names if option in options}
            options[sampler] = PyGSampler(data, **described)
        if fixed := sorted((options.get("eval_loader_kwargs") or {}).keys() & names.keys() - {"num_neighbors"}):
            raise InputError(f"eval_loader_kwargs has {', '.join(fixed)}; of the sampler only num_neighbors may differ")
        theirs.__init__(self, data, *args, **options)

    return type(name, (theirs,), {"__init__": begin, "__module__": __name__, "__doc__": words})
