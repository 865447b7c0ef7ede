"""The ``millrace`` command, also as ``python -m millrace.pipeline``."""

import atexit
import gc
import sys

from .cluster.signals import quiet_end, quiet_start


def main() -> None:
    """Run one command. Signals are handled from before the first slow import until the process has ended."""
    quiet_start()
    from .cli import main as command
    from .machine.deadline import leave_in_time

    try:
        command()
    finally:
        quiet_end()
        leave_in_time(getattr(sys.exc_info()[1], "code", 1))
        # The interpreter's last collections would look at all that was imported: a fifth of a short command's time.
        gc.freeze()
        # It gives its thread a fifth of a second to end, and prints a traceback on a busy machine. The process ends.
        if zarr := sys.modules.get("zarr.core.sync"):
            atexit.unregister(zarr.cleanup_resources)


if __name__ == "__main__":
    main()
