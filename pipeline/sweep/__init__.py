"""Sweeps: many runs that differ in settings and seeds."""
