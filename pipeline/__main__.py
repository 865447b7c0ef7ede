"""The ``millrace`` command, also as ``python -m millrace.pipeline``."""

from .cluster.signals import quiet_end, quiet_start


def main() -> None:
    """Run one command. Signals are handled from before the first slow import until the process has ended."""
    quiet_start()
    from .cli import main as command

    try:
        command()
    finally:
        quiet_end()


if __name__ == "__main__":
    main()
