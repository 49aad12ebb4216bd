"""The time of each image, from its source to a bucket's order."""

from pathlib import Path

import numpy as np
import pytest
from one_line_errors import check_error

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import Entry, build_index, load_stream
from clear_mlflow.data.scenarios import apply_scenario

TABLE = """x,y,label,time,bucket
1,2,b,2004-03-02,first
3,4,a,2004-03-01T12:00:00+02:00,first
5,6,b,2004-03-01,first
7,8,a,2005-01-01,second
9,10,a,2005-02-01,second
11,12,b,2005-01-15,second
"""
FIRST = 1_078_099_200  # 2004-03-01
SECOND = 1_104_537_600  # 2005-01-01
DAY = 86_400


def load(tmp_path: Path, borders: str, **options: str):
    (tmp_path / "days.csv").write_text(TABLE)
    arguments = {"columns": "x:y", **options}
    return load_stream(
        "vectors",
        tmp_path / "days.csv",
        cache_dir=tmp_path,
        arguments=arguments,
        borders=borders,
        protocol="streaming",
        split="auto",
    )


def test_a_table_divided_by_time_has_the_times_of_its_rows(tmp_path: Path) -> None:
    """In seconds, UTC, whatever the zone in which they are written."""
    stream = load(tmp_path, "year")
    sets = stream.train
    times = [table.times[table.time_order].tolist() for table in sets]
    assert times == [
        [FIRST, FIRST + 10 * 3600, FIRST + DAY],
        [SECOND, SECOND + 14 * DAY, SECOND + 31 * DAY],
    ]
    names = [
        [file.rpartition(" ")[2] for file in table.take(table.time_order).files] for table in sets
    ]
    assert names == [["4", "3", "2"], ["5", "7", "6"]]


def test_images_keep_their_times_in_scenarios(tmp_path: Path) -> None:
    stream = load(tmp_path, "year")
    table = stream.images
    by_file = dict(zip(table.files, table.times.tolist(), strict=True))
    arguments = {"classes_per_bucket": 1, "times": "all"}
    images = apply_scenario(stream, "class", arguments).images
    assert [by_file[file] for file in images.files] == images.times.tolist()


def test_a_table_with_its_own_buckets_has_no_times(tmp_path: Path) -> None:
    stream = load(tmp_path, "none", order="first:second")
    assert stream.images.times is None
    with pytest.raises(DataError, match="lacks times"):
        stream.train[0].time_order  # noqa: B018


def test_entries_of_a_function_may_have_a_time() -> None:
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    times = ["2004-05", "2004", "2004-02-01 01:00:00", "2004-01-02"]
    entries = [Entry(i, "ab"[i % 2], "1", time=time) for i, time in enumerate(times)]
    images = build_index(entries, root=Path(), vectors=vectors).images
    rows = images.vectors.rows[images.time_order].tolist()
    assert rows == [1, 3, 2, 0]
    entries[2] = Entry(2, "a", "1")
    assert build_index(entries, root=Path(), vectors=vectors).images.times is None
    entries[2] = Entry(2, "a", "1", time="yesterday")
    check_error(
        DataError, "has the time 'yesterday'", build_index, entries, root=Path(), vectors=vectors
    )
