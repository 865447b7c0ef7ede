"""Commands of the command line, by the themes of its help. Heavy imports are inside the functions, so that `--help` is
quick."""
