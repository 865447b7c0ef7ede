"""Decoders: the score of a pair of nodes from their rows. One is a part of each model of a link task."""

import copy
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
    """Scores pairs of rows. A larger score is a likelier link."""

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """[..., D] and [..., D] -> [...]."""
        raise NotImplementedError

    def against(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Scores of all pairs: [n, D] and [m, D] -> [n, m], a tensor that the caller may overwrite."""
        raise NotImplementedError


class Bilinear(Decoder):
    """A decoder that is a dot product with a transformed source."""

    def transformed(self, source: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return source

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """See `Decoder.forward`."""
        return (self.transformed(source) * destination).sum(-1)

    def against(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """See `Decoder.against`."""
        return _dot_products(self.transformed(sources), destinations)


class DistMult(Bilinear):
    """A dot product with a learnt weight for each column (Yang, Yih, He, Gao, Deng, ICLR 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def transformed(self, source: Tensor) -> Tensor:
        """See `Bilinear.transformed`."""
        return source * self.weight


class ComplEx(Bilinear):
    """The real part of <u, r, conj(v)> with a learnt r (Trouillon et al., ICML 2016): scores of (u, v) and (v, u)
    differ. The first half of a row is real, the second imaginary."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise InputError(f"link.width is {width}, but the decoder is 'complex'; expected an even number")
        self.real, self.imaginary = nn.Parameter(torch.ones(width // 2)), nn.Parameter(torch.zeros(width // 2))

    def transformed(self, source: Tensor) -> Tensor:
        """See `Bilinear.transformed`."""
        a, b = source.chunk(2, -1)
        return torch.cat([a * self.real - b * self.imaginary, a * self.imaginary + b * self.real], -1)


class Perceptron(Decoder):
    """Two dense layers on the product of the two rows, column by column."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """See `Decoder.forward`."""
        return self.second(torch.relu(self.first(source * destination))).squeeze(-1)

    def against(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """See `Decoder.against`."""
        scores = self.second.bias.expand(len(sources), len(destinations)).clone()
        # A hidden column at a time, each of which is a dot product with a transformed source.
        for weight, bias, factor in zip(self.first.weight, self.first.bias, self.second.weight[0]):
            scores.addcmul_(_dot_products(sources * weight, destinations).add_(bias).relu_(), factor)
        return scores


def _dot_products(sources: Tensor, destinations: Tensor) -> Tensor:
    """[n, D] and [m, D] -> [n, m]. Equal rows of many sources have equal products wherever they stand: products with
    few destinations, for which matrix libraries have kernels that round the last rows in another way, are taken with
    more of them."""
    if len(missing := destinations[:0].new_zeros(max(0, FEW - len(destinations)), destinations.shape[1])):
        return (sources @ torch.cat([destinations, missing]).T)[:, : len(destinations)]
    return sources @ destinations.T


def make_decoder(name: DecoderName, width: int) -> Decoder:
    """A decoder by its name, for rows of D columns. Raises InputError if the width does not fit."""
    return {"dot": lambda _: Bilinear(), "distmult": DistMult, "complex": ComplEx, "mlp": Perceptron}[name](width)


def decoder_of(model: nn.Module) -> Any:
    """The decoder of a model of a link task."""
    return model.decoder


def decoder_beside(model: nn.Module, rows: Tensor) -> Any:
    """The decoder of a model on the device of some rows: a copy, if it lies elsewhere."""
    decoder = decoder_of(model)
    state = chain(decoder.parameters(), decoder.buffers()) if isinstance(decoder, nn.Module) else ()
    return decoder if all(t.device == rows.device for t in state) else copy.deepcopy(decoder).to(rows.device)
