"""The compiled sampling kernels, under the names that every backend exports."""

from .sample_cpu import neighbor
from .workspace import Workspace

__all__ = ["Workspace", "neighbor"]
