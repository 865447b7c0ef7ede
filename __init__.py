"""Millrace trains graph neural networks on graphs that have outgrown one process."""

__version__ = "0.1.0"
