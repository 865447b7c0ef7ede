"""A dashboard that does not answer holds up no run."""

import threading
import time
from typing import Any

import pytest

from millrace.pipeline.dashboard import publisher
from millrace.pipeline.telemetry.events import Note


class Stuck:
    """A client whose scheduler does not answer until `answer` is set."""

    def __init__(self) -> None:
        self.answer, self.asked, self.sent = threading.Event(), threading.Event(), list[Any]()

    def log_event(self, topic: str, message: Any) -> None:
        self.asked.set()
        self.answer.wait()
        self.sent.append(message)


def test_closing_waits_for_the_last_messages_but_not_for_a_frozen_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Stuck()
    page = publisher._Publisher(client, "topic", "run", lambda event: None)
    page(Note("one"))
    assert client.asked.wait(60)
    monkeypatch.setattr(publisher, "END_S", 0.01)
    time.sleep(0.02)
    monkeypatch.setattr(page._thread, "join", None)  # a wait would raise
    page.end("done")
    assert not client.sent

    monkeypatch.undo()
    monkeypatch.setattr(publisher, "END_S", 60.0)
    client.answer.set()
    page._thread.join(60)
    page = publisher._Publisher(client, "topic", "run", lambda event: None)
    page(Note("two"))
    page.end("done")
    assert client.sent[-2]["said"]["text"] == "two" and client.sent[-1]["ended"] == "done"
