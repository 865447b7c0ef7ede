"""Aggregation kernels in Triton."""
