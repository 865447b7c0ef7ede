"""The literal matrix formulation of every sampler, under the names that every backend exports."""

from .labor_reference import labor
from .layerwise_reference import fastgcn, ladies
from .sample_reference import neighbor

__all__ = ["fastgcn", "labor", "ladies", "neighbor"]
