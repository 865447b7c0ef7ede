"""Configuration: its keys, how it is read, and the registry of training systems."""
