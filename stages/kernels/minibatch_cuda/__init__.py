"""Bulks of minibatches in the memory of a GPU."""
