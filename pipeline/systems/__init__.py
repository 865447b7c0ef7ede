"""Training systems: one module for each, with its options, its record of five policies and its checks."""
