"""Partition policies and their placements: each rank's view of the graph."""
