"""Commands of the command line, one module each. Heavy imports are inside the functions, so that `--help` is quick."""
