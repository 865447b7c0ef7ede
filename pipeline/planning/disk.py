"""Features that a run reads from disk: bytes and seconds, by reads that are tried on the disk they lie on."""

import time
from dataclasses import dataclass

import numpy as np

from ...stages.fetch.ahead.disk_rows import unit_bytes
from ...storage.features import FeatureStore, MappedFeatures
from ...storage.typed.features import stores_on_disk
from .candidate import Candidate
from .trial import TrialResult

PROBE_BYTES = 64 << 20
"""Bytes of rows of one read that is tried."""
PROBE_S = 1.0
"""Seconds after which no other one is tried."""


@dataclass(frozen=True)
class DiskForecast:
    """Reading of features from disk, by all ranks of this machine."""

    together: int
    """Minibatches of a rank whose rows are read together."""
    bytes_per_epoch: int
    """Bytes of the reads of an epoch: of the first one, if the system then has all rows in its cache of pages."""
    seconds_per_epoch: float
    """Seconds of these reads; training goes on beside them."""
    packed_seconds: float
    """Seconds in which a minibatch's rows are read in order."""


def disk_forecast(s: Candidate, seen: TrialResult, features: FeatureStore, left: int) -> DiskForecast | None:
    """Forecast of a candidate's reads, which its trial may have done without.

    Args:
        s: the run.
        seen: its trial.
        features: those of the run.
        left: bytes that a rank's other needs leave.

    Returns:
        None if the run reads no features from disk, or a rank none by the minibatch.
    """
    if s.job.features not in ("mapped", "zarr") or not s.is_sampled or s.is_cut or s.at.gpus or not any(seen.nodes):
        return None
    row, ranks, nodes = s.at.numbers.features * features.dtype.itemsize, s.at.per_host, s.at.numbers.nodes
    minibatches, most = s.minibatches / s.ranks, unit_bytes(s.system.options.get("prefetch_bytes", "auto"), left)
    # A row is new to the next of independent minibatches with the same chance each time.
    new = (seen.nodes[1] / seen.nodes[0] - 1) if len(seen.nodes) > 1 else 1 - seen.nodes[0] / nodes
    new = 1 - max(0.0, 1 - new) / max(1.0, s.at.growth)

    def rows(count: float) -> float:
        return min(nodes, seen.nodes[0] * (count if new == 1 else (1 - new**count) / (1 - new)))

    together, own = 1, seen.minibatch_bytes + 4 * seen.nodes[0]
    while together < minibatches and rows(together + 1) * row + (together + 1) * own <= most:
        together += 1
    # The first unit has one minibatch.
    times, rest = divmod(max(0.0, minibatches - 1), together)
    asked = ranks * (rows(min(1.0, minibatches)) + times * rows(together) + rows(rest))
    each, seconds = tried(features, rows(together) / nodes)
    if nodes * row <= left:
        asked = min(asked, nodes)
    return DiskForecast(together, round(asked * each), asked * seconds, seen.nodes[0] * tried(features, 1.0)[1])


def tried(features: FeatureStore, share: float) -> tuple[float, float]:
    """Bytes and seconds of reads for each row, where a share of all rows is read in order."""
    row, rng = max(1, features.num_features * features.dtype.itemsize), np.random.default_rng(0)
    share = min(1.0, max(share, 1e-9))
    span = max(1, min(features.num_rows, round(PROBE_BYTES / row / share)))
    files = [store for store in stores_on_disk(features) if isinstance(store, MappedFeatures)]
    buffer = np.empty((max(1, round(span * share)), features.num_features), features.dtype)
    count, read, seconds = 0, 0, 0.0
    # The first one loads kernels, and does not count.
    for number in range(1 + max(1, features.num_rows // span)):
        ids = rng.integers(features.num_rows - span + 1) + np.cumsum(rng.geometric(share, len(buffer))) - 1
        ids = ids[ids < features.num_rows]
        before, start = sum(file.reads.bytes for file in files), time.perf_counter()
        features.gather(ids, out=buffer[: len(ids)])
        if number:
            count, seconds = count + len(ids), seconds + time.perf_counter() - start
            read += sum(file.reads.bytes for file in files) - before
        if seconds > PROBE_S:
            break
    return read / max(1, count) or row, seconds / max(1, count)
