"""The table of what jobs cannot do, and the sentence that refuses one."""

from collections.abc import Mapping
from typing import NamedTuple

from ...stages.capabilities import Cannot, Need
from .capabilities import Asked, RefusedError, named, rows
from .job import Job
from .systems import SYSTEMS


def refuse(need: Need, needs: Mapping[Need, Asked], job: Job) -> None:
    """Refuse a job whose system, or the form of it that is chosen, does not meet a need.

    Args:
        need: one of `needs`; others are not looked at, except that no remedy is refused for them in turn.
        needs: all that are known of the job.
        job: a configuration.

    Raises:
        RefusedError: names the part, why, and what to change.
    """
    if need not in needs:
        return
    seen, key = needs[need]
    for row, remedy in rows(SYSTEMS.find(job.system), job):
        if row.need is need:
            able = able_systems(needs)
            # What makes no sense elsewhere either is left out.
            ways = [f"use {' or '.join(able)}"] * bool(able) * (row.applies or not key)
            ways += [f"leave {key} out"] * bool(key)
            raise RefusedError(f"{seen}, but {row.part} {row.because}; {remedy or ', or '.join(ways)}", row)


def able_systems(needs: Mapping[Need, Asked]) -> list[str]:
    """Names of the systems that meet all needs."""
    return [n for n, entry in SYSTEMS.available().items() if needs.keys().isdisjoint(r.need for r, _ in rows(entry))]


class Line(NamedTuple):
    """A line of the table."""

    part: str
    row: Cannot


def table() -> list[Line]:
    """All rows of systems and their forms."""
    lines = []
    for name, entry in SYSTEMS.available().items():
        lines += [Line(name, row) for row, _ in rows(entry)]
        lines += [Line(f"{name}, {form.name}", row) for form in entry.forms for row in named(entry, form.cannot)]
    return lines
