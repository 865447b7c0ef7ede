"""Optimisation: learning-rate schedules, the optimiser step, and the average of parameters."""
