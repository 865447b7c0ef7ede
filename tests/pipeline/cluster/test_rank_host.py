"""The task that holds a rank waits for its end, for the driver's order and for the driver's own end."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.pipeline.cluster import rank_host

SOON_S = 20.0


class Rank:
    """A process that ends when it is told to."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def wait(self) -> int:
        self.ended.wait()
        return 0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rank, threading.Thread, socket.socket]]:
    """A rank, the thread that waits for it, and the driver's end of its line."""
    monkeypatch.setattr(rank_host, "ORDER_S", 0.05)
    monkeypatch.setattr(rank_host, "GRACE_S", 0.05)
    rank, order = Rank(), threading.Event()
    waiting: Any = rank_host._wait
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=waiting, args=(rank, order, [*server.getsockname()]), daemon=True)
        thread.start()
        server.settimeout(SOON_S)
        line, _ = server.accept()
    line.settimeout(SOON_S)
    with line:
        yield rank, thread, line
    rank.ended.set()
    thread.join(SOON_S)


def test_a_rank_outlives_no_driver(held) -> None:
    rank, thread, line = held
    thread.join(5 * rank_host.ORDER_S)
    assert thread.is_alive(), "silence is no end"
    line.close()
    thread.join(SOON_S)
    assert not thread.is_alive() and not rank.ended.is_set()


def test_the_line_to_the_driver_ends_with_the_rank(held) -> None:
    """A worker of others holds many ranks, one after the other."""
    rank, thread, line = held
    rank.ended.set()
    assert line.recv(1) == b""
    thread.join(SOON_S)
    assert not thread.is_alive()
