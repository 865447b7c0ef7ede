"""Time of a run's messages over another link, from their bytes and waits."""

from dataclasses import dataclass
from numbers import Real

from ...storage.errors import InputError, one_of


@dataclass(frozen=True)
class Link:
    """Network link of each rank."""

    bandwidth: float
    """Bytes of payload a second, each way. The headers of TCP and Ethernet take another twentieth of a link."""
    latency_s: float
    """Seconds from one rank to another, one way."""

    @property
    def is_sound(self) -> bool:
        """True if both are numbers in range."""
        numbers = self.bandwidth, self.latency_s
        return all(isinstance(n, Real) for n in numbers) and self.bandwidth > 0 and self.latency_s >= 0

    def seconds(self, num_bytes: float, waits: float) -> float:
        """Time of so many bytes. A message that is waited for takes a round trip: it is sent to a ready receiver."""
        return num_bytes / self.bandwidth + 2 * waits * self.latency_s


LINKS: dict[str, Link] = {
    "data centre": Link(25e9 / 8, 50e-6),
    "wan": Link(1e9 / 8, 30e-3),
    "edge": Link(20e6 / 8, 40e-3),
    "proximity": Link(1e6 / 8, 10e-3),
}
"""Typical links in round numbers: 25 Gb/s Ethernet; a gigabit between cities; a mobile uplink; Bluetooth."""


def link_named(name: str) -> Link:
    """The entry of `LINKS` with this name. Raises InputError if there is none."""
    if name not in LINKS:
        raise InputError(f"link is '{name}'; {one_of(name, LINKS)}")
    return LINKS[name]
