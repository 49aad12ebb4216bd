"""Where a stream of dated images is divided into buckets: the option ``borders``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import NONE, ImageIndex, ImageTable, find_first_days
from clear_mlflow.data.times import DAY, HALF, MONTH, QUARTER, YEAR, Time, format_period, parse_time

_PRECISIONS: Final = {"year": YEAR, "half": HALF, "quarter": QUARTER, "month": MONTH, "day": DAY}
_MONTHS = {"year": 12, "half": 6, "quarter": 3, "month": 1}
_UNIT = "year|half|quarter|month"
_FORM = re.compile(
    rf"(?P<unit>{_UNIT})|equal:(?P<equal>[0-9]{{1,8}})"
    rf"|shift:(?P<shifted>{_UNIT}):(?P<fraction>-?(0|0?\.[0-9]{{1,9}}))"
    "|random:(?P<random>[0-9]{1,8}):(?P<seed>[0-9]{1,18})"
)


# Keys of buckets; index of the bucket of each time; key to date, or None if the keys are dates.
BucketOfTimes: TypeAlias = tuple[list[str], NDArray[np.int64], dict[str, str] | None]


def parse_borders(text: str) -> str:
    """Return *text* if it divides a stream. Raises ValueError otherwise.

    ``none`` divides nothing, and is returned as well.
    """
    match = _FORM.fullmatch(text)
    numbers = [int(n) for n in match.group("equal", "random") if n] if match else [0]
    if text != NONE and not all(1 <= number <= MAX_BUCKETS for number in numbers):
        raise ValueError(
            "expected none, year, half, quarter, month, equal:N, shift:UNIT:F with -1 < F < 1, for "
            f"example shift:quarter:0.25, or random:N:SEED, with N from 1 to {MAX_BUCKETS}"
        )
    return text


class CoarseTimeError(DataError):
    """A time is not exact enough for the borders."""


def divide_times(
    times: Sequence[Time],
    counts: NDArray[np.int64],
    borders: str,
    *,
    source_name: str,
    describe: Callable[[int], str],
) -> BucketOfTimes:
    """Return the bucket of each distinct time.

    Equal times are in one bucket.

    counts: number of images with each time. source_name: of the images, for messages. describe:
    returns a phrase for the index of a time, such as ``photos.csv row 3``. Raises DataError if a
    time lacks the unit, or the day if borders are shifted, or if many equal times leave a bucket
    without images; a missing unit or day is a CoarseTimeError.
    """
    match = _FORM.fullmatch(borders)
    if match is None:
        raise ValueError(borders)
    if unit := match["unit"] or match["shifted"]:
        # A moved border is within a month: times without a day would be in the wrong bucket.
        required = "day" if float(match["fraction"] or 0) else unit
        for index, time in enumerate(times):
            if time.precision < _PRECISIONS[required]:
                raise CoarseTimeError(
                    f"{describe(index)}, which lacks the {required}; expected times that are exact "
                    f"enough for borders={borders}"
                )
        if match["unit"]:
            names = [format_period(time, _PRECISIONS[unit]) for time in times]
            periods, indices = np.unique(names, return_inverse=True)
            return periods.tolist(), indices.astype(np.int64), None
        return _shift_periods(times, unit, float(match["fraction"]), source_name)
    starts = np.array([time.start for time in times], "datetime64[s]")
    distinct, order = np.unique(starts, return_inverse=True)
    totals = np.bincount(order, weights=counts, minlength=len(distinct)).astype(np.int64)
    # The index of the middle image of each time, among all images in the order of time.
    middles = np.cumsum(totals) - (totals + 1) // 2
    if match["equal"]:
        number = int(match["equal"])
        buckets = middles * number // totals.sum()
    else:
        number = int(match["random"])
        draws = np.random.default_rng(int(match["seed"]))
        # Uniform among all divisions in which each bucket has 1 / (2 number) of the images or more.
        widths = (1 / number + draws.dirichlet(np.ones(number))) / 2
        buckets = np.searchsorted(np.cumsum(widths)[:-1], middles / totals.sum(), side="right")
    if (num_buckets := len(np.unique(buckets))) < number:
        raise DataError(
            f"{source_name} has images for {format_count(num_buckets, 'bucket')}, because many "
            f"have the same time; expected {number}: pass fewer, or borders=year"
        )
    indices = buckets[order].astype(np.int64)
    keys = [str(i + 1) for i in range(number)]
    return keys, indices, _find_middle_dates(starts, counts, indices, keys)


def regroup_buckets(index: ImageIndex, borders: str) -> ImageIndex:
    """Return the index with new buckets, by its present buckets' dates.

    Raises DataError unless the keys of all buckets are dates, or if an own bucket is longer than
    the unit of *borders*.
    """
    times = [parse_time(key) for key in index.buckets]
    dated = [time for time in times if time is not None]
    if len(dated) < len(times):
        raise DataError(
            f"{index.layout} has a bucket {safe_repr(index.buckets[times.index(None)])}, and "
            f"borders is {borders}; expected buckets that are dates, such as 2004-05-17, or pass "
            "borders=none"
        )
    keys, indices, dates = divide_times(
        dated,
        np.bincount(index.images.training_images.buckets, minlength=len(index.buckets)),
        borders,
        source_name=index.source or path_text(index.root),
        describe=lambda i: f"{index.layout} has bucket {index.buckets[i]}",
    )
    return replace(
        index,
        buckets=tuple(keys),
        images=_regroup(index.images, indices),
        read_split=None,
        times=find_first_days(keys) if dates is None else dates,
    )


def _regroup(images: ImageTable, indices: NDArray[np.int64]) -> ImageTable:
    """Return images in new buckets, sorted by label, name or content."""
    buckets, labels = indices[images.buckets].tolist(), images.labels.tolist()
    names = [*zip(images.ids, images.files, strict=True)]
    order = sorted(range(len(images)), key=lambda row: (buckets[row], labels[row], names[row]))
    moved = replace(images, buckets=indices[images.buckets])
    return moved.take(np.array(order, dtype=np.int64))


def _shift_periods(
    times: Sequence[Time], unit: str, fraction: float, source_name: str
) -> BucketOfTimes:
    """Move inner borders by a fraction of the bucket they enter."""
    months = _MONTHS[unit]
    starts = np.array([time.start for time in times], "datetime64[us]")
    periods = np.unique(starts.astype("datetime64[M]").astype(np.int64) // months)  # since 1970
    first_days = (periods * months).astype("datetime64[M]").astype("datetime64[us]")
    ends = ((periods + 1) * months).astype("datetime64[M]").astype("datetime64[us]")
    distances = np.rint(fraction * (ends - first_days).astype(np.int64)).astype("timedelta64[us]")
    inner = (first_days + distances)[1:] if fraction >= 0 else (ends + distances)[:-1]
    indices = np.searchsorted(inner, starts, side="right")
    keys = np.array([first_days[0], *inner], "datetime64[D]").astype(str).tolist()
    if len(set(keys)) < len(keys):
        raise DataError(
            f"{source_name} has a first bucket of less than a day, because borders is "
            f"shift:{unit}:{fraction:g}; expected a day or more: pass a fraction nearer to 0"
        )
    present, indices = np.unique(indices, return_inverse=True)
    return [keys[i] for i in present], indices.astype(np.int64), None


def _find_middle_dates(
    starts: NDArray[np.datetime64],
    counts: NDArray[np.int64],
    indices: NDArray[np.int64],
    keys: Sequence[str],
) -> dict[str, str]:
    """Return the date of the middle image of each bucket."""
    dates = {}
    for bucket, key in enumerate(keys):
        order = np.argsort(starts[indices == bucket])
        totals = np.cumsum(counts[indices == bucket][order])
        middle = order[np.searchsorted(totals, totals[-1] // 2, side="right")]
        dates[key] = str(starts[indices == bucket][middle])[:10]
    return dates
