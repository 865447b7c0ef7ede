"""The compiled sampling kernels, under the names that every backend exports."""

from .labor import labor
from .layerwise import fastgcn, ladies
from .neighbor import neighbor
from .workspace import Workspace

__all__ = ["Workspace", "fastgcn", "labor", "ladies", "neighbor"]
