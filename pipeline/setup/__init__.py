"""Decisions made before training starts, and the run folder that records them."""
