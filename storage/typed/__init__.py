"""Graphs with several types of nodes and edges: what they are called, and features of several widths."""
