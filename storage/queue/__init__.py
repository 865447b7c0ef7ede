"""Minibatch queues: in memory, in Zarr, and on object stores."""
