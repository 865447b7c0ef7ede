"""Ingest: tables of edges and nodes into a dataset's store, in bounded memory, by tasks that Dask may run."""
