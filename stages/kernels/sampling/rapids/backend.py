"""Sampling by RAPIDS' pylibcugraph, under the name that every backend exports: `neighbor` alone, with its laws and other bits."""

from .neighbor import neighbor, refuse_what_is_missing

__all__ = ["neighbor", "refuse_what_is_missing"]
