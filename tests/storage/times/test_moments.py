"""Moments as numbers against Python's own calendar, arrays in one unit, and what is neither number nor date."""

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.storage.errors import InputError
from millrace.storage.times.moments import (
    as_moments,
    as_times,
    in_one_unit,
    moment_of,
    moment_of_text,
    number_of,
    shown,
)

DAY = timedelta(days=1)
PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
MIDNIGHT = datetime(1970, 1, 1)


@given(st.dates(date(1900, 1, 1), date(2200, 1, 1)), st.sampled_from(sorted(PER_SECOND)))
def test_a_date_is_its_first_or_last_moment(day, unit):
    moment = moment_of_text(day.isoformat())
    seconds = (day - date(1970, 1, 1)).days * 86400
    assert number_of(moment, unit, "x") == seconds * PER_SECOND[unit]
    assert number_of(moment, unit, "x", last=True) == (seconds + 86400) * PER_SECOND[unit] - 1
    assert number_of(moment, "D", "x") == number_of(moment, "D", "x", last=True) == seconds // 86400
    months = 12 * (day.year - 1970) + day.month - 1
    assert number_of(moment, "M", "x") == number_of(moment, "M", "x", last=True) == months


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    st.none() | st.integers(-840, 840),
    st.sampled_from(["D", "h", *sorted(PER_SECOND)]),
)
def test_a_date_time_is_in_utc_unless_it_says_an_offset_and_is_rounded_down(at, minutes, unit):
    zone = None if minutes is None else timezone(timedelta(minutes=minutes))
    given_, length = at.replace(tzinfo=zone), {"D": 86400, "h": 3600}.get(unit)
    since = (at if zone is None else given_.astimezone(UTC).replace(tzinfo=None)) - MIDNIGHT
    micro = since // timedelta(microseconds=1)
    want = micro // (length * 10**6) if length else micro * PER_SECOND[unit] // 10**6
    for value in (given_, given_.isoformat(), given_.isoformat(" ")):
        assert number_of(moment_of(value, "x"), unit, "x", last=True) == want
    if zone is None:
        assert number_of(moment_of(np.datetime64(at, "us"), "x"), unit, "x") == want


def test_numbers_stay_numbers_and_a_z_is_utc():
    assert [moment_of_text(t) for t in ("2017", " -3 ", "1e3", "20171231", "inf")] == [2017, -3, 1000, 20171231, np.inf]
    assert [moment_of(v, "x") for v in (7, np.int32(7), 7.5, np.float32(0.5), "7")] == [7, 7, 7.5, 0.5, 7]
    assert number_of(moment_of_text("1970-01-01T00:01Z"), "s", "x") == 60
    assert number_of(moment_of(np.datetime64("1970-01-02"), "x"), "s", "x", last=True) == 2 * 86400 - 1
    assert shown(1, "D") == "1 (1970-01-02)" and shown(1, None) == "1"


@pytest.mark.parametrize(
    "text", ["monday", "", "2017-13-01", "2017-02-30", "nan", "1/2/2017", "0001-01-01T00:00+14:00"]
)
def test_what_is_neither_is_refused(text):
    with pytest.raises(ValueError):
        moment_of_text(text)
    with pytest.raises(
        InputError, match=r"x is .*; expected a number, or a date such as 2017-12-31 or 2017-12-31T18:00"
    ):
        moment_of(text, "x")


def test_other_values_are_refused():
    for value in (None, True, [1], float("nan"), np.datetime64("NaT")):
        with pytest.raises(InputError, match="expected a number, or a date"):
            moment_of(value, "x")
    with pytest.raises(InputError, match=r"x is '2017-01-01', a date, but .* were not read from dates; expected such"):
        number_of(moment_of_text("2017-01-01"), None, "x")
    with pytest.raises(InputError, match="x is '2500-01-01', but times in ns end before"):
        number_of(moment_of_text("2500-01-01"), "ns", "x")


def test_arrays_of_dates_count_the_finest_unit():
    days, seconds = np.array(["1970-01-03", "1969-12-31"], "M8[D]"), np.array([5, 7], "M8[s]")
    (a, none, b), unit = in_one_unit((days, None, seconds))
    assert unit == "s" and none is None
    assert as_times(a, "a", 2).tolist() == [2 * 86400, -86400] and as_times(b, "b", 2).tolist() == [5, 7]
    assert in_one_unit((days,))[1] == "D" and in_one_unit(([1, 2], None))[1] is None
    assert in_one_unit((np.array([1], "M8[7s]"),))[1] is None
    with pytest.raises(InputError, match="too far from 1970 for ns, the finest unit given"):
        in_one_unit((np.array(["2900-01-01"], "M8[D]"), np.array([1], "M8[ns]")))


def test_times_that_are_asked_for():
    asked = ["1970-01-02", datetime(1970, 1, 1, 1), date(1970, 1, 3), 9]
    assert as_moments(asked, "times", 4, "h").tolist() == [24, 1, 48, 9]
    assert as_moments(np.array(["1970-01-02"], "M8[D]"), "times", 1, "h").tolist() == [24]
    assert as_moments([0.5], "times", 1, "h").dtype == np.float64
    with pytest.raises(InputError, match="times is 'soon'"):
        as_moments(["soon"], "times", 1, "h")
    with pytest.raises(InputError, match=r"expected numbers or dates \[2\]"):
        as_moments(["1970-01-02"], "times", 2, "h")


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_times_that_are_given_are_finite(infinite):
    with pytest.raises(InputError, match=r"when holds 1 infinite time \(first: position 1\); expected a finite time"):
        as_times(np.array([0.0, infinite]), "when", 2)


def test_dates_and_numbers_do_not_mix():
    dates, numbers = np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"), np.array([1, 2])
    with pytest.raises(InputError, match="some times are dates and some are numbers; expected dates alone, or numbers"):
        in_one_unit([dates, None, numbers])
    with pytest.raises(InputError, match="times are dates, but the dataset's times are numbers"):
        as_moments(dates, "times", 2, None)
    assert as_moments(dates, "times", 2, "D").tolist() == [18262, 18263]
