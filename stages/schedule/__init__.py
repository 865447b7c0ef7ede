"""Schedules: what is trained when."""
