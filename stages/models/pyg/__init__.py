"""Convolutions and whole models of PyTorch Geometric on blocks."""
