"""Parts of a stored dataset that stay on disk and are read piece by piece."""
