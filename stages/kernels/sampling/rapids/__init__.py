"""Sampling by RAPIDS' pylibcugraph."""
