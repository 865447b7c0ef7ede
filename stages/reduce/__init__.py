"""Reduce policies: combine the gradients, parameters and statistics of all ranks."""
