"""Neighbourhoods: what a model's layer calls to aggregate over in-edges, within a block or over ranks."""
