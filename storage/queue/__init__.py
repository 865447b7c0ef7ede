"""The minibatch queue: in memory, in Zarr, and on object stores."""
