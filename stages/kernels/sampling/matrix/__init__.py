"""Sparse products in SciPy and draws in plain Python: what the compiled products of `MatrixSampler` are checked by."""
