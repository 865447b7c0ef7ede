"""Processes: the Dask cluster, the ranks and sampling tasks on it, and what happens when one of them dies."""
