"""The page ``/millrace`` on Dask's dashboard: its contents, and the way they get there."""
