"""Samplers: how minibatches are drawn. Other packages add theirs as entry points ``millrace.samplers``."""

from ...storage.registry import Registry
from .fastgcn import FastGCNSampler
from .labor import LaborSampler
from .ladies import LadiesSampler
from .matrix.ppr import PprSampler
from .matrix.saint import SaintSampler
from .neighbor import NeighborSampler

SAMPLERS: Registry[type] = Registry(
    "sampler", (NeighborSampler, LadiesSampler, FastGCNSampler, LaborSampler, SaintSampler, PprSampler)
)
"""Frozen dataclasses that follow `base.Sampler`; the first is the default."""
