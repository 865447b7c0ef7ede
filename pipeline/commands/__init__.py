"""Commands of the command line, a module for each. Heavy imports are inside the functions, so that `--help` is
quick."""
