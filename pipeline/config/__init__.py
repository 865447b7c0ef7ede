"""The configuration: its keys, how it is read, and the training systems it names."""
