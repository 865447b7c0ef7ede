"""Memory: buffers that steps reuse, rows that are not gathered, and meters."""
