"""Messages between stages, their formats on disk, and what all layers share: errors, registries, ledgers."""

if not __name__.startswith("millrace."):
    # The checkout's root holds this folder, so Python would import it from there, as a second copy of every type.
    raise ImportError(f"'{__name__}' is a part of millrace: import millrace.storage")
