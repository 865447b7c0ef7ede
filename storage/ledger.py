"""Ledger of measured payload bytes, and of messages that were waited for, by channel and kind."""

import threading
from collections.abc import Mapping, Sequence

KINDS: dict[str, tuple[str, ...]] = {
    "network": ("graph", "features", "activations", "gradients", "control"),
    "store": ("graph", "features", "minibatches"),
    "evaluation": ("graph", "features", "activations", "gradients", "control"),
}
"""Kinds that each channel counts. ``network`` and ``store`` belong to training; ``evaluation`` counts the bytes that
evaluation moved."""


class Ledger:
    """Byte counters. Thread-safe: a producer thread and a rank may share one."""

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
            num_bytes: sent by this process.
            waits: messages that it had to wait for, one after the other, before it could go on: each costs one latency.
            to: bytes sent to each rank, if known.
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
        """Bytes to each rank, by channel and kind, since this ledger was made. Bytes whose receiver is unknown are left
        out."""
        with self._lock:
            found = dict(self._sent_to)
        by_channel: dict[str, dict[str, list[int]]] = {}
        for (channel, kind), to in found.items():
            by_channel.setdefault(channel, {})[kind] = to
        return by_channel

    def merge(self, other: "Ledger | Mapping[str, Mapping[str, int]]") -> None:
        """Add the counts of another ledger (or its record)."""
        # Read before taking this lock: two ledgers that merge each other must not deadlock.
        record = other.as_record() if isinstance(other, Ledger) else other
        for channel, kinds in record.items():
            for kind, num_bytes in kinds.items():
                self.add(channel, kind, num_bytes)

    def counts(self) -> list[int]:
        """All counters, bytes and then waits, in the order of `KINDS`. Checkpoints store them and `restore` takes
        them."""
        with self._lock:
            return [
                table[channel, kind]
                for table in (self._bytes, self._waits)
                for channel, kinds in KINDS.items()
                for kind in kinds
            ]

    def restore(self, counts: Sequence[int]) -> None:
        """Reset to earlier `counts`, discarding what was counted since."""
        keys = [(channel, kind) for channel, kinds in KINDS.items() for kind in kinds]
        # Checkpoints of earlier versions hold no waits.
        waits = counts[len(keys) :] or [0] * len(keys)
        with self._lock:
            self._bytes = dict(zip(keys, counts[: len(keys)], strict=True))
            self._waits = dict(zip(keys, waits, strict=True))
