"""From the arrays of a reader to a checked dataset."""
