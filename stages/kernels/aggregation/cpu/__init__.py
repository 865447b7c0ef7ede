"""Aggregation kernels compiled with numba."""
