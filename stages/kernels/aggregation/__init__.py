"""Aggregation over neighbour lists: a backend for each device."""
