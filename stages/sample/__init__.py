"""Samplers: how minibatches are drawn."""

from .neighbor import NeighborSampler

SAMPLERS: dict[str, type] = {NeighborSampler.name: NeighborSampler}
