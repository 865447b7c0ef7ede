"""The rows that a model reads as the rows that it gives, without messages: learnt features alone, or given ones."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ...storage.errors import InputError
from ..memory.lazy_rows import head
from ..neighbourhood.base import Neighbourhood
from .base import Model, ModelConfig, Stack
from .relational import TypedInput


class OwnRows(nn.Module):
    """The first D columns of ``h_v``: rows of a graph with types may be wider than a type's features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, neighbourhood: Neighbourhood, h: Tensor, activation: str = "none") -> Tensor:
        """[num_src, F] -> [num_dst, D]."""
        own = head(h, neighbourhood.num_dst)
        return own if own.shape[1] == self.width else own[:, : self.width]


@dataclass(frozen=True)
class Identity(ModelConfig):
    """A node's row is what the model reads of it, with dropout: with learnt features and the decoder `distmult` or
    `complex` it is the knowledge graph embedding of that name. One layer, which reads no neighbours: take
    ``fanout = 0``. For graphs with and without types."""

    name: ClassVar[str] = "identity"
    reads_relations: ClassVar[bool] = True
    layers: int = 1
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers != 1:
            raise InputError(
                f"identity: layers is {self.layers}, but the model reads no neighbours; give one fanout, such as 0"
            )

    def conv(self, i: int, width_in: int, width_out: int) -> nn.Module:
        if width_in != width_out:
            raise InputError(
                f"the model identity gives the {width_in} columns that it reads, but {width_out} are wanted; set "
                "link.width or learned.width so that they agree, with learned.beside = false if the dataset has "
                "features of its own"
            )
        return OwnRows(width_out)

    def build_typed(self, given: TypedInput, num_outputs: int) -> Model:
        """Build the model for a graph with types, [., F] -> [., num_outputs]. Raises what `conv` raises."""
        convs = [self.conv(0, width, num_outputs) for width in given.widths]
        return Stack(convs[:1], [], self.dropout, self.norm, self.activation)
