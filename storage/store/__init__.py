"""Committed folders of checked arrays, the format of all arrays that Millrace keeps on disk.

A store is a folder with a Zarr v3 group ``arrays/`` and a ``manifest.json``. It is written aside and renamed into
place, so it is there whole or not at all. Every Zarr chunk carries a CRC-32C; the manifest carries the shape, dtype and
chunk count of every array (Zarr itself reads a missing chunk as zeros, without an error) and a checksum of its own.
"""
