"""Parse times in tables and folder names: from a year to a second, in UTC."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import NamedTuple

_TIME = re.compile(
    r"(?P<year>[1-9]\d{3})"
    r"(-H(?P<half>[12])|-Q(?P<quarter>[1-4])|-(?P<month>\d\d)(-(?P<day>\d\d)"
    r"([T ](?P<hour>\d\d):(?P<minute>\d\d)(:(?P<second>\d\d)([.]\d{1,9})?)?"
    r" ?(Z|(?P<sign>[+-])(?P<east>[01]\d|2[0-3]):?(?P<east_minutes>[0-5]\d))?)?)?)?",
    re.ASCII,
)
# The precision of a time: 2004 lacks the half-year, and 2004-Q2 the month.
YEAR, HALF, QUARTER, MONTH, DAY = range(5)

# First day of each part of the time line that CLEAR-10 consists of, by bucket key. The last part
# ends on 2014-04-28. Source: clear_10_time.json of linzhiqiu/continual-learning, af36aa2.
CLEAR10_TIMES = {
    "0": date(2004, 1, 1),
    "1": date(2007, 4, 9),
    "2": date(2008, 3, 21),
    "3": date(2008, 12, 23),
    "4": date(2009, 9, 7),
    "5": date(2010, 6, 3),
    "6": date(2011, 2, 5),
    "7": date(2011, 9, 24),
    "8": date(2012, 6, 5),
    "9": date(2013, 2, 3),
    "10": date(2013, 9, 8),
}


class Time(NamedTuple):
    """A time and the precision with which it was written."""

    start: datetime  # without a zone: UTC
    precision: int


def parse_time(text: str) -> Time | None:
    """Parse a year, half-year, quarter, month, day or moment, or return None.

    A moment, in the format of ISO 8601, is converted to UTC; without a zone, it is UTC.

    >>> parse_time("2004-05").start.isoformat(), parse_time("2004-Q2").start.isoformat()
    ('2004-05-01T00:00:00', '2004-04-01T00:00:00')
    >>> parse_time("2004-12-31 23:30:00-01:00").start.isoformat()
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
        start = datetime(
            part["year"],
            month,
            part.get("day", 1),
            part.get("hour", 0),
            part.get("minute", 0),
            part.get("second", 0),
        )
        if match["sign"]:
            east = timedelta(hours=part["east"], minutes=part["east_minutes"])
            start = start - east if match["sign"] == "+" else start + east
    except (ValueError, OverflowError):
        return None
    levels = (("day", DAY), ("month", MONTH), ("quarter", QUARTER), ("half", HALF))
    return Time(start, next((level for name, level in levels if name in part), YEAR))


def format_period(time: Time, level: int) -> str:
    """Return the name of the period that contains a time.

    >>> [format_period(parse_time("2004-05-17"), level) for level in (YEAR, HALF, QUARTER, MONTH)]
    ['2004', '2004-H1', '2004-Q2', '2004-05']
    """
    year, month = f"{time.start.year:04d}", time.start.month
    half, quarter = f"{year}-H{(month + 5) // 6}", f"{year}-Q{(month + 2) // 3}"
    return (year, half, quarter, f"{year}-{month:02d}")[level]
