"""The compiled sampling kernels, under the names that every backend exports."""

from . import matrix
from .alias import alias_table
from .labor import labor
from .layerwise import layers
from .neighbor import neighbor
from .workspace import Workspace

__all__ = ["Workspace", "alias_table", "labor", "layers", "matrix", "neighbor"]
