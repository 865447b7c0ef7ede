"""Partitions: the owner of each node, its edges, and its rows in order."""
