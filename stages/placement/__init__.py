"""Placements: each rank's view of the graph."""
