"""Literal matrix formulation of every sampler, under the names that every backend exports."""

from .labor import labor
from .layerwise import fastgcn, ladies
from .neighbor import neighbor

__all__ = ["fastgcn", "labor", "ladies", "neighbor"]
