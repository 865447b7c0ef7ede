"""A user's own code in a run: loss, optimiser, scheduler, metrics and callbacks."""
