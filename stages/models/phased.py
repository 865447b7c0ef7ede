"""Models whose layers are trained one after the other: RETEXO (Kolluri, Choudhary, Hooi, Saxena, arXiv 2302.13053).

A *phase* trains one convolution with a head of its own on the labels, on the fixed output rows of the finished phases.
The output of a phase, in evaluation mode and with its best parameters, is the input of the next. All phases together
are an ordinary `Model`: evaluated, saved and fine-tuned like any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...storage.fingerprint import digest_arrays, digest_record
from ...storage.optional import taken
from ..kernels.aggregation.lists import IntArray, on_device
from ..memory.quantize import Payload, rounded
from ..neighbourhood.base import Neighbourhood, destinations
from ..nn.dense import linear
from ..nn.dropout import dropout
from .base import ACTIVATIONS, NORMS, AggregateFirst, ModelConfig, Stack


@dataclass(frozen=True)
class Phases:
    """Division of a model into phases. The defaults are v3 of the paper; `V1` is its first version."""

    base: Literal["none", "mlp"] = "none"
    """``mlp``: the first phase trains two products on the features and passes no message, so no raw feature leaves its
    owner."""
    propagate: Literal["hidden", "logits"] = "hidden"
    """Input of the next phase: the row before the head, or the logits."""
    head: Literal["normed", "linear", "none"] = "normed"
    """Head after a phase's convolution: a layer norm and a product; a product; or none, if the convolution gives the
    logits itself. If hidden rows are propagated, the last convolution gives the logits in any case."""
    rounding: Payload = "full"
    """Rounding of rows before anyone reads them."""
    distill: float = 0.0
    """Share of the loss of every phase but the first that is the cross entropy with the previous phase's sharpened
    prediction for each node, labelled or not (distillation: Hinton, Vinyals, Dean, arXiv 1503.02531). 0: phases learn
    from labels only."""


V1 = Phases(base="mlp", propagate="logits", head="linear")


@dataclass(frozen=True, eq=False)
class FrozenInputs:
    """Input of a phase, which does not change while it is trained."""

    neighbourhood: Neighbourhood
    h: Tensor
    """[num_src, D]; None if the aggregate suffices."""
    aggregated: Tensor | None = None
    """[num_dst, A], if the convolution can aggregate first. Without dropout, which comes after it."""

    @property
    def num_dst(self) -> int:
        """Rows of the result."""
        return self.neighbourhood.num_dst

    @cached_property
    def names(self) -> IntArray | Tensor | None:
        """See `Neighbourhood.names`. With the rows on a GPU a copy there: every epoch drops elements of the same
        rows."""
        names = self.neighbourhood.names
        return names if names is None or self.h.device.type == "cpu" else on_device(names, self.h.device)


class PhasedModel(Stack):
    """L convolutions, each with its head, and optionally an MLP before them."""

    def __init__(self, config: ModelConfig, num_features: int, num_classes: int, phases: Phases) -> None:
        """
        Args:
            config: gives convolutions, hidden width, dropout, norm (layer norm if the head needs one and none is
                configured), activation.
            num_features: F.
            num_classes: C.
            phases: the division into phases.
        """
        hidden, layers = config.hidden, config.layers
        propagate = hidden if phases.propagate == "hidden" else num_classes
        base = phases.base == "mlp"
        widths = [num_features if not base else propagate, *[propagate] * (layers - 1)]
        direct = [phases.head == "none" or (phases.propagate == "hidden" and i == layers - 1) for i in range(layers)]
        # A convolution knows by its number if it is the last, whose heads are averaged.
        numbers = [layers - 1 if d else max(0, min(i, layers - 2)) for i, d in enumerate(direct)]
        convs = [config.conv(n, width, num_classes if d else hidden) for n, width, d in zip(numbers, widths, direct)]
        norm = "layer" if phases.head == "normed" and config.norm == "none" else config.norm
        super().__init__(convs, [], config.dropout, "none", config.activation)
        self.norms = nn.ModuleList(nn.Identity() if d else NORMS[norm](hidden) for d in direct)
        self.heads = nn.ModuleList(nn.Identity() if d else nn.Linear(hidden, num_classes) for d in direct)
        self.base = nn.ModuleList([nn.Linear(num_features, hidden), nn.Linear(hidden, num_classes)] if base else [])
        self.phases = phases
        self.phase_widths = [*([num_features] if base else []), *widths]
        """Width of a node's row that each phase reads."""

    def __len__(self) -> int:
        """Number of phases."""
        return len(self.phase_widths)

    def phase(self, number: int) -> "PhaseModule":
        """Module that phase `number` trains; it shares its parameters with this model."""
        return PhaseModule(self, number)

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `Model.layer`: the output of this convolution's phase, or the logits of the last."""
        phases = [self.phase(k) for k in range(len(self))][-self.num_layers :]
        if i == 0 and len(self) > self.num_layers:
            h = self.phase(0).of_rows(h)
        elif i == 0:
            h = self._rounded(h)
        still = FrozenInputs(neighbourhood, h)
        return phases[i].logits(still) if i == self.num_layers - 1 else self._rounded(phases[i].hand_on(still))

    def _rounded(self, h: Tensor) -> Tensor:
        # Rounding has no gradient; end-to-end training sends rows in full.
        return h if self.training else rounded(h, self.phases.rounding)


class PhaseModule(nn.Module):
    """One phase of a `PhasedModel`: `logits` is trained, `hand_on` gives the input of the next."""

    def __init__(self, model: PhasedModel, number: int) -> None:
        super().__init__()
        self._all = (model,)  # in a tuple, so that its parameters are not this module's
        self.number = number
        i = number - (len(model) - model.num_layers)
        self.last = number == len(model) - 1
        self.conv: nn.Module | None = model.convs[i] if i >= 0 else None
        self.norm = model.norms[i] if i >= 0 else nn.Identity()
        self.head = model.heads[i] if i >= 0 else model.base[1]
        self.inner: nn.Module | None = None if i >= 0 else model.base[0]
        self.train(model.training)

    @property
    def model(self) -> PhasedModel:
        """The whole model."""
        return self._all[0]

    @property
    def is_taught(self) -> bool:
        """True if it also learns from the previous phase, and so from nodes without labels."""
        return self.number > 0 and self.model.phases.distill > 0

    @property
    def passes_messages(self) -> bool:
        """True if it reads neighbours."""
        return self.conv is not None

    def frozen_inputs(self, neighbourhood: Neighbourhood, h: Tensor) -> FrozenInputs:
        """Part of the computation that is the same for the whole phase, from rows [num_src, D]."""
        if not isinstance(self.conv, AggregateFirst):
            return FrozenInputs(neighbourhood, h)
        with torch.no_grad():
            aggregated = self.conv.aggregate(neighbourhood, h)
        # The rows themselves are not needed any more.
        return FrozenInputs(neighbourhood, h[:0].clone(), aggregated)

    def forward(self, stills: Sequence[FrozenInputs], h: Tensor) -> Tensor:
        """Logits [num_dst, C] of the one element of `stills`."""
        return self.logits(stills[0])

    def logits(self, still: FrozenInputs) -> Tensor:
        """[num_dst, C]."""
        if isinstance(self.head, nn.Identity):
            return self._convolved(still, "none")
        # pyrefly: ignore[bad-argument-type]
        return linear(self._hidden(still), self.head.weight, self.head.bias)

    def hand_on(self, still: FrozenInputs) -> Tensor:
        """[num_dst, hidden] or [num_dst, C], not yet rounded."""
        if self.model.phases.propagate == "logits":
            return self.logits(still)
        return self._hidden(still)

    def logits_of_rows(self, handed_on: Tensor) -> Tensor:
        """Logits [n, C] of rows from `hand_on`."""
        if self.model.phases.propagate == "logits":
            return handed_on
        # pyrefly: ignore[bad-argument-type]
        return linear(handed_on, self.head.weight, self.head.bias)

    def of_rows(self, h: Tensor) -> Tensor:
        """`hand_on` of the phase without neighbours, rounded outside training: [n, F] -> [n, hidden or C]."""
        assert self.inner is not None
        out = self._from_inner(h, None)
        if self.model.phases.propagate == "logits":
            # pyrefly: ignore[bad-argument-type]
            out = linear(out, self.head.weight, self.head.bias)
        return self.model._rounded(out)

    def digest_before(self) -> str:
        """Digest of the parameters that made the rows which this phase reads."""
        earlier = [self.model.phase(k).state_dict() for k in range(self.number)]
        return digest_record(
            {str(k): digest_arrays(**{n: v.cpu().numpy() for n, v in state.items()}) for k, state in enumerate(earlier)}
        )

    def _hidden(self, still: FrozenInputs) -> Tensor:
        activation = self.model.activation
        if self.inner is not None:
            return self._from_inner(destinations(still.neighbourhood, still.h), still.names)
        if isinstance(self.norm, nn.Identity):
            return self._convolved(still, activation)
        return ACTIVATIONS[activation](self.norm(self._convolved(still, "none")))

    def _from_inner(self, h: Tensor, names: IntArray | Tensor | None) -> Tensor:
        h = dropout(h, self.model.dropout, self.training, taken(names, slice(len(h))))
        inner: Any = self.inner
        return linear(h, inner.weight, inner.bias, self.model.activation)

    def _convolved(self, still: FrozenInputs, activation: str) -> Tensor:
        assert self.conv is not None
        names, p = still.names, self.model.dropout
        if still.aggregated is not None:
            # After the aggregate: before it, one mask would be frozen for all rounds.
            kept = dropout(still.aggregated, p, self.training, taken(names, slice(still.neighbourhood.num_dst)))
            # pyrefly: ignore[not-callable]
            return self.conv.combine(kept, activation)
        return self.conv(still.neighbourhood, dropout(still.h, p, self.training, names), activation)
