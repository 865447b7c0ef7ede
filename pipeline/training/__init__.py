"""One rank: its training loop, validation, checkpoints and report."""
