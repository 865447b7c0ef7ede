"""Stages of the dataflow, each of which turns one message into another, and what they run on: kernels, models,
communication, memory."""

if not __name__.startswith("millrace."):
    # The checkout's root holds this folder, so Python would import it from there, as a second copy of every type.
    raise ImportError(f"'{__name__}' is a part of millrace: import millrace.stages")
