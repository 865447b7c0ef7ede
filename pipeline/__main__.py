"""``python -m millrace.pipeline`` is the ``millrace`` command."""

from .cli import main

main()
