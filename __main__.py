"""``python -m millrace`` is the ``millrace`` command."""

from millrace.pipeline.__main__ import main

if __name__ == "__main__":
    main()
