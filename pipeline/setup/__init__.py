"""Everything decided before training starts, and the run folder that records it."""
