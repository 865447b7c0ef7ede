"""PyTorch Geometric's convolutions, and its whole models, on blocks.

A convolution computes what PyG defines on the edges that the block holds: PyG has no way to say that a sampled row
stands for its whole neighbourhood, except through edge weights, which are passed where the convolution takes them and
sums or averages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ....storage.errors import InputError
from ....storage.optional import present_items
from ...neighbourhood.base import Neighbourhood, destinations
from ...neighbourhood.block import BlockNeighbourhood, ListNeighbourhood
from ...neighbourhood.checks import no_edge_features
from ...neighbourhood.halo import HaloNeighbourhood
from ...neighbourhood.pieces import pieces
from ..base import ACTIVATIONS, Stack
from .checks import check_on_blocks, is_network, refuse, try_out
from .edges import forward_parameters, reads_edge_attr
from .normalised import is_normalised, normalised, reads_loops
from .weights import reads_weights, weights_for

EDGE_BYTES = 256 << 20
"""Memory of the edges that a convolution gets at a time in evaluation."""
ROWS_PER_EDGE = 3
"""Rows that PyG keeps for an edge: the gathered row, the message, and one in between."""


class PyGModel(Stack):
    """A stack of PyG convolutions, with dropout before each and an activation between them; or an unchanged model of
    ``torch_geometric.nn.models``.

    On all edges, each computes what PyG computes on the whole graph, with its options and self loops. Millrace tries
    this before the first step, and refuses a convolution that computes something else. On a sampled block:

    - `GCNConv` gets the weights of its normalised adjacency over the whole graph's degrees, and the sampled sum
      estimates the whole one.
    - Others that sum and take `edge_weight` get the coefficients of `Neighbourhood.sum`. Those that average get weights
      for a mean over the sampler's corrections, as in `Neighbourhood.mean`. All others get the edges' own weights.
    - The rest take the sampled edges for all edges: attention covers these and the node itself, a sum has fewer terms,
      and `PNAConv` scales by their number. With PyG's own loaders they do the same.

    Convolutions made for edge features (`edge_dim` and the like) get those of the block's edges as `edge_attr`, and
    fill in self loops as PyG does. If a convolution takes `edge_attr` without an option for it, set its attribute
    `reads_edges` to True.

    ``bulk``, ``grappa`` and ``sar`` (mode ``halo``) train it on any number of ranks; ``retexo`` takes only Millrace's
    own models. PyG keeps numbers for each edge; their memory is bounded in evaluation, not in training.
    """

    reads_blocks = True
    network: Any
    """The whole model, if one was given."""

    def __init__(self, convs: Sequence[nn.Module] | nn.Module, dropout: float = 0.0, activation: str = "relu") -> None:
        """
        Args:
            convs: L convolutions, nearest the input first; or a model such as ``torch_geometric.nn.GAT(...)``, with its
                own dropout, activation, norms and jumping knowledge. Its parameters keep their names.
            dropout: probability of dropping an element of a layer's input.
            activation: one of `base.ACTIVATIONS`, between layers.

        Raises:
            InputError: no convolution, one that cannot work on blocks (the message names the change), or an unknown
                activation.
        """
        network: Any = convs if is_network(convs) else None
        if network is not None:
            if dropout or activation != "relu":
                name = type(network).__name__
                raise InputError(
                    f"PyGModel: dropout or activation is given beside a {name}, which has its own; set them there: "
                    f"{name}(..., dropout=..., act=...)"
                )
            convs = list(network.convs)
        convs = listed(convs)
        if not convs:
            raise InputError("PyGModel got no convolutions; give one for each layer")
        for conv in convs:
            refuse(conv)
        check_activation("PyGModel", dropout, activation)
        super().__init__(convs, [0] * (len(convs) - 1), dropout, "none", activation)
        self.reads_edges = any(map(reads_edge_attr, convs))
        self.reads_loops = any(map(reads_loops, convs))
        # Not a module of its own: its parts are, under the names that they have in PyG.
        object.__setattr__(self, "network", network)
        if network is not None:
            self.norms = network.norms
            for name in ("jk", "lin"):
                if hasattr(network, name):
                    setattr(self, name, getattr(network, name))
            # Registered, so that it follows the model's mode.
            self.between: Any = network.dropout

    @property
    def spares_torch(self) -> bool:
        return False

    @property
    def reader(self) -> str:
        """Name of the first convolution that reads features of edges; of none: of this class."""
        return next((type(conv).__name__ for conv in self.convs if reads_edge_attr(conv)), type(self).__name__)

    def fit(self, num_features: int, seed: int, edge_width: int = 0) -> int:
        """Give lazy parameters their shapes, and check that features of this width pass through all layers.

        Args:
            num_features: F.
            seed: seed of lazy parameters; torch's generator is left as it was.
            edge_width: D, columns of the edges' features; 0: they have none.

        Returns:
            Columns of the result.

        Raises:
            InputError: a width that does not fit, or a convolution that fails on a block.
        """
        if self.reads_edges and not edge_width:
            raise no_edge_features()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            width = try_out(self, self.convs, num_features, edge_width)
            with evaluating(self):
                check_on_blocks(self, num_features, edge_width)
            return width

    def convolve(self, i: int, neighbourhood: Neighbourhood, h: Tensor, activation: str) -> Tensor:
        """Convolution i on a block, then the activation.

        Raises:
            InputError: the neighbourhood is not a block.
        """
        return ACTIVATIONS[activation](self._bounded(self.convs[i], *in_block(neighbourhood, h)))

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        """See `Model.layer`. With jumping knowledge, rows carry the results of all layers before."""
        if self.network is None:
            return super().layer(i, neighbourhood, h)
        before = list(h.chunk(i, dim=1)) if i and hasattr(self, "jk") else []
        rows = self.convolve(i, neighbourhood, before[-1].contiguous() if before else h, "none")
        return self._between_layers(i, rows, [destinations(neighbourhood, x) for x in before])

    def columns(self, i: int, width: int) -> int:
        """Columns that convolution i reads of rows with so many: jumping knowledge carries others beside them."""
        return width // i if i and self.network is not None and hasattr(self, "jk") else width

    def _between_layers(self, i: int, rows: Tensor, before: list[Tensor]) -> Tensor:
        """Apply what a whole model does after convolution i, as in `BasicGNN.forward`."""
        net, last = self.network, i == self.num_layers - 1
        if not last or net.jk_mode is not None:
            if net.act is not None and net.act_first:
                rows = net.act(rows)
            rows = self.norms[i](rows)
            if net.act is not None and not net.act_first:
                rows = net.act(rows)
            rows = self.between(rows)
        if hasattr(net, "jk"):
            rows = net.jk([*before, rows]) if last else torch.cat([*before, rows], dim=1)
        return net.lin(rows) if last and hasattr(net, "lin") else rows

    def plain(self, x: Tensor, edges: Tensor, values: dict[str, Tensor]) -> Tensor:
        """The rows of a whole graph by PyG alone, which its explainers take apart: see `plain_layer`."""
        for i in range(self.num_layers):
            x = self.plain_layer(i, x, edges, values)
        return x

    def plain_layer(self, i: int, x: Tensor, edges: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Layer i by PyG alone, on a whole graph whose edges have such ``edge_attr`` and perhaps ``edge_weight``: what
        blocks are compared with. PyG raises what it likes where a convolution takes no whole graph."""
        conv = self.convs[i]
        before = list(x.chunk(i, dim=1)) if i and self.network is not None and hasattr(self, "jk") else []
        read = {"edge_attr": reads_edge_attr(conv), "edge_weight": reads_weights(conv)}
        rows = conv(before[-1] if before else x, edges, **{k: v for k, v in values.items() if read[k]})
        if self.network is not None:
            return self._between_layers(i, rows, before)
        return rows if i == self.num_layers - 1 else ACTIVATIONS[self.activation](rows)

    def _bounded(self, conv: nn.Module, neighbourhood: ListNeighbourhood, h: Tensor) -> Tensor:
        """Apply the convolution; without gradients in bounded memory, since PyG keeps rows for each edge."""
        if not torch.is_grad_enabled() and isinstance(neighbourhood, BlockNeighbourhood) and h.device.type == "cpu":
            widest = max([h.shape[1], *(p.shape[0] for p in conv.parameters() if not is_lazy(p) and p.ndim)])
            most = max(1, EDGE_BYTES // (ROWS_PER_EDGE * widest * h.itemsize))
            if neighbourhood.num_edges > most:
                return torch.cat([self._on_block(conv, piece, h[rows]) for piece, rows in pieces(neighbourhood, most)])
        return self._on_block(conv, neighbourhood, h)

    def _on_block(self, conv: nn.Module, neighbourhood: ListNeighbourhood, h: Tensor) -> Tensor:
        if is_normalised(conv):
            return normalised(conv, neighbourhood, h)
        takes, extra = forward_parameters(conv), {}
        if "size" in takes:
            extra["size"] = (neighbourhood.num_src, neighbourhood.num_dst)
        extra |= present_items({"edge_weight": weights_for(conv, neighbourhood, neighbourhood.own_weight, h)})
        if reads_edge_attr(conv):
            extra["edge_attr"] = neighbourhood.edge_features
        edges = torch.stack(neighbourhood.ends(h.device))
        if takes["x"].annotation is Tensor:
            # Made for square graphs: rows that are no destinations get no edges, and are left out.
            return destinations(neighbourhood, conv(h, edges, **{k: v for k, v in extra.items() if k != "size"}))
        return conv((h, destinations(neighbourhood, h)), edges, **extra)


def listed(given: Sequence[nn.Module] | nn.Module) -> list[nn.Module]:
    """Modules of layers, of which one may stand alone."""
    return [given] if isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList) else list(given)


def check_activation(name: str, dropout: float, activation: str) -> None:
    """Refuse options of what is between the layers of model `name`. Raises InputError."""
    if activation not in ACTIVATIONS:
        raise InputError(f"{name}: activation is {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    if not 0 <= dropout < 1:
        raise InputError(f"{name}: dropout is {dropout!r}; expected a number, at least 0 and below 1")


def in_block(neighbourhood: Neighbourhood, h: Tensor) -> tuple[ListNeighbourhood, Tensor]:
    """The layer as one block, and h of its sources. Raises InputError if rows of other ranks come one after the
    other."""
    if isinstance(neighbourhood, HaloNeighbourhood):
        return neighbourhood.as_block(h)
    if not isinstance(neighbourhood, ListNeighbourhood):
        raise InputError(
            f"PyG's modules need blocks, but got a {type(neighbourhood).__name__}; use one of Millrace's own models "
            "here"
        )
    return neighbourhood, h


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The modules of a model are in evaluation mode inside, without gradients, and get their modes back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
