"""Pairs of nodes of a link task."""
