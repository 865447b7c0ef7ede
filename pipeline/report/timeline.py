"""Timelines of ranks from their pulses: stages over time, and waits for slower ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..config.systems import SYSTEMS
from ..telemetry.run_log import COUNTED, SILENCE_S, RankLog
from .reading import RunRecord

Floats = npt.NDArray[np.float64]

ROWS = (*COUNTED, "other")
"""Stages of a rank's time, which add up to it."""
JUMP_S, LATE_S = 0.5, 2.0
"""Seconds by which a rank's clock, when training begins, must jump ahead to count as set to a checkpoint's."""
WAITING = ("reduce", "exchange")
"""Stages in which a fast rank waits for the others."""
WAIT_BIN_S = 0.5
MOST_WAIT_BINS = 2000

BACKGROUND, WITHIN, BESIDE = "background", "within", "beside"
"""Time at which ranks exchange rows: see `config.systems.Registered.exchanges`."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """A stretch of one rank's life without interruption; n + 1 moments."""

    at: Floats
    """[n + 1] seconds since 1970."""
    seconds: Floats
    """[n + 1, len(ROWS)] seconds spent so far in this stretch."""

    def spent(self, edges: Floats) -> Floats:
        """[len(edges) - 1, len(ROWS)] seconds between moments; zero outside the stretch."""
        return np.diff(np.stack([np.interp(edges, self.at, column) for column in self.seconds.T], axis=1), axis=0)


def stretches(log: RankLog, exchange: str, resumed_at: float | None) -> list[Stretch]:
    """Split a rank's log where its clock did not run on.

    Args:
        log: the rank's pulses.
        exchange: `BACKGROUND`, `WITHIN` or `BESIDE`.
        resumed_at: time of the note that the run was resumed, if any.
    """
    time, total, steps, trains = (np.array(log.beats[name]) for name in ("time", "total", "steps", "trains"))
    columns = {name: np.array(log.beats[name]) for name in COUNTED}
    if exchange == BACKGROUND:
        columns["exchange"] = np.zeros_like(time)
    counted = np.stack([columns[name] for name in COUNTED], axis=1)
    ahead = np.diff(total) - np.diff(time)
    new = (np.diff(total) < 0) | (np.diff(steps) < 0) | (ahead < -SILENCE_S)
    if resumed_at is not None:
        new |= (steps[:-1] == 0) & (ahead > np.where(np.diff(trains) > 0, JUMP_S, LATE_S))
    found = []
    for first, last in zip([0, *(np.flatnonzero(new) + 1)], [*(np.flatnonzero(new) + 1), len(time)]):
        # A pulse may arrive late, never early.
        at, piece = total[first:last] + (time[first:last] - total[first:last]).min(), counted[first:last]
        # Before training, a rank has resumed nothing, and its clock has run since its start.
        if not trains[first] or (first == 0 and (resumed_at is None or resumed_at > time[0])):
            at, piece = (
                np.concatenate([[at[0] - total[first]], at]),
                np.concatenate([np.zeros((1, len(COUNTED))), piece]),
            )
        if exchange == WITHIN:
            piece = _apart(piece)
        if len(at) > 1:
            found.append(Stretch(at, _so_far(np.diff(at), np.diff(piece, axis=0))))
    return found


def _apart(seconds: Floats) -> Floats:
    """Seconds [n, len(COUNTED)] so far in which `forward_backward` is without `exchange`.

    Waits are counted when they end, but belong to layers while they last: what is not left later was waited for.
    """
    layers, waits = COUNTED.index("forward_backward"), COUNTED.index("exchange")
    found, whole = seconds.copy(), seconds[:, layers]
    found[:, layers] = np.minimum.accumulate((whole - seconds[:, waits])[::-1])[::-1]
    found[:, waits] = whole - found[:, layers]
    return found


def _so_far(lengths: Floats, deltas: Floats) -> Floats:
    """[n + 1, len(ROWS)] from n intervals and the seconds counted in each; the rest of each is `other`.

    Seconds may be counted after they were spent: what an interval is too short for moves to the one before.
    """
    deltas = np.maximum(deltas, 0.0)
    over = np.zeros(deltas.shape[1])
    for i in range(len(lengths) - 1, -1, -1):
        deltas[i] += over
        fits = min(1.0, lengths[i] / max(deltas[i].sum(), 1e-9))
        over = deltas[i] * (1 - fits)
        deltas[i] *= fits
    other = lengths - deltas.sum(axis=1)
    return np.concatenate([np.zeros((1, len(ROWS))), np.cumsum(np.column_stack([deltas, other]), axis=0)])


@dataclass(frozen=True, eq=False)
class Timeline:
    """Timelines of all ranks, in seconds from `begin`, without times of no activity."""

    begin: float
    """Seconds since 1970."""
    silences: list[tuple[float, float]]
    """Begin and end of times without activity, since 1970."""
    length: float
    """Seconds."""
    ranks: dict[int, list[Stretch]]

    def positions(self, at: float | Sequence[float] | Floats) -> Floats:
        """Positions on the timeline of moments in seconds since 1970."""
        moments = np.asarray(at, dtype=float)
        silent = sum((np.clip(moments, a, b) - a for a, b in self.silences), np.zeros_like(moments))
        return moments - self.begin - silent

    def moments(self, positions: Sequence[float] | Floats) -> Floats:
        """The inverse of `positions`: seconds since 1970."""
        # Piecewise linear and never decreasing.
        end = self.begin + self.length + sum(b - a for a, b in self.silences)
        knots = sorted({self.begin, end, *(moment for silence in self.silences for moment in silence)})
        return np.asarray(np.interp(positions, self.positions(knots), knots))

    @property
    def cuts(self) -> list[tuple[float, float]]:
        """Position and length of each silence."""
        return [(float(self.positions(a)), b - a) for a, b in self.silences]

    def shares(self, rank: int, bins: int, first: float = 0.0) -> tuple[Floats, Floats]:
        """Shares of a rank's time by stage, in equal bins from second `first` on.

        Returns: [bins + 1] edges, and [bins, len(ROWS)] shares of the time between them; they add up to less than 1
        where the rank did not run.
        """
        edges = np.linspace(first, self.length, bins + 1)
        return edges, self._spent(rank, edges) / max((self.length - first) / bins, 1e-9)

    def _spent(self, rank: int, edges: Sequence[float] | Floats) -> Floats:
        """[len(edges) - 1, len(ROWS)] seconds of a rank between places on the timeline."""
        moments = self.moments(edges)
        return sum((s.spent(moments) for s in self.ranks[rank]), np.zeros((len(edges) - 1, len(ROWS))))

    def seconds(self, rank: int, first: float = 0.0, last: float | None = None) -> dict[str, float]:
        """Seconds of a rank by stage, according to its pulses, from second `first` to second `last` or the end."""
        return dict(zip(ROWS, self._spent(rank, [first, self.length if last is None else last])[0].tolist()))

    def over_ranks(self, first: float = 0.0, last: float | None = None) -> dict[str, float]:
        """Seconds of all ranks together: see `seconds`."""
        each = [self.seconds(rank, first, last) for rank in self.ranks]
        return {name: sum(s[name] for s in each) for name in ROWS}

    def waits(self) -> Floats:
        """[P, P] seconds that rank r waited in `WAITING` for rank s, the slowest rank (the one that waits least) of the
        moment.

        Waits are compared in bins of about half a second: faster alternation between slow ranks is not visible.
        """
        numbers = sorted(self.ranks)
        table = np.zeros((len(numbers), len(numbers)))
        bins = int(np.clip(self.length / WAIT_BIN_S, 1, MOST_WAIT_BINS))
        shares = np.stack([self.shares(rank, bins)[1] for rank in numbers])
        waited = shares[:, :, [ROWS.index(name) for name in WAITING]].sum(axis=2) * self.length / bins
        everyone = (shares.sum(axis=2) > 0.9).all(axis=0)
        for moment in np.flatnonzero(everyone):
            slow = int(waited[:, moment].argmin())
            table[:, slow] += waited[:, moment] - waited[slow, moment]
        return table


def timeline(run: RunRecord) -> Timeline | None:
    """The timeline of a run; None if it has no events."""
    log = run.log
    if log.first is None or log.last is None:
        return None
    entry = SYSTEMS.available().get(str(run.config.get("system")))
    exchange = entry.exchanges if entry else BACKGROUND
    resumed_at = next((at for at, text in log.notes if text.startswith("resumed at ")), None)
    ranks = {rank: stretches(log, exchange, resumed_at) for rank, log in sorted(log.ranks.items())}
    ranks = {rank: found for rank, found in ranks.items() if found}
    begins = [float(s.at[0]) for found in ranks.values() for s in found]
    begin = min([log.first, *begins])
    # A rank's clock starts before its first event arrives.
    silences = [(a, min([b, *(at for at in begins if a < at < b)])) for a, b in log.silences]
    found = Timeline(begin, silences, 0.0, ranks)
    return Timeline(begin, silences, max(float(found.positions(log.last)), 1e-3), ranks)
