"""The literal matrix formulation of every sampler, under the names that every backend exports."""

from .sample_reference import neighbor

__all__ = ["neighbor"]
