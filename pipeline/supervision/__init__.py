"""Supervision of ranks on a cluster, in the driver: they start together, are watched, and restart when one is lost."""
