"""Estimates of time, memory and traffic before a run, from a short trial of it."""
