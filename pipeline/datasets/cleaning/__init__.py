"""Cleaning: from a reader's arrays to a checked dataset."""
