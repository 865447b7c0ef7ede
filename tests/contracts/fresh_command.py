"""The ``millrace`` command of `forked_command` where other packages are installed, which it and its workers find."""

import importlib

from millrace.tests.contracts import fresh_python


def main() -> None:
    """Be the command, whose workers and servers of ranks are forked once Millrace is imported anew."""
    fresh_python.forget()
    again = importlib.import_module("millrace.tests.contracts.forked_cluster")
    command = importlib.import_module("millrace.pipeline.__main__")
    importlib.import_module("millrace.tests.contracts.preloaded")
    again.become_fork_server()
    with again.forked_cluster():
        command.main()
