"""The compiled sampling kernels, under the names that every backend exports."""

from .sample_cpu import Workspace, neighbor

__all__ = ["Workspace", "neighbor"]
