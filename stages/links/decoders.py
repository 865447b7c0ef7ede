"""Decoders: the score of a pair of nodes from their rows. One is a part of each model of a link task."""

import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ...storage.errors import InputError

DecoderName = Literal["dot", "distmult", "complex", "mlp"]
DECODERS: tuple[DecoderName, ...] = get_args(DecoderName)
FEW = 16
"""Rows for which matrix libraries have kernels of their own."""


class Decoder(nn.Module):
    """Scores pairs of rows. A larger score is a likelier link.

    Of pairs of several relations, parameters have a row for each, and a call says which: the place of each pair's
    relation among those that are predicted, or one place for all.
    """

    def forward(self, source: Tensor, destination: Tensor, relation: Tensor | int | None = None) -> Tensor:
        """[b, ..., D] and [b, ..., D] -> [b, ...], with `relation` int64 [b]."""
        raise NotImplementedError

    def against(self, sources: Tensor, destinations: Tensor, relation: Tensor | int | None = None) -> Tensor:
        """Scores of all pairs: [n, D] and [m, D] -> [n, m], a tensor that the caller may overwrite. In training
        `relation` may be that of each source, int64 [n]."""
        raise NotImplementedError

    def against_sources(self, destinations: Tensor, sources: Tensor, relation: Tensor | None) -> Tensor:
        """Scores of all pairs of m sources and n destinations, with the relation of each of these, int64 [n], or None:
        [n, D] and [m, D] -> [n, m]."""
        raise NotImplementedError


class Bilinear(Decoder):
    """A decoder that is a dot product with a transformed source; by itself it scores all relations alike."""

    def transformed(self, source: Tensor, relation: Tensor | int | None) -> Tensor:
        """[b, ..., D] -> [b, ..., D]."""
        return source

    def turned(self, destination: Tensor, relation: Tensor | int | None) -> Tensor:
        """[b, ..., D] -> [b, ..., D], rows whose products with sources are the scores."""
        return self.transformed(destination, relation)

    def forward(self, source: Tensor, destination: Tensor, relation: Tensor | int | None = None) -> Tensor:
        return (self.transformed(source, relation) * destination).sum(-1)

    def against(self, sources: Tensor, destinations: Tensor, relation: Tensor | int | None = None) -> Tensor:
        return _dot_products(self.transformed(sources, relation), destinations)

    def against_sources(self, destinations: Tensor, sources: Tensor, relation: Tensor | None) -> Tensor:
        return _dot_products(self.turned(destinations, relation), sources)


class DistMult(Bilinear):
    """A dot product with a learnt weight for each column, and relation (Yang, Yih, He, Gao, Deng, ICLR 2015)."""

    def __init__(self, width: int, relations: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(_initial(relations, width))

    def transformed(self, source: Tensor, relation: Tensor | int | None) -> Tensor:
        return source * _of(self.weight, relation, source)


class ComplEx(Bilinear):
    """The real part of <u, r, conj(v)> with a learnt r, of each relation (Trouillon et al., ICML 2016): scores of (u,
    v) and (v, u) differ. The first half of a row is real, the second imaginary."""

    def __init__(self, width: int, relations: int | None = None) -> None:
        super().__init__()
        if width % 2:
            raise InputError(f"link.width is {width}, but the decoder is 'complex'; expected an even number")
        self.real = nn.Parameter(_initial(relations, width // 2))
        self.imaginary = nn.Parameter(_initial(relations, width // 2, 0.0))

    def transformed(self, source: Tensor, relation: Tensor | int | None) -> Tensor:
        return self._times(source, relation, 1)

    def turned(self, destination: Tensor, relation: Tensor | int | None) -> Tensor:
        return self._times(destination, relation, -1)

    def _times(self, rows: Tensor, relation: Tensor | int | None, sign: int) -> Tensor:
        """Rows times r, or its conjugate if `sign` is -1."""
        a, b = rows.chunk(2, -1)
        real, imaginary = _of(self.real, relation, a), sign * _of(self.imaginary, relation, a)
        return torch.cat([a * real - b * imaginary, a * imaginary + b * real], -1)


class Perceptron(Decoder):
    """Two dense layers on the product of the two rows, column by column; of several relations also with a learnt row
    of the pair's relation."""

    def __init__(self, width: int, relations: int | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 1)
        if relations is not None:
            self.weight = nn.Parameter(torch.ones(relations, width))

    def _weighed(self, source: Tensor, relation: Tensor | int | None) -> Tensor:
        return source if relation is None else source * _of(self.weight, relation, source)

    def forward(self, source: Tensor, destination: Tensor, relation: Tensor | int | None = None) -> Tensor:
        return self.second(torch.relu(self.first(self._weighed(source, relation) * destination))).squeeze(-1)

    def against_sources(self, destinations: Tensor, sources: Tensor, relation: Tensor | None) -> Tensor:
        return self.against(destinations, sources, relation)

    def against(self, sources: Tensor, destinations: Tensor, relation: Tensor | int | None = None) -> Tensor:
        scores = self.second.bias.expand(len(sources), len(destinations)).clone()
        sources = self._weighed(sources, relation)
        # A hidden column at a time, each of which is a dot product with a transformed source.
        for weight, bias, factor in zip(self.first.weight, self.first.bias, self.second.weight[0]):
            scores.addcmul_(_dot_products(sources * weight, destinations).add_(bias).relu_(), factor)
        return scores


def _initial(relations: int | None, width: int, alone: float = 1.0) -> Tensor:
    """Weights to begin with: `alone`, or of several relations random ones, of mean square 1. Equal weights of all would
    score every node highest with itself, in each relation, and take training long to leave."""
    return torch.full((width,), alone) if relations is None else torch.randn(relations, width)


def _of(weight: Tensor, relation: Tensor | int | None, rows: Tensor) -> Tensor:
    """The weights of each pair's relation, to be multiplied with rows [b, ..., D]; [D] if they are the same for all."""
    if not isinstance(relation, Tensor):
        return weight if relation is None else weight[relation]
    return weight[relation].view(len(relation), *[1] * (rows.ndim - 2), -1)


@dataclass(frozen=True, eq=False)
class OfRelation:
    """A decoder for the pairs of one of several relations."""

    decoder: Any
    relation: int
    """Its place among those that are predicted."""

    def __call__(self, source: Tensor, destination: Tensor) -> Tensor:
        """[..., D] and [..., D] -> [...]."""
        if isinstance(self.decoder, Decoder):
            return self.decoder(source, destination, self.relation)
        relation = torch.full((len(source),), self.relation, dtype=torch.int64, device=source.device)
        return self.decoder(source, destination, relation)

    def against(self, sources: Tensor, destinations: Tensor) -> Tensor:
        return self.decoder.against(sources, destinations, self.relation)


def of_relation(decoder: Any, relation: int | None) -> Any:
    """The decoder for the pairs of one relation, by its place among those that are predicted; None: one is."""
    if relation is None:
        return decoder
    bound = OfRelation(decoder, relation)
    # A user's decoder need not have `against`.
    return bound if hasattr(decoder, "against") else bound.__call__


def _dot_products(sources: Tensor, destinations: Tensor) -> Tensor:
    """[n, D] and [m, D] -> [n, m]. Equal rows of many sources have equal products wherever they stand: products with
    few destinations, for which matrix libraries have kernels that round the last rows in another way, are taken with
    more of them."""
    if len(missing := destinations[:0].new_zeros(max(0, FEW - len(destinations)), destinations.shape[1])):
        return (sources @ torch.cat([destinations, missing]).T)[:, : len(destinations)]
    return sources @ destinations.T


def make_decoder(name: DecoderName, width: int, relations: int | None = None) -> Decoder:
    """A decoder by its name, for rows of D columns, and for pairs of as many `relations` if there are several. Raises
    InputError if the width does not fit."""
    if name == "dot":
        return Bilinear()
    return {"distmult": DistMult, "complex": ComplEx, "mlp": Perceptron}[name](width, relations)


def decoder_of(model: nn.Module) -> Any:
    """The decoder of a model of a link task."""
    return model.decoder


def decoder_beside(model: nn.Module, rows: Tensor) -> Any:
    """The decoder of a model on the device of some rows: a copy, if it lies elsewhere."""
    decoder = decoder_of(model)
    state = chain(decoder.parameters(), decoder.buffers()) if isinstance(decoder, nn.Module) else ()
    return decoder if all(t.device == rows.device for t in state) else copy.deepcopy(decoder).to(rows.device)
