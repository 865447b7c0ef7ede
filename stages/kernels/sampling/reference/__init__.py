"""Sampling as sparse matrix products in SciPy: slow, literal, the oracle of the other backends."""
