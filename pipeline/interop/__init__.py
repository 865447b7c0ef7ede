"""Objects of the user and of other libraries: PyG loaders, exports, models and scripts."""
