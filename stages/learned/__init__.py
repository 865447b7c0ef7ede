"""Learnt features: a row of numbers for each node, which trains with the model and lies on the rank that owns it."""
