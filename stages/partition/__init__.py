"""Partitioners assign each node to a part; the partition stage writes the parts."""
