"""Samples drawn one minibatch at a time, for loaders of PyG's kind: trees apart, repeated seeds, budgets of types."""
