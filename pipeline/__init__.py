"""Pipeline: datasets, configuration, set-up, running, planning, inference, the command line and reports."""

if not __name__.startswith("millrace."):
    # The root of the checkout contains this folder, so Python would import it from there as a second copy of every
    # type.
    raise ImportError(f"'{__name__}' is a part of millrace: import millrace.pipeline")
