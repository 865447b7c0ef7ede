"""One module for each command. Heavy imports are inside the functions, so that `--help` is quick."""
