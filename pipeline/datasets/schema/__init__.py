"""The schema between a source and its cleaning: which files form which table, and the role of every column."""
