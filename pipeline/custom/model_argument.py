"""The ``model`` argument of Python callers: records, modules and PyG convolutions."""

from typing import Any

from torch import nn

from ...stages.models.base import ModelConfig, as_model, check_initialised
from ...stages.models.pyg.checks import is_network
from ...stages.models.pyg.edges import forward_parameters
from ...stages.models.pyg.hetero import HeteroPyGModel, takes_types
from ...stages.models.pyg.model import PyGModel
from ...stages.models.relational import TypedInput
from ...storage.dataset import Task, counted_outputs
from ...storage.errors import InputError


def as_record_or_module(model: Any) -> Any:
    """Turn `model` into a record or a module; a PyG convolution, a list of them, or a whole PyG model becomes a
    `PyGModel`, and a list of modules over node types and relations a `HeteroPyGModel`.

    Raises:
        InputError: it is none of these.
    """
    if model is None or isinstance(model, ModelConfig):
        return model
    if any(type(m).__name__ == "OptimizedModule" for m in (model if isinstance(model, list | tuple) else [model])):
        raise InputError("torch.compile has made the model; give the module itself, and let train.compile compile it")
    if isinstance(model, list | tuple | nn.ModuleList):
        layers = list(model)
        return HeteroPyGModel(layers) if layers and takes_types(layers[0]) else PyGModel(layers)
    if isinstance(model, type):
        raise InputError(
            f"the model is the class {model.__name__}; expected an object of that class: {model.__name__}(...)"
        )
    if not isinstance(model, nn.Module):
        raise InputError(
            f"the model is a {type(model).__name__}; expected a record such as GraphSAGE(hidden=128), a list of PyG "
            "convolutions, or an nn.Module with num_layers and layer(i, neighbourhood, h) -> h"
        )
    if not callable(getattr(model, "layer", None)) and takes_types(model):
        return HeteroPyGModel(model)
    if not callable(getattr(model, "layer", None)) and (is_network(model) or _is_convolution(model)):
        return PyGModel(model)
    return as_model(model)


def _is_convolution(module: nn.Module) -> bool:
    kinds = {c.__name__ for c in type(module).__mro__}
    return "MessagePassing" in kinds and {"x", "edge_index"} <= forward_parameters(module).keys()


def check_widths(module: nn.Module, outline: Any, seed: int, given: TypedInput | None) -> None:
    """Refuse a module whose widths do not fit the dataset; lazy parameters of a `PyGModel` get their shapes.

    Args:
        module: a user's module, or a `PyGModel`.
        outline: an `Outline`, of the dataset. All tasks but multi-class need exactly as many columns, and so do rows
            of nodes that a decoder of pairs reads.
        seed: seed of the initial values of lazy parameters.
        given: types of the graph, and its features' widths; None: there is one of each.

    Raises:
        InputError: the widths do not fit, a user's module has lazy parameters, or there is nothing to train.
    """
    columns = outline.num_outputs
    if isinstance(module, PyGModel):
        width = module.fit(outline.num_features, seed, outline.edge_width)
        if needed := needed_columns(width, outline.task, columns, outline.of_pairs):
            message = f"the last convolution has {width} columns, but {needed}"
            of, option = (module.convs[-1], "") if module.network is None else (module.network, "out_channels=")
            raise InputError(f"{message}; make it {type(of).__name__}(..., {option}{columns})")
    if isinstance(module, HeteroPyGModel):
        if given is None:
            raise InputError(
                "the model is a HeteroPyGModel, over node types and relations, but the graph has one of each; expected "
                "PyGModel([...]) of convolutions over x and edge_index"
            )
        width = module.fit(given, seed)
        if needed := needed_columns(width, outline.task, columns, outline.of_pairs):
            raise InputError(
                f"the last layer has {width} columns for '{given.types.node_types[0]}', but {needed}; "
                f"give it {columns} columns"
            )
    check_initialised(module)
    if not any(p.requires_grad for p in module.parameters()):
        raise InputError(f"{type(module).__name__} has no parameters to train; give it at least one layer with weights")


def needed_columns(width: int, task: Task, num_outputs: int, of_pairs: bool = False) -> str:
    """Words for the columns that the task needs, if `width` columns do not do; else an empty text."""
    if width == num_outputs or (width > num_outputs and task == "multiclass" and not of_pairs):
        return ""
    if of_pairs:
        return f"a row that pairs are scored by has link.width = {num_outputs}"
    needed = "two classes, which take one" if task == "binary" else counted_outputs(task, num_outputs)
    return f"the dataset has {needed}"
