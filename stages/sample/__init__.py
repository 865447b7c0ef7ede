"""Samplers: draw minibatches in bulk."""

from .fastgcn import FastGCNSampler
from .labor import LaborSampler
from .ladies import LadiesSampler
from .neighbor import NeighborSampler

SAMPLERS: dict[str, type] = {kind.name: kind for kind in (NeighborSampler, LadiesSampler, FastGCNSampler, LaborSampler)}
