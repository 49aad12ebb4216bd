"""What a function passes to build_index: plain types of Python, NumPy and torch, or an error."""

from datetime import date, datetime

import numpy as np
import pytest

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import Entry, build_index

VECTORS = np.arange(24, dtype=np.float32).reshape(12, 2)


def build(root, *changed, **arguments):
    """Build the index of 12 vectors in 2 buckets of 2 classes; *changed* replaces entries."""
    entries = [Entry(row, "ab"[row % 2], "12"[row // 6], time="2004") for row in range(12)]
    entries[: len(changed)] = changed
    return build_index(entries, root=root, **{"vectors": VECTORS, **arguments})


@pytest.mark.parametrize(
    ("row", "name", "bucket", "time", "message"),
    [
        (-1, "a", "1", "", "lists -1, which is outside of the vectors"),
        (12, "a", "1", "", "lists 12, which is outside of the vectors, or is listed twice; .* 11"),
        (5, "a", "1", "", "lists 5, which is outside of the vectors, or is listed twice"),
        ("0", "a", "1", "", "lists '0', which is outside of the vectors"),
        (0, 1, "1", "", "has a class 1; expected a printable text"),
        (0, "a", 1, "", "has a bucket 1; expected a printable text"),
        (0, "a", "1", datetime(2004, 5, 17), "has the time datetime.*; expected a year, a date"),
    ],
)
def test_an_entry_of_another_type_or_row_is_an_error(tmp_path, row, name, bucket, time, message):
    entries = [Entry(row, name, bucket, time=time)]
    entries += [Entry(row, "ab"[row % 2], "1", time="2004") for row in range(1, 5)]
    with pytest.raises(DataError, match=message):
        build(tmp_path, *entries)


def test_rows_of_numpy_and_a_root_as_text_are_accepted(tmp_path):
    rows = [Entry(np.int64(row), "ab"[row % 2], "1", time="2004") for row in range(6)]
    index, same = build(str(tmp_path), *rows), build(tmp_path)
    assert index.images.contents == same.images.contents
    assert index.images.files == same.images.files


def test_a_row_without_vectors_is_an_error(tmp_path):
    with pytest.raises(DataError, match="lists 0; expected a Path, or pass vectors=ARRAY"):
        build(tmp_path, vectors=None)


@pytest.mark.parametrize(
    "dates",
    [
        {"1": "2004-04-01", "2": "2004-07-01"},
        {"1": date(2004, 4, 1), "2": datetime(2004, 7, 1, 8)},
        {"1": "2004-Q2", "2": "2004-07"},
    ],
)
def test_dates_of_buckets_are_texts_or_dates(tmp_path, dates):
    assert build(tmp_path, times=dates).times == {"1": "2004-04-01", "2": "2004-07-01"}


@pytest.mark.parametrize("dates", [{"1": "2004-04-01"}, {"1": "spring"}, {"1": None}, {"1": 4}])
def test_a_bucket_without_a_date_is_an_error(tmp_path, dates):
    with pytest.raises(DataError, match=r"as time of bucket [12]; expected a date of each bucket"):
        build(tmp_path, times=dates)


@pytest.mark.parametrize("values", [VECTORS.tolist(), VECTORS.astype(">f8"), VECTORS.astype(int)])
def test_vectors_are_all_that_numpy_takes_as_numbers(tmp_path, values):
    assert build(tmp_path, vectors=values).images.contents == build(tmp_path).images.contents


MASKED = np.ma.array(VECTORS, mask=VECTORS[0, 0] == VECTORS)


@pytest.mark.parametrize("values", [VECTORS[:, 0], VECTORS * 1j, VECTORS.astype(str), 3, MASKED])
def test_vectors_that_are_no_real_numbers_are_an_error(tmp_path, values):
    with pytest.raises(DataError, match="expected real numbers of shape"):
        build(tmp_path, vectors=values)
