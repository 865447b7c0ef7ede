"""Sampling by RAPIDS' pylibcugraph, under the name that every backend exports: `neighbor` alone, with its laws and other bits."""

from .sample_rapids import AcrossGpus, neighbor

__all__ = ["AcrossGpus", "neighbor"]
