"""Kernels that build and join partitions."""
