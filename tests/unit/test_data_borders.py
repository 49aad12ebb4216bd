"""Where a stream of dated images is divided, and a test set that does not depend on it."""

import hashlib
from collections import Counter
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from own_streams import load_source, write_years

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.borders import divide_times, parse_borders
from clear_mlflow.data.stream import parse_split
from clear_mlflow.data.times import parse_time

DAYS = st.dates(datetime(2001, 1, 1).date(), datetime(2006, 12, 31).date())


def divide(days, borders, counts=None):
    times = [parse_time(str(day)) for day in days]
    counts = np.ones(len(days), np.int64) if counts is None else np.array(counts)
    keys, indices, dates = divide_times(
        times, counts, borders, source_name="photos", describe=lambda i: f"row {i} has {days[i]}"
    )
    assert dates is None or set(dates) == set(keys)
    assert set(indices.tolist()) == set(range(len(keys)))
    return [keys[i] for i in indices]


@pytest.mark.parametrize(
    "text",
    [
        *("week", "equal", "equal:0", "equal:x", "equal:9999", "year:1", "", "shift:year"),
        *("shift:year:1", "shift:year:-1.0", "shift:week:.5", "random:3", "random:0:1"),
        *("random:3:-1", "shift:year:nan", "shift:year:1e-3"),
    ],
)
def test_invalid_borders_are_an_error_that_lists_the_forms(text):
    with pytest.raises(ValueError, match="expected none, year, half, quarter, month, equal:N"):
        parse_borders(text)


@pytest.mark.parametrize("zone", ["+24:00", "-99:00", "+00:60"])
def test_an_impossible_time_zone_is_not_a_time(zone):
    assert parse_time(f"2004-05-17T08:30:00{zone}") is None
    assert parse_time("2004-05-17T08:30:00+23:59").start == datetime(2004, 5, 16, 8, 31)


@pytest.mark.parametrize(
    "text", ["none", "month", "equal:7", "shift:half:-.5", "shift:year:0.25", "random:4:0"]
)
def test_valid_borders_are_returned(text):
    assert parse_borders(text) == text


def test_shifted_borders_move_by_a_fraction_of_the_bucket_that_they_enter():
    days = ["2004-01-01", "2004-12-31", "2005-01-01", "2005-04-02", "2005-04-03", "2006-12-31"]
    # A quarter of 2005 is 91.25 days.
    late = ["2004-01-01"] * 4 + ["2005-04-02"] + ["2006-04-02"]
    assert divide(days, "shift:year:0.25") == late
    early = divide(["2004-01-01", "2004-09-30", "2004-10-02", "2005-06-01"], "shift:year:-0.25")
    assert early == ["2004-01-01"] * 2 + ["2004-10-01"] * 2
    assert divide(days, "shift:year:0") == [f"{day[:4]}-01-01" for day in days]


@pytest.mark.parametrize(
    ("unit", "late"),
    [("year", "9999-04-02"), ("quarter", "9999-10-24"), ("month", "9999-12-08")],
)
def test_the_last_year_of_the_calendar_is_a_bucket_like_others(unit, late):
    """9999-12-31 is how many databases write that a date is not known."""
    keys = divide(["2004-01-01", "9999-12-31"], f"shift:{unit}:0.25")
    assert keys == ["2004-01-01", late]
    early = divide(["2004-01-01", "9999-12-31"], f"shift:{unit}:-0.25")
    assert early[1][:4] == "2004"


@pytest.mark.parametrize("fraction", [".25", "-.1", "0.5"])
@pytest.mark.parametrize(
    ("unit", "time"),
    [
        *(("year", time) for time in ("2005", "2005-H2", "2005-Q1", "2005-04")),
        *(("half", "2005-H1"), ("quarter", "2005-Q2"), ("quarter", "2005-05")),
        ("month", "2005-05"),
    ],
)
def test_a_shifted_border_needs_the_day_of_each_time(unit, time, fraction):
    """Else all of 2005 would be in the bucket before, because it begins before its border."""
    message = f"row 1 has {time}, which lacks the day; expected times .* borders=shift:{unit}:"
    with pytest.raises(DataError, match=message):
        divide(["2004-01-01", time, "2006-01-01"], f"shift:{unit}:{fraction}")
    assert len(set(divide(["2004-01-01", time], f"shift:{unit}:-.0"))) == 2


@pytest.mark.parametrize("first", ["2004-01-01T01:00", "2004-01-20"])
@pytest.mark.parametrize("fraction", ["-0.99", "-0.97", "-0.999999999"])
def test_a_first_bucket_of_less_than_a_day_is_an_error(first, fraction):
    """Else two buckets would have the name 2004-01-01."""
    with pytest.raises(DataError, match="photos has a first bucket of less than a day"):
        divide([first, "2004-01-30", "2004-02-10"], f"shift:month:{fraction}")


@given(
    st.lists(DAYS, min_size=2, max_size=60, unique=True),
    st.sampled_from(["year", "half", "quarter"]),
    st.floats(-0.98, 0.99),  # below, less than a day may remain to the first bucket
)
def test_shifted_borders_keep_the_order_of_time(days, unit, fraction):
    fraction = round(fraction, 3)
    keys = divide(sorted(days), f"shift:{unit}:{fraction:.3f}")
    assert keys == sorted(keys)
    unshifted = divide(sorted(days), unit)
    assert len(set(keys)) <= len(set(unshifted))
    if fraction == 0:
        assert [keys.index(key) for key in keys] == [unshifted.index(key) for key in unshifted]


@settings(max_examples=50)
@given(st.integers(1, 12), st.integers(0, 10**9))
def test_random_borders_leave_half_an_equal_share_to_each_bucket(number, seed):
    days = [datetime(2001, 1, 1).date() + timedelta(i) for i in range(1200)]
    keys = divide(days, f"random:{number}:{seed}")
    sizes = Counter(keys)
    assert len(sizes) == number
    assert min(sizes.values()) >= 1200 / (2 * number) - 1
    assert [int(key) for key in keys] == sorted(int(key) for key in keys)
    assert keys == divide(days, f"random:{number}:{seed}")


def test_random_borders_are_uniform():
    days = [datetime(2001, 1, 1).date() + timedelta(i) for i in range(1000)]
    shares = [divide(days, f"random:2:{seed}").count("1") / 1000 for seed in range(400)]
    assert min(shares) >= 0.249
    assert max(shares) <= 0.751
    counts, _ = np.histogram(shares, bins=4, range=(0.25, 0.75))
    assert counts.min() > 70


def test_counts_are_weights_and_equal_times_stay_together():
    days = ["2004-01-01", "2004-01-02", "2004-01-03", "2004-01-04"]
    assert divide(days, "equal:2", [1, 1, 1, 9]) == ["1", "1", "1", "2"]
    with pytest.raises(DataError, match="photos has images for 1 bucket, because many have"):
        divide(days[:1], "equal:2", [12])
    with pytest.raises(DataError, match="row 0 has 2004, which lacks the month; expected times"):
        divide(["2004"], "month")


def test_the_folders_of_a_stream_are_regrouped(tmp_path):
    """As a table of the same images would divide them, and with their own test sets."""
    quarters = ("2004-Q1", "2004-Q3", "2004-Q4", "2005-Q2")
    write_years(tmp_path / "photos", buckets=quarters, train=6, test=0)
    stream = load_source("folder", tmp_path / "photos", borders="year", split="0")
    assert stream.dataset.buckets == ("2004", "2005")
    assert [*map(str, stream.dataset.times)] == ["2004-01-01", "2005-01-01"]
    own = load_source("folder", tmp_path / "photos", split="0")
    assert Counter(stream.images.contents) == Counter(own.images.contents)
    labels = stream.images.take(stream.images.group_by_bucket(2)[0]).labels.tolist()
    assert labels == sorted(labels)
    message = "bucket 2004-Q1, which lacks the month"
    check_error(
        DataError, message, load_source, "folder", tmp_path / "photos", borders="month", split="0"
    )


def test_other_streams_have_the_buckets_of_their_authors(tmp_path):
    write_years(tmp_path / "photos", buckets=("1", "2"), train=6)
    check_error(
        DataError,
        "has a bucket '1', and borders is year; expected buckets that are dates",
        load_source,
        "folder",
        tmp_path / "photos",
        borders="year",
    )
    with pytest.raises(ConfigError, match="dataset digits has the buckets of its authors"):
        load_stream("digits", "auto", cache_dir=tmp_path, borders="year")


@pytest.mark.parametrize("borders", ["year", "half", "equal:6", "random:5:1", "shift:half:.25"])
def test_a_test_set_of_the_stream_does_not_depend_on_its_borders(tmp_path, borders):
    stream = load_stream("weather", "auto", cache_dir=tmp_path, borders=borders, split="stream:7")
    assert stream.dataset.division == "stream:7"
    images = stream.images
    for content, is_test in zip(images.contents, images.is_test, strict=True):
        digest = hashlib.sha256(f"7\0{content}".encode()).digest()
        assert is_test == (int.from_bytes(digest[:8], "big") / 2**64 < 0.3)
    assert len(images) == 1461
    assert 0.25 < images.is_test.mean() < 0.35


def test_a_validation_split_of_a_test_set_of_the_stream(tmp_path):
    options = {"cache_dir": tmp_path, "borders": "year"}
    stream = load_stream("weather", "auto", **options, split="stream:7")
    held_out = load_stream("weather", "auto", **options, split="validation:stream:7")
    train = {row for row, is_test in enumerate(stream.images.is_test) if not is_test}
    assert len(held_out.images) == len(train)
    assert held_out.dataset.division == "validation:stream:7"
    assert 0.08 < held_out.images.is_test.mean() < 0.12


def test_a_bucket_without_test_images_of_the_stream_is_an_error(tmp_path):
    check = {"cache_dir": tmp_path, "borders": "equal:700", "split": "stream:7"}
    check_error(
        DataError, "are in the test set of split=stream:7", load_stream, "weather", "auto", **check
    )


@pytest.mark.parametrize("text", ["stream:3", "validation:stream:3", "3", "validation:3"])
def test_a_split_is_parsed_to_itself(text):
    assert parse_split(text) == text


@pytest.mark.parametrize("text", ["stream", "stream:-1", "stream:auto", "stream:validation:3"])
def test_an_invalid_split_is_an_error(text):
    with pytest.raises(ValueError, match="stream:N"):
        parse_split(text)
