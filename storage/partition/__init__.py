"""Partitions: which part owns a node, its edges, and its rows in order."""
