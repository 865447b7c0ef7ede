"""Sampling kernels in Triton and torch."""
