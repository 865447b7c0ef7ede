"""Training systems: one module each, with its options, its five policies and its checks."""
