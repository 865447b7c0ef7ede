"""Sampling by RAPIDS' pylibcugraph, under the name that every backend exports: `neighbor` alone, with its laws and
other bits."""

from .neighbor import check_available, neighbor

__all__ = ["neighbor", "check_available"]
