"""From a rehearsal to a run: the forecast, and laws of memory."""

from dataclasses import dataclass

import numpy as np

from ...stages.fetch.visit import VisitFetch, row_bytes
from ...stages.models.lazy import Lazy
from ...stages.placement.boundary import WithBoundary
from ...stages.placement.chunks import Chunks
from ...stages.placement.sharded import Sharded
from ..setup.prepare import TORCH_DTYPES
from . import traffic as plan_bytes
from .candidate import Candidate
from .rows import minibatch_rows, waiting_bytes
from .time import load, network_seconds, seconds, share_of_work, tended
from .traffic import Moved
from .trial import TrialResult
from .trial_spec import TrialSpec

Parts = dict[str, int]
"""Bytes by what takes them."""


@dataclass(frozen=True)
class Forecast:
    """What a candidate would take. All bytes are payload."""

    label: str
    system: str
    fits: bool
    memory_bytes: int
    """Resident size of the rank that takes most."""
    memory: Parts
    """What that is made of."""
    arithmetic: str
    """The same in words."""
    bytes: dict[str, dict[str, int]]
    """Of the whole run over all ranks, by channel and kind."""
    bytes_per_epoch: dict[str, dict[str, int]]
    epochs: int
    """That the run trains."""
    steps_per_epoch: int
    seconds_per_epoch: float | None
    """Without evaluation; None where nothing was rehearsed, for it cannot fit."""
    network_seconds: float
    """Of these, what messages take on the link."""
    evaluate_seconds: float
    """Of one evaluation, besides."""
    estimate: bool
    """Whether a generated graph stood for the real one, or fewer ranks for all."""

    @classmethod
    def refused(cls, s: Candidate, least: Parts, room: int) -> "Forecast":
        """What cannot fit, by what it takes at least."""
        total = sum(least.values())
        return cls(
            s.label,
            s.system.name,
            False,
            total,
            least,
            "at least " + arithmetic(least, room),
            {},
            {},
            s.epochs,
            s.steps,
            None,
            0.0,
            0.0,
            True,
        )


def least_bytes(s: Candidate, base: int) -> Parts:
    """What a rank cannot do without, found without training."""
    if isinstance(s.system.partition, Chunks):
        share = 1.0 if s.ranks == 1 else min(1.0, (1 + (s.ranks > 1)) / s.ranks)
    else:
        share = 1.0 if s.cut is None else 1 / s.ranks
    features = s.feature_bytes * share
    if s.cut is None and s.exchanges:
        features = s.feature_bytes * s.replication / s.ranks
    elif s.cut is None and (s.job.features in ("mapped", "zarr") or s.ranks > 1):
        # Pages of a mapped file are the system's to take back.
        features = 0
    return {"process": base, "graph": round(s.graph_bytes * share), "features": round(features)}


def arithmetic(parts: Parts, room: int) -> str:
    """The sum in words."""
    terms = " + ".join(f"{name} {size / 2**20:,.0f}" for name, size in parts.items())
    return f"{terms} = {sum(parts.values()) / 2**20:,.0f} MiB, of {room / 2**20:,.0f} MiB for a rank"


def foresee(s: Candidate, seen: TrialResult, cast: TrialSpec, base: int, room: int) -> Forecast:
    """A run of the candidate, from its rehearsal."""
    moved, most_seen = moves(s, seen)
    memory = memory_of(s, seen, base, most_seen)
    network = network_seconds(s, moved)
    total = sum(memory.values())
    per_epoch: dict[str, dict[str, int]] = {"network": {}, "store": {}}
    for (channel, kind), count in sorted(moved.per_epoch.items()):
        per_epoch[channel][kind] = round(count)
    epochs = s.epochs
    return Forecast(
        label=s.label,
        system=s.system.name,
        fits=total <= room,
        memory_bytes=total,
        memory=memory,
        arithmetic=arithmetic(memory, room),
        bytes=moved.total(epochs),
        bytes_per_epoch=per_epoch,
        epochs=epochs,
        steps_per_epoch=s.steps,
        seconds_per_epoch=seconds(s, seen, cast) + network,
        network_seconds=network,
        evaluate_seconds=seen.evaluate_s * share_of_work(s) * load(s, s.per_host) / load(s, seen.ranks) * tended(s),
        estimate=s.stands_in or seen.ranks < s.ranks,
    )


def moves(s: Candidate, seen: TrialResult) -> tuple[Moved, int]:
    """Bytes of the run, and for isolated parts the most nodes that a rank sees."""
    moved, model, dtype, most = Moved(), s.model(), TORCH_DTYPES[s.job.dtype], 0
    phases = s.system.schedule.phases(s.job.epochs, model)
    plan_bytes.gradients(moved, s.system, model, s.steps, s.ranks, phases)
    policy = s.system.partition
    if isinstance(policy, Sharded):
        plan_bytes.features_read(moved, s.dataset.num_nodes, s.outline.num_features, s.itemsize)
    if s.cut is not None and s.ranks > 1:
        assert s.book is not None
        if isinstance(policy, WithBoundary):
            assert isinstance(model, Lazy)
            plan_bytes.handed_on(moved, s.cut, model, dtype)
        elif isinstance(policy, Sharded):
            assert isinstance(s.system.fetch, VisitFetch)
            traffic = row_bytes(s.system.fetch, model, s.outline.num_features, dtype)
            plan_bytes.visits(moved, s.cut, traffic, policy.prune)
        elif isinstance(policy, Chunks):
            row = s.outline.num_features * s.itemsize
            most = plan_bytes.chunks_read(moved, s.dataset.graph, s.book, s.cut, policy, s.job.seed, len(phases), row)
    minibatch_rows(s, seen, moved)
    if s.stands_in:
        _grow(moved, s.growth)
    return moved, most


def _grow(moved: Moved, growth: float) -> None:
    """All that is in proportion to the graph."""
    for table in (moved.once, moved.per_epoch, moved.busiest):
        for key in table:
            if key[1] not in ("gradients", "control"):
                table[key] *= growth


def memory_of(s: Candidate, seen: TrialResult, base: int, most_seen: int) -> Parts:
    """What the largest rank takes, from what the largest rehearsing one took."""
    worst = int(np.argmax(seen.peak_rss_bytes))
    held = seen.memory_bytes[worst] if seen.memory_bytes else {"graph": 0, "features": 0, "step": 0}
    step = held["step"]
    data = max(0, seen.peak_rss_bytes[worst] - base - step)
    grows = s.growth
    if s.cut is not None and s.rehearsed_cut is not None and s.ranks > 1:
        row = s.outline.num_features * s.itemsize
        # Isolated ranks see more than their parts, and their features are all that they see.
        grows *= (
            most_seen * row / held["features"]
            if most_seen and held["features"]
            else s.cut.most_held / s.rehearsed_cut.most_held
        )
    if not s.sampled:
        step *= grows
    parts = {"process": base, "data": round(data * grows), "step": round(step)}
    if s.exchanges:
        owned = s.replication * s.feature_bytes
        parts["data"] += round(owned / s.ranks - owned / s.growth / seen.ranks * s.growth)
    if s.sampled:
        parts |= waiting_bytes(s, seen)
    return parts
