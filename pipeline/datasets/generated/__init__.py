"""Embedded and generated datasets, each a pure function of its text: ``digits``, and ``kind:key=value,...``."""
