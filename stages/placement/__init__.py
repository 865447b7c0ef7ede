"""Placements: what a rank sees of the graph."""
