"""Schedules: the order in which parts of the model are trained."""
