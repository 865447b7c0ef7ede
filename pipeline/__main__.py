"""The ``millrace`` command, also as ``python -m millrace.pipeline``."""

from .cluster.signals import quiet_start


def main() -> None:
    """Entry point. Signals are taken care of before anything else is imported, which takes a while."""
    quiet_start()
    from .cli import main as command

    command()


if __name__ == "__main__":
    main()
