"""How much labels change from bucket to bucket, and with the borders, next to loops over images."""

import datetime
import itertools
import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from commands import run_command
from hypothesis import given
from hypothesis import strategies as st

from clear_mlflow.cli import main
from clear_mlflow.core.errors import DataError
from clear_mlflow.data import read_stream_index
from clear_mlflow.data.check import check_dataset
from clear_mlflow.data.drift import LabelDrift, measure_distance, measure_label_drift

DAYS = [datetime.date(2004, 1, 1) + datetime.timedelta(3 * i) for i in range(360)]
LABELS = ["rain" if (i * i) % 7 < 3 + i // 120 else "sun" for i in range(360)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("drift") / "days.csv"
    lines = [f"{i},{label},{day}" for i, (label, day) in enumerate(zip(LABELS, DAYS, strict=True))]
    path.write_text("\n".join(["x,label,time", *lines]) + "\n")
    return path


def get_shares(labels):
    return {label: Fraction(n, len(labels)) for label, n in Counter(labels).items()}


def measure_variation(labels, others):
    shares, other_shares = get_shares(labels), get_shares(others)
    return sum(
        abs(shares.get(label, 0) - other_shares.get(label, 0)) for label in {*shares, *other_shares}
    ) / Fraction(2)


def divide(keys, labels=LABELS):
    return [
        [y for y, k in zip(labels, keys, strict=True) if k == key] for key in dict.fromkeys(keys)
    ]


def measure_distance_by_images(keys, other_keys, labels=LABELS):
    buckets, others = (
        dict(zip(dict.fromkeys(x), divide(x, labels), strict=True)) for x in (keys, other_keys)
    )
    pairs = zip(keys, other_keys, strict=True)
    return sum(measure_variation(buckets[a], others[b]) for a, b in pairs) / Fraction(len(keys))


def divide_years(shift):
    """Return the year of each day, whose first of January is moved by a share of a year."""

    def get_border(year):
        entered = year if shift >= 0 else year - 1
        width = datetime.datetime(entered + 1, 1, 1) - datetime.datetime(entered, 1, 1)
        return datetime.datetime(year, 1, 1) + shift * width

    times = [datetime.datetime(day.year, day.month, day.day) for day in DAYS]
    return [sum(time >= get_border(year) for year in (2005, 2006)) for time in times]


def check(table, *borders):
    arguments = {"may_repeat": True}
    return check_dataset(str(table), "vectors", arguments, borders=borders, cache_dir=table.parent)


def test_changes_are_those_of_loops_over_images(table):
    (drift,) = check(table, "year").drifts
    buckets = divide([day.year for day in DAYS])
    assert drift.buckets == ("2004", "2005", "2006")
    assert drift.from_previous == pytest.approx(
        [float(measure_variation(b, a)) for a, b in itertools.pairwise(buckets)]
    )
    assert drift.from_all_before == pytest.approx(
        [float(measure_variation(buckets[t], [*itertools.chain(*buckets[:t])])) for t in (1, 2)]
    )
    years = [day.year for day in DAYS]
    for share, value in drift.sensitivity.items():
        moved = [measure_distance_by_images(years, divide_years(s)) for s in (share, -share)]
        assert value == pytest.approx(float(sum(moved) / 2))
        assert value > 0
    assert [*drift.sensitivity] == [0.1, 0.25]


def test_another_error_of_a_shifted_border_is_raised(table):
    """Times of the year 9999, for example, and a file that cannot be read in between."""

    def read_index(borders):
        if borders.startswith("shift"):
            raise DataError("no such day")
        arguments = {"may_repeat": True}
        options = {"cache_dir": table.parent, "arguments": arguments, "borders": borders}
        return read_stream_index("vectors", str(table), **options)

    with pytest.raises(DataError, match="no such day"):
        measure_label_drift("year", read_index)


@pytest.mark.parametrize(("digits", "borders"), [(4, "year"), (7, "year"), (7, "month")])
def test_times_without_a_day_have_no_shifted_borders(tmp_path, digits, borders):
    path = tmp_path / "days.csv"
    rows = [
        f"{i},{x},{str(day)[:digits]}" for i, (x, day) in enumerate(zip(LABELS, DAYS, strict=True))
    ]
    path.write_text("\n".join(["x,label,time", *rows]) + "\n")
    (drift,) = check(path, borders).drifts
    assert drift.sensitivity == {}
    assert drift.as_json()["sensitivity"] == {}
    assert len(drift.buckets) == (3 if borders == "year" else 36)


def test_two_borders_are_compared(table):
    findings = check(table, "year", "equal:4", "month")
    (year, equal, _) = findings.drifts
    assert [*findings.distances] == [("year", "equal:4"), ("year", "month"), ("equal:4", "month")]
    keys = {
        "year": [day.year for day in DAYS],
        "equal:4": [i // 90 for i in range(360)],
        "month": [(day.year, day.month) for day in DAYS],
    }
    for (a, b), distance in findings.distances.items():
        assert distance == pytest.approx(float(measure_distance_by_images(keys[a], keys[b])))
    assert findings.buckets == year.buckets
    assert equal.sensitivity == {}


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=40)
)
def test_the_distance_of_two_divisions_is_that_of_a_loop(images):
    labels = [label for label, *_ in images]
    keys = np.cumsum([starts for _, starts, _ in images]).tolist()
    other_keys = np.cumsum([starts for *_, starts in images]).tolist()
    counts = [
        np.array([[bucket.count(c) for c in range(3)] for bucket in divide(x, labels)])
        for x in (keys, other_keys)
    ]
    distance = measure_distance(*counts)
    assert distance == pytest.approx(float(measure_distance_by_images(keys, other_keys, labels)))
    assert measure_distance(*counts[::-1]) == pytest.approx(distance)
    assert measure_distance(counts[0], counts[0]) == 0


def test_one_bucket_has_no_change():
    drift = LabelDrift("equal:1", ("1",), np.array([[3, 4]]), {})
    assert drift.as_json()["from_previous"] == [None]
    assert drift.from_all_before.tolist() == []


def test_the_command_prints_them(table):
    command = ["data", "check", str(table), "--dataset", "vectors"]
    command += ["--dataset-args", "may_repeat=yes"]
    done = CliRunner().invoke(main, [*command, "--borders", "year,equal:4", "--json"])
    content = json.loads(done.stdout)
    assert [drift["borders"] for drift in content["label_drift"]] == ["year", "equal:4"]
    printed = CliRunner().invoke(main, [*command, "--borders", "year,equal:4"]).stdout
    (first, second) = content["label_drift"]
    for value in (*first["from_previous"][1:], *second["from_all_before"][1:]):
        assert f"{value:.3f}" in printed
    assert f"{content['distances'][0]['distance']:.3f}" in printed
    assert "borders moved by 0.25 of a bucket" in printed


def test_invalid_borders_are_named(table):
    command = ["data", "check", str(table), "--dataset", "vectors", "--borders", "year,week"]
    assert "--borders is 'week'; expected none, year" in run_command(*command, code=2)
