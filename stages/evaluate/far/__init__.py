"""Rows of a layer that may lie on disk, and what is aggregated from there."""
