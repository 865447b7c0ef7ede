"""The ledger: measured payload bytes, by channel and kind, and how often a message was waited for."""

import threading
from collections.abc import Mapping, Sequence

KINDS: dict[str, tuple[str, ...]] = {
    "network": ("graph", "features", "activations", "gradients", "control"),
    "store": ("graph", "features", "minibatches"),
    "evaluation": ("graph", "features", "activations", "gradients", "control"),
}
"""The kinds that each channel counts. ``network`` and ``store`` are training's; ``evaluation`` is what evaluation
moved."""


class Ledger:
    """Counters of bytes. Thread-safe: a producer thread and a rank may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = {(channel, kind): 0 for channel, kinds in KINDS.items() for kind in kinds}
        self._waits = dict(self._bytes)
        self._sent_to: dict[tuple[str, str], list[int]] = {}

    def add(self, channel: str, kind: str, num_bytes: int, waits: int = 0, to: Sequence[int] = ()) -> None:
        """Count `num_bytes` >= 0 more of `kind` over `channel`.

        Args:
            channel: a key of `KINDS`.
            kind: of that channel.
            num_bytes: that this process has sent.
            waits: messages that it had to wait for, one after the other, before it could go on: what latency is paid
                for.
            to: how many of the bytes went to each rank, where that is known.
        """
        key = (channel, kind)
        assert key in self._bytes, f"the ledger knows no {key}; it counts {KINDS}"
        assert num_bytes >= 0, f"{num_bytes} bytes of {key}: bytes only add up"
        with self._lock:
            self._bytes[key] += int(num_bytes)
            self._waits[key] += waits
            if any(to):
                before = self._sent_to.get(key, [0] * len(to))
                self._sent_to[key] = [a + b for a, b in zip(before, to, strict=True)]

    def get(self, channel: str, kind: str) -> int:
        """Bytes of `kind` over `channel` so far."""
        with self._lock:
            return self._bytes[channel, kind]

    def waits(self) -> dict[str, dict[str, int]]:
        """Messages that were waited for, by channel and kind, zeros included."""
        with self._lock:
            return {channel: {kind: self._waits[channel, kind] for kind in kinds} for channel, kinds in KINDS.items()}

    def as_record(self) -> dict[str, dict[str, int]]:
        """Bytes by channel and kind, zeros included, as ``result.json`` holds them."""
        with self._lock:
            return {channel: {kind: self._bytes[channel, kind] for kind in kinds} for channel, kinds in KINDS.items()}

    def sent_to(self) -> dict[str, dict[str, list[int]]]:
        """Bytes to each rank, by channel and kind; only what has been sent since this ledger was made, and to a rank
        that is known."""
        with self._lock:
            found = dict(self._sent_to)
        by_channel: dict[str, dict[str, list[int]]] = {}
        for (channel, kind), to in found.items():
            by_channel.setdefault(channel, {})[kind] = to
        return by_channel

    def merge(self, other: "Ledger | Mapping[str, Mapping[str, int]]") -> None:
        """Add what another ledger (or its record) has counted."""
        # Taken before this lock: two ledgers that merge each other must not wait for each other.
        record = other.as_record() if isinstance(other, Ledger) else other
        for channel, kinds in record.items():
            for kind, num_bytes in kinds.items():
                self.add(channel, kind, num_bytes)

    def counts(self) -> list[int]:
        """Every counter, bytes and then waits in the order of `KINDS`: what a checkpoint keeps and `restore` takes."""
        with self._lock:
            return [
                table[channel, kind]
                for table in (self._bytes, self._waits)
                for channel, kinds in KINDS.items()
                for kind in kinds
            ]

    def restore(self, counts: Sequence[int]) -> None:
        """Go back to earlier `counts`, in place of what was counted since."""
        keys = [(channel, kind) for channel, kinds in KINDS.items() for kind in kinds]
        # Checkpoints of earlier versions have no waits.
        waits = counts[len(keys) :] or [0] * len(keys)
        with self._lock:
            self._bytes = dict(zip(keys, counts[: len(keys)], strict=True))
            self._waits = dict(zip(keys, waits, strict=True))
