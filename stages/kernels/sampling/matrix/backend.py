"""Only the part that samplers written as matrices need; samplers with kernels of their own have none here."""

from . import products as matrix

__all__ = ["matrix"]
