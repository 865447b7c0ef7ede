"""Events of a run, and how they are timed, printed and recorded."""
