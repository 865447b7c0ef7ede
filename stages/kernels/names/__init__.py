"""Kernels that find the numbers of nodes that are called by text."""
