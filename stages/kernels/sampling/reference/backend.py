"""Literal matrix formulation of every sampler, under the names that every backend exports."""

from . import matrix
from .alias import alias_table
from .labor import labor
from .layerwise import fastgcn, ladies
from .neighbor import neighbor

__all__ = ["alias_table", "fastgcn", "labor", "ladies", "matrix", "neighbor"]
