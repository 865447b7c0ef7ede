"""Literal matrix formulation of every sampler, under the names that every backend exports."""

from millrace.stages.kernels.sampling.matrix import products as matrix
from millrace.tests.oracles.sampling.alias import alias_table
from millrace.tests.oracles.sampling.labor import labor
from millrace.tests.oracles.sampling.layerwise import layers
from millrace.tests.oracles.sampling.neighbor import neighbor

__all__ = ["alias_table", "labor", "layers", "matrix", "neighbor"]
