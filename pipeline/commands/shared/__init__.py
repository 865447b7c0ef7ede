"""Shared parts of commands: flags, the table of a job, paths and printing."""
