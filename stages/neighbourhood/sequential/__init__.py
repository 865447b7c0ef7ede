"""Aggregation over the neighbours of a layer on other ranks, visited one rank after the other (SAR)."""
