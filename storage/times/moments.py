"""Times as numbers: of dates in a unit of NumPy since 1970, and the moments that users name by a number or a date."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array_kinds import AnyArray, ValueArray
from ..errors import InputError
from ..plural import are, counted

OF_NUMBERS = "but the dataset's times are numbers that were not read from dates; expected such numbers"
WORDS = "a number, or a date such as 2017-12-31 or 2017-12-31T18:00"


@dataclass(frozen=True)
class Moment:
    """A date, or a date and a time, that a user names."""

    text: str
    """In the user's words."""
    at: datetime
    """In UTC, without a time zone; of a date its first moment."""
    is_day: bool
    """True for a date without a time."""

    def number(self, unit: str | None, what: str, *, last: bool = False) -> int:
        """The moment in times that count `unit`; of a date its first one, or its last.

        Args:
            unit: see `Graph.time_unit`.
            what: says what gives the moment, for messages.
            last: the last moment of a date that is as late, in place of the first.

        Raises:
            InputError: the times are no dates, or cannot count so far.
        """
        if unit is None:
            raise InputError(
                f"{what} is '{self.text}', a date, but the dataset's times are numbers that were not read from dates; "
                "expected such a number"
            )
        kind, given = f"datetime64[{unit}]", np.datetime64(self.at, "us")
        found = given.astype(kind)
        back = found.astype("datetime64[us]")
        if abs((back - given) / np.timedelta64(1, "D")) > 400:
            raise InputError(f"{what} is '{self.text}', but times in {unit} end before; give an earlier date")
        if last and self.is_day and back == given:  # of a unit that does not divide the day, the one with it
            return max(_count(found), _count((given + np.timedelta64(1, "D")).astype(kind)) - 1)
        return _count(found)


def _count(date: np.datetime64) -> int:
    return int(date.astype(np.int64))


def moment_of_text(text: str) -> int | float | Moment:
    """The number, or else the ISO date or date-time, that a text names; without an offset it is in UTC. Raises
    ValueError for any other."""
    text = text.strip()
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isnan(number):
            raise ValueError(text)
        return number
    try:
        return Moment(text, datetime.combine(date.fromisoformat(text), datetime.min.time()), True)
    except ValueError:
        pass
    try:
        return _of_datetime(text, datetime.fromisoformat(text))
    except OverflowError as e:
        raise ValueError(text) from e


def moment_of(value: object, what: str) -> int | float | Moment:
    """The moment that a Python value names: a number, a text, a date or a datetime of Python, NumPy or pandas.

    Args:
        value: the value.
        what: says what gives it, for messages.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, np.datetime64):
        is_day = np.datetime_data(value.dtype)[0] in ("Y", "M", "W", "D")
        value = value.astype("datetime64[D]" if is_day else "datetime64[us]").item()
    try:
        if isinstance(value, str):
            return moment_of_text(value)
        if isinstance(value, datetime) and value == value:  # pandas has a NaT
            return _of_datetime(str(value), value)
    except (ValueError, OverflowError):
        pass
    if isinstance(value, date) and not isinstance(value, datetime):
        return Moment(str(value), datetime.combine(value, datetime.min.time()), True)
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if number and not math.isnan(value):
        return value if isinstance(value, int | float) else value.item()
    raise InputError(f"{what} is {value!r}; expected {WORDS}")


def _of_datetime(text: str, at: datetime) -> Moment:
    return Moment(text, at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None), False)


def number_of(moment: int | float | Moment, unit: str | None, what: str, *, last: bool = False) -> int | float:
    """A moment as a number: see `Moment.number`."""
    return moment.number(unit, what, last=last) if isinstance(moment, Moment) else moment


def is_unit(unit: Any) -> bool:
    """True for a unit of NumPy's dates, such as ``D``, ``s`` or ``ms``."""
    return isinstance(unit, str) and unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")


def check_unit(unit: Any) -> None:
    """Raise InputError unless `unit` is None, or a unit of NumPy's dates."""
    if unit is not None and not is_unit(unit):
        raise InputError(f"time_unit is {str(unit)[:80]!r}; expected a unit of NumPy's dates, such as 's'")


def in_one_unit(arrays: Iterable[Any]) -> tuple[list[Any], str | None]:
    """Arrays of times of which those of dates count the finest unit among them, and that unit; None if there are no
    dates, or they count several of a unit.

    Raises:
        InputError: a date is too far from 1970 for the finest unit, or other times are numbers.
    """
    given = [a if a is None else np.asarray(a) for a in arrays]
    dates = [a for a in given if a is not None and a.dtype.kind == "M"]
    if not dates:
        return given, None
    if any(a is not None and a.dtype.kind in "iuf" for a in given):
        raise InputError("some times are dates and some are numbers; expected dates alone, or numbers of one unit")
    finest = np.result_type(*(a.dtype for a in dates))
    unit, multiple = np.datetime_data(finest)
    found = [a if a is None or a.dtype.kind != "M" else a.astype(finest, copy=False) for a in given]
    for before, after in ((b, a) for b, a in zip(given, found) if b is not None and a is not None):
        if after is not before and (after.astype(before.dtype) != before)[~np.isnat(before)].any():
            raise InputError(f"a time is too far from 1970 for {unit}, the finest unit given; use coarser units")
    return found, unit if multiple == 1 and is_unit(unit) else None


def as_times(values: npt.ArrayLike, what: str, count: int, unit: str | None = None) -> AnyArray:
    """Times as int64, or float64 if they are floating-point numbers.

    Args:
        values: [count] whole numbers, numbers or NumPy dates; a column [count, 1] too.
        what: says what they are the times of, for messages.
        count: number of edges, nodes or pairs.
        unit: what dates count, rounded down; None: their own unit.

    Raises:
        InputError: another shape, neither numbers nor dates, or one is NaN or infinite.
    """
    given = np.asarray(values)
    given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    if given.dtype.kind not in "iufM" or given.shape != (count,):
        raise InputError(f"{what} is {given.dtype}{list(given.shape)}; expected numbers or dates [{count}]")
    check_known(what, *unknown_times(given))
    if given.dtype.kind == "M" and unit is not None:
        given = given.astype(f"datetime64[{unit}]")
    return given.astype(np.float64 if given.dtype.kind == "f" else np.int64)


def unknown_times(given: ValueArray) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many times are NaN, and how many infinite, each with the first one's position."""
    bad = np.isnat(given) if given.dtype.kind == "M" else np.isnan(given)
    infinite = np.isinf(given) if given.dtype.kind == "f" else np.zeros(len(given), bool)
    nan, inf = ((int(b.sum()), int(np.argmax(b)) if len(b) else 0) for b in (bad, infinite))
    return nan, inf


def check_known(what: str, nan: tuple[int, int], infinite: tuple[int, int]) -> None:
    """Raise InputError for times of which `unknown_times` counts some."""
    if count := nan[0]:
        raise InputError(
            f"{what} holds {counted(count, 'time')} that {are(count)} NaN (first: position {nan[1]}); expected a "
            "time for each"
        )
    if count := infinite[0]:
        raise InputError(
            f"{what} holds {counted(count, 'infinite time')} (first: position {infinite[1]}); expected a finite time "
            "for each"
        )


def as_moments(values: object, what: str, count: int, unit: str | None) -> ValueArray:
    """Times that a user asks for, as `as_times` gives them; here they may be texts and dates of Python too, as
    `moment_of` takes them. `unit` is that of the dataset: see `Graph.time_unit`."""
    given = np.asarray(values)
    if given.dtype.kind in "UO" and given.shape == (count,):
        given = np.array([number_of(moment_of(v, what), unit, what) for v in given.tolist()])
    if given.dtype.kind == "M" and unit is None:
        raise InputError(f"{what} are dates, {OF_NUMBERS}")
    return as_times(given, what, count, unit)


def check_times(name: str, a: AnyArray, count: int) -> None:
    """Raise InputError unless `a` is sound as an array of times."""
    if a.dtype not in (np.int64, np.float64) or a.shape != (count,):
        raise InputError(f"{name} is {a.dtype}{list(a.shape)}; expected int64 or float64 [{count}]")
    # What has no time among others that have one has been there always: -inf.
    if not (a < np.inf).all():
        raise InputError(f"{name} holds {'NaN' if np.isnan(a).any() else 'infinite times'}; expected a time for each")


def shown(time: Any, unit: str | None) -> str:
    """A time for messages, with its date if it has one."""
    return str(time) if unit is None else f"{time} ({np.int64(time).astype(f'datetime64[{unit}]')})"
