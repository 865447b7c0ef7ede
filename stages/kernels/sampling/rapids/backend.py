"""Sampling by RAPIDS' pylibcugraph under the names that every backend exports: `neighbor` only, with the same
distributions but other bits."""

from .neighbor import check_available, neighbor

__all__ = ["neighbor", "check_available"]
