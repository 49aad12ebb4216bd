"""Times as people write them into tables and folder names: from a year to a second, in UTC."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple

_TIME = re.compile(
    r"(?P<year>[1-9]\d{3})"
    r"(-H(?P<half>[12])|-Q(?P<quarter>[1-4])|-(?P<month>\d\d)(-(?P<day>\d\d)"
    r"([T ](?P<hour>\d\d):(?P<minute>\d\d)(:(?P<second>\d\d)([.]\d{1,9})?)?"
    r" ?(Z|(?P<sign>[+-])(?P<east>\d\d):?(?P<east_minutes>\d\d))?)?)?)?",
    re.ASCII,
)
# How exact a time is: 2004 says no half-year, and 2004-Q2 no month.
YEAR, HALF, QUARTER, MONTH, DAY = range(5)


class Time(NamedTuple):
    """A time, and how exactly it was written."""

    begin: datetime  # without a zone: UTC
    exact_to: int


def parse_time(text: str) -> Time | None:
    """A year, half-year, quarter, month, day or moment; None where a text is none of them.

    A moment, as in ISO 8601, is taken to be UTC where it has no zone; one with a zone is converted.

    >>> parse_time("2004-05").begin.isoformat(), parse_time("2004-Q2").begin.isoformat()
    ('2004-05-01T00:00:00', '2004-04-01T00:00:00')
    >>> parse_time("2004-12-31 23:30:00-01:00").begin.isoformat()
    '2005-01-01T00:30:00'
    >>> parse_time("yesterday") is None and parse_time("2004-13") is None
    True
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    part = {name: int(v) for name, v in match.groupdict().items() if v and name != "sign"}
    month = part.get("month", 6 * part.get("half", 1) - 5)
    if "quarter" in part:
        month = 3 * part["quarter"] - 2
    try:
        begin = datetime(
            part["year"],
            month,
            part.get("day", 1),
            part.get("hour", 0),
            part.get("minute", 0),
            part.get("second", 0),
        )
        if match["sign"]:
            east = timedelta(hours=part["east"], minutes=part["east_minutes"])
            begin = begin - east if match["sign"] == "+" else begin + east
    except (ValueError, OverflowError):
        return None
    exact = (("day", DAY), ("month", MONTH), ("quarter", QUARTER), ("half", HALF))
    return Time(begin, next((level for name, level in exact if name in part), YEAR))


def period(time: Time, level: int) -> str:
    """The year, half-year, quarter or month that a time is in, as its bucket is called.

    >>> [period(parse_time("2004-05-17"), level) for level in (YEAR, HALF, QUARTER, MONTH)]
    ['2004', '2004-H1', '2004-Q2', '2004-05']
    """
    year, month = f"{time.begin.year:04d}", time.begin.month
    half, quarter = f"{year}-H{(month + 5) // 6}", f"{year}-Q{(month + 2) // 3}"
    return (year, half, quarter, f"{year}-{month:02d}")[level]
