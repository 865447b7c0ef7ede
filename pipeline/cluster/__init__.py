"""Processes of a run on a cluster: the Dask cluster, its tasks, the process of a rank, and signals."""
