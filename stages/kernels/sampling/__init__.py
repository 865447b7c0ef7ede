"""Bulk sampling: literal matrix products as the reference, and a backend for each device."""
