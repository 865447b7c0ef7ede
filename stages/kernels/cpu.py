"""The compiled sampling kernels, under the names that every backend exports."""

from .labor_cpu import labor
from .layerwise_cpu import fastgcn, ladies
from .sample_cpu import neighbor
from .workspace import Workspace

__all__ = ["Workspace", "fastgcn", "labor", "ladies", "neighbor"]
