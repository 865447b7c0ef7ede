"""The page ``/millrace`` of Dask's dashboard: what it shows, and how it gets there."""
