"""The store in which the ranks of a run find each other and read the driver's orders.

Torch's stores have no authentication: anyone who reaches one may list, read and change its contents. So ranks on the
driver's own machine meet in a file in a folder that only their user can open. Only ranks on a cluster that runs
already, which may be on other machines, meet at a port of the driver.
"""

import socket
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed import FileStore, TCPStore
from torch.distributed.distributed_c10d import Store

from ..config.schema import ClusterOptions
from ..machine.deadline import remove_at_end

TIMEOUT_S = 60.0


class Meeting:
    """The stores of a run, in the driver: one for each generation of ranks."""

    def __init__(self, cluster: ClusterOptions) -> None:
        self._folder = self._server = None
        if cluster.starts_here:
            self._folder = TemporaryDirectory(prefix="millrace-meeting-", ignore_cleanup_errors=True)
            remove_at_end(self._folder.name)
            return
        host = cluster.host
        self._host = host
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # The socket is bound here, since a store that binds by itself listens on every address of the machine.
        self._server = TCPStore(
            host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=TIMEOUT_S),
            master_listen_fd=listener.detach(),
        )

    def store(self, generation: int) -> Store:
        """The store of a generation. A file serves only one, since a rank that is killed while it writes may leave half
        an entry."""
        return connect(self.address(generation)) if self._server is None else self._server

    def address(self, generation: int) -> list[str | int]:
        """The address that ranks of a generation `connect` to: a file, or a host and a port."""
        if self._server is not None:
            return [self._host, self._server.port]
        assert self._folder is not None
        return [str(Path(self._folder.name) / str(generation))]

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.cleanup()


def connect(place: list[str | int]) -> Store:
    """A connection to the store at a `Meeting.place`."""
    timeout = timedelta(seconds=TIMEOUT_S)
    if len(place) == 1:
        store = FileStore(str(place[0]), -1)
        store.set_timeout(timeout)
        return store
    host, port = str(place[0]), int(place[1])
    return TCPStore(host, port, is_master=False, timeout=timeout)
