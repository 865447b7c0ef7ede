"""One module for each command of the command line; heavy imports are inside the functions, so that `--help` is quick."""
