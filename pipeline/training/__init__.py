"""One rank: its training loop, evaluation and result."""
