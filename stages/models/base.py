"""Models of L layers ``layer(i, neighbourhood, h) -> h'``, which see neighbours only through a `Neighbourhood`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from types import MethodType
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...storage.errors import InputError, one_of
from ..neighbourhood.base import EdgeCounts, Neighbourhood, aggregate_first
from ..nn.dropout import dropout
from .parts import ConvParts, InParts, LayerCounts, can_be_taken_apart, has_hooks

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "elu": nn.functional.elu, "none": lambda h: h}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda width: nn.Identity(),
    "layer": nn.LayerNorm,
    "batch": nn.BatchNorm1d,
}


class Model(nn.Module, ABC):
    """A model of layers. User modules need not derive from it: see `as_model`."""

    num_layers: int
    """L."""
    reads_blocks: ClassVar[bool] = False
    """True if a layer needs all rows that it reads in one block, including those of other ranks."""
    reads_edges: bool = False
    """True if a layer reads `Neighbourhood.edge_features`."""
    reads_loops: bool = False
    """True if a layer reads `Neighbourhood.loops`."""
    keeps_edges: bool = False
    """True if a layer keeps rows for each edge, as those do that read their features: evaluation's chunks are as much
    smaller."""

    @abstractmethod
    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """Layer i (0 is nearest the input) with its dropout, norm and activation: [num_src, D_i] -> [num_dst,
        D_i+1]."""

    def forward(self, neighbourhoods: Sequence[Neighbourhood], h: Tensor) -> Tensor:
        """All layers: `neighbourhoods` outermost first, one for each layer; [neighbourhoods[0].num_src, F] ->
        [neighbourhoods[-1].num_dst, C].

        Raises:
            InputError: there are not as many neighbourhoods as layers, or rows and edges are given in their place.
        """
        if isinstance(neighbourhoods, Tensor):
            raise InputError(
                f"{type(self).__name__} takes a list of blocks and rows, forward(neighbourhoods, h), but got a tensor "
                f"of shape {list(neighbourhoods.shape)} first, as an explainer of PyG gives x and edge_index; give "
                "those to the PyG module that it is made of, or to export_program(model, ...).module()"
            )
        if len(neighbourhoods) != self.num_layers:
            raise InputError(
                f"{len(neighbourhoods)} blocks for a model of {self.num_layers} layers; give one fanout for each layer"
            )
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return h


def as_model(module: object) -> nn.Module:
    """Check that `module` can be trained by layers and return it; it gets `Model.forward` if it has no `forward` of its
    own.

    Raises:
        InputError: it is not an `nn.Module`, or lacks `num_layers` or `layer(i, neighbourhood, h)`.
    """
    wanted = "expected an nn.Module with an integer num_layers and a method layer(i, neighbourhood, h) -> h"
    if not isinstance(module, nn.Module):
        raise InputError(f"the model is a {type(module).__name__}; {wanted}")
    if not callable(getattr(module, "layer", None)):
        takes = "takes a whole edge_index" if "edge_index" in signature(module.forward).parameters else "is whole"
        raise InputError(
            f"{type(module).__name__}.forward {takes} and there is no layer(i, neighbourhood, h), but Millrace trains "
            "layer by layer; give the module's convolutions as mr.PyGModel([conv1, conv2]), write num_layers and "
            "layer(i, neighbourhood, h) -> h, or keep your own loop over mr.NeighborLoader"
        )
    layers = getattr(module, "num_layers", None)
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        raise InputError(f"{type(module).__name__}.num_layers is {layers!r}; {wanted}")
    if type(module).forward is nn.Module.forward:
        module.forward = MethodType(Model.forward, module)
    return module


def layered(module: nn.Module) -> Model:
    """The module with the type of a model, for modules that `as_model` has checked."""
    return cast(Model, module)


def reads_blocks(module: nn.Module) -> bool:
    """See `Model.reads_blocks`; False for user modules."""
    return getattr(module, "reads_blocks", False) is True


def reads_edges(module: object) -> bool:
    """See `Model.reads_edges`: of a model, a user module or a model's record; False where it does not say."""
    if isinstance(module, ModelConfig) and getattr(module, "edge_width", 0) > 0:
        return True
    return getattr(module, "reads_edges", False) is True


def reads_loops(module: object) -> bool:
    """See `Model.reads_loops`: of a module, if one of its convolutions does."""
    modules = module.modules() if isinstance(module, nn.Module) else ()
    return any(getattr(m, "reads_loops", False) is True for m in modules)


def keeps_edges(module: nn.Module) -> bool:
    """See `Model.keeps_edges`; False for user modules that do not say."""
    return reads_edges(module) or getattr(module, "keeps_edges", False) is True


def check_initialised(module: nn.Module) -> None:
    """Refuse a module whose lazy parameters have no shape yet.

    Raises:
        InputError: it names the first of them.
    """
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value):
            raise InputError(
                f"parameter '{name}' of {type(module).__name__} is lazy and has no shape yet; give its layer the "
                "number of input columns"
            )


class AggregateFirst(nn.Module, ABC):
    """A convolution that can aggregate before it multiplies by its weights: the aggregate then depends on no
    parameter."""

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """[width_out, width_in], factor of each aggregated row, before or after."""

    def aggregates_first(self, neighbourhood: EdgeCounts) -> bool:
        """True if it aggregates first over these edges: see `neighbourhood.base.aggregate_first`."""
        weight = self.weight
        return aggregate_first(neighbourhood, weight.numel(), before=weight.shape[1], after=weight.shape[0])

    @abstractmethod
    def aggregate(self, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """[num_src, width_in] -> [num_dst, A], without parameters."""

    @abstractmethod
    def combine(self, aggregated: Tensor, activation: str = "none") -> Tensor:
        """[num_dst, A] -> [num_dst, width_out]."""


class Entered(NamedTuple):
    """Input of a layer's first parameters."""

    rows: Tensor
    """[num_src, D], with dropout; or the convolution's aggregate of them, [num_dst, A]."""
    by: AggregateFirst | None = None
    """The convolution that aggregated them."""


class Stack(Model):
    """Convolutions with dropout on each one's input, and a norm and an activation between them."""

    def __init__(
        self, convs: Sequence[nn.Module], widths: Sequence[int], dropout: float, norm: str, activation: str
    ) -> None:
        """
        Args:
            convs: L modules ``conv(neighbourhood, h, activation) -> h'``; they apply the activation, one of
                `dense.FUSED`, in the same pass.
            widths: L-1 widths of the hidden results.
            dropout: probability of dropping an element.
            norm: one of `NORMS`.
            activation: one of `ACTIVATIONS`.
        """
        super().__init__()
        self.num_layers = len(convs)
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(NORMS[norm](width) for width in widths)
        self.reads_edges = any(map(reads_edges, convs))
        self.reads_loops = any(map(reads_loops, convs))
        self.keeps_edges = any(map(keeps_edges, convs))
        self.dropout = dropout
        self.activation = activation

    @property
    def spares_torch(self) -> bool:
        """True if the expensive work is done by the kernels and `stages.nn.dense`: torch's own operations then need
        only one thread."""
        return all(isinstance(norm, nn.Identity) for norm in self.norms)

    def convolve(self, i: int, neighbourhood: Neighbourhood, h: Tensor, activation: str) -> Tensor:
        """Convolution i, then the activation."""
        return self.convs[i](neighbourhood, h, activation)

    def forward(self, neighbourhoods: Sequence[Neighbourhood], h: Tensor, entered: Entered | None = None) -> Tensor:
        """See `Model.forward`; `entered` is the result of `enter` for h, if that was called before."""
        if entered is None:
            return super().forward(neighbourhoods, h)
        h = self._left(0, neighbourhoods[0], entered)
        for i, neighbourhood in enumerate(neighbourhoods[1:], start=1):
            h = self.layer(i, neighbourhood, h)
        return h

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        return self._left(i, neighbourhood, self.enter(neighbourhood, h, i))

    def enter(self, neighbourhood: Neighbourhood, h: Tensor, i: int = 0) -> Entered:
        """Computation before the first parameter of layer i: dropout, and the aggregate if the convolution begins with
        it."""
        h, conv = dropout(h, self.dropout, self.training, neighbourhood.names), self.convs[i]
        if isinstance(conv, AggregateFirst) and conv.aggregates_first(neighbourhood):
            return Entered(conv.aggregate(neighbourhood, h), conv)
        return Entered(h)

    def _left(self, i: int, neighbourhood: Neighbourhood, entered: Entered) -> Tensor:
        """Computation after `enter`."""
        by = entered.by
        if by is not None:
            return self._finished(i, lambda activation: by.combine(entered.rows, activation))
        return self._finished(i, lambda activation: self.convolve(i, neighbourhood, entered.rows, activation))

    def _finished(self, i: int, convolution: Callable[[str], Tensor]) -> Tensor:
        """Output of layer i, whose `convolution` takes the activation that it is to apply itself."""
        last = i == self.num_layers - 1
        plain = last or not isinstance(self.norms[i], nn.Identity)
        z = convolution("none" if plain else self.activation)
        return z if last or not plain else ACTIVATIONS[self.activation](self.norms[i](z))

    @property
    def has_parts(self) -> bool:
        """True if the model can be evaluated in parts: it and its convolutions are as they are defined here, and no
        hook watches their calls."""
        own = ("layer", "enter", "convolve", "_left", "_finished")
        changed = any(getattr(type(self), name) is not getattr(Stack, name) or name in vars(self) for name in own)
        return not changed and not has_hooks(self) and all(map(can_be_taken_apart, self.convs))

    def in_parts(self, counts: Sequence[LayerCounts], degree: Tensor) -> list[ConvParts]:
        """Convolutions in parts, if it `has_parts`.

        Args:
            counts: sizes of each layer.
            degree: [V], see `Destinations.degree`.
        """
        # pyrefly: ignore[unsafe-overlap]
        return [conv.parts(n, degree) for conv, n in zip(self.convs, counts) if isinstance(conv, InParts)]

    def combined(self, i: int, parts: ConvParts, aggregated: Tensor) -> Tensor:
        """Output of layer i from the aggregate of its convolution, [n, A] -> [n, width_out]."""
        return self._finished(i, lambda activation: parts.combine(aggregated, activation))


@dataclass(frozen=True)
class ModelConfig(ABC):
    """Options that the models share. `build` draws the parameters from torch's generator: seed it first."""

    name: ClassVar[str]
    reads_relations: ClassVar[bool] = False
    """True if the model is for graphs with several types of nodes or edges."""
    reads_edges: ClassVar[bool] = False
    """True if the model needs features of edges. A field `edge_width` has the number of their columns; in a model that
    does without them 0 stands for none, and -1 for as many as the dataset has."""

    hidden: int = 256
    """Width of every hidden layer."""
    layers: int = 3
    """L, the number of layers."""
    dropout: float = 0.5
    """Probability of dropping an element of a layer's input, the features' included."""
    norm: str = "none"
    """none, layer or batch; between layers."""
    activation: str = "relu"
    """relu, elu or none; between layers."""

    def __post_init__(self) -> None:
        if type(self.dropout) is int and self.dropout > 1:
            # PyG's models take their widths in the order input, hidden, layers, output.
            raise InputError(
                f"{self.name}: hidden, layers, dropout are {self.hidden}, {self.layers}, {self.dropout} in this "
                "order, and widths of input "
                f"and output come from the dataset; name what you give, as in hidden={self.layers}, "
                f"layers={self.dropout}"
            )
        for field in fields(self):
            # 0 and 0.0 mean the same, and ranks compare the text of a model.
            if isinstance(field.default, float) and type(value := getattr(self, field.name)) is int:
                object.__setattr__(self, field.name, float(value))
        for field in ("hidden", "layers"):
            self.positive(field)
        self.probability("dropout")
        for field, known in (("norm", tuple(NORMS)), ("activation", tuple(ACTIVATIONS))):
            value = getattr(self, field)
            if value not in known:
                raise InputError(f"{self.name}: {field} is '{value}'; {one_of(str(value), known)}")

    def positive(self, field: str) -> None:
        """Raise InputError unless the field is an integer above 0."""
        value = getattr(self, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{self.name}: {field} is {value!r}; expected a whole number, at least 1")

    def width_or_none(self, field: str) -> None:
        """Raise InputError unless the field is an integer, at least -1."""
        value = getattr(self, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < -1:
            raise InputError(
                f"{self.name}: {field} is {value!r}; expected a number of columns, 0 for none, or -1 for all"
            )

    def divided_by(self, field: str) -> None:
        """Raise InputError unless the field, a number of heads, is above 0 and divides `hidden`."""
        self.positive(field)
        if left := self.hidden % (heads := getattr(self, field)):
            raise InputError(
                f"{self.name}: hidden={self.hidden} is not a multiple of {field}={heads}; hidden is the width of all "
                f"heads together: take hidden={self.hidden + heads - left}"
            )

    def probability(self, field: str) -> None:
        """Raise InputError unless the field is in [0, 1)."""
        value = getattr(self, field)
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise InputError(f"{self.name}: {field} is {value!r}; expected a number, at least 0 and below 1")

    @abstractmethod
    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        """Convolution of layer i, a module ``conv(neighbourhood, h, activation="none") -> h'``."""

    def build(self, num_features: int, num_classes: int) -> Model:
        """Build the model, [., num_features] -> [., num_classes].

        Raises:
            InputError: a width below 1.
        """
        if num_features < 1 or num_classes < 1:
            raise InputError(
                f"{self.name}: {num_features} features and {num_classes} classes; expected at least 1 of each"
            )
        hidden = [self.hidden] * (self.layers - 1)
        widths = [num_features, *hidden, num_classes]
        convs = [self.conv(i, a, b) for i, (a, b) in enumerate(zip(widths, widths[1:]))]
        return Stack(convs, hidden, self.dropout, self.norm, self.activation)
