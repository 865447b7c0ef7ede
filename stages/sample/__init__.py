"""Samplers: how minibatches are drawn. Other packages add theirs as entry points ``millrace.samplers``."""

from ...storage.registry import Registry
from .fastgcn import FastGCNSampler
from .labor import LaborSampler
from .ladies import LadiesSampler
from .neighbor import NeighborSampler
from .ppr import PprSampler
from .saint import SaintSampler
from .temporal import TemporalSampler

SAMPLERS: Registry[type] = Registry(
    "sampler",
    (NeighborSampler, LadiesSampler, FastGCNSampler, LaborSampler, SaintSampler, PprSampler, TemporalSampler),
)
"""Frozen dataclasses that follow `base.Sampler`; the first is the default."""
