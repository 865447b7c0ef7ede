"""Sampling kernels compiled with numba."""
