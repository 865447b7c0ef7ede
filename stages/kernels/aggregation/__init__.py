"""Aggregation over neighbour lists: one reference, and a backend for each device."""
