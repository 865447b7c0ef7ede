"""Generated datasets, each a pure function of its text: ``kind:key=value,...``."""
