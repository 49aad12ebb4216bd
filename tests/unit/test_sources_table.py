"""Custom streams as tables: columns, times, buckets, and invalid tables."""

import itertools
import random
import shutil
from datetime import date, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layout_trees import list_buckets
from one_line_errors import check_error
from own_streams import YEARS, Row, load_source, write_csv, write_parquet, write_years

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_TABLE_ROWS
from clear_mlflow.data import read_stream_index

load = partial(load_source, "table")


def read_index(root, borders="none", **arguments):
    options = {"arguments": arguments, "borders": borders}
    return read_stream_index("table", str(root), cache_dir=root, **options)


def list_images(root, **arguments):
    index = read_index(root, **arguments)
    groups = index.images.group_by_bucket(len(index.buckets))
    return {
        key: list(index.images.take(rows).ids)
        for key, rows in zip(index.buckets, groups, strict=True)
    }


def refusal(root, **arguments) -> str:
    return check_error(DataError, "", read_index, root, **arguments)


@pytest.fixture(scope="module")
def years(tmp_path_factory) -> tuple[Path, list[Row]]:
    root = tmp_path_factory.mktemp("streams") / "photos"
    rows = write_years(root, train=8, test=2)
    shuffled = random.Random(0).sample(rows, len(rows))
    write_csv(root / "photos.csv", shuffled)
    write_parquet(root / "photos.parquet", reversed(shuffled))
    return root, rows


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "photos" / "images").mkdir(parents=True)
    return tmp_path / "photos"


ONE_FIXTURE = [HealthCheck.function_scoped_fixture]  # for all examples
TIMED = "path,label,time"


def write(root, *lines, header="path,label,time,bucket,split"):
    (root / "t.csv").write_text("\n".join((header, *lines)) + "\n")


@pytest.mark.parametrize(
    ("protocol", "split"),
    [("iid", "auto"), ("iid", "2"), ("iid", "validation"), ("streaming", "auto")],
)
def test_a_folder_its_csv_and_its_parquet_are_one_stream(years, protocol, split):
    root, _ = years
    options = {"protocol": protocol, "split": split}
    folder = load_source("folder", root, **options)
    for file, arguments in itertools.product(("csv", "parquet"), ({}, {"borders": "year"})):
        table = load(root, **options, table=f"photos.{file}", **arguments)
        assert table.dataset.digest == folder.dataset.digest
        assert table.dataset.class_names == folder.dataset.class_names
        assert table.dataset.division == folder.dataset.division
        for bucket, other in zip(list_buckets(table), list_buckets(folder), strict=True):
            assert (bucket.key, bucket.train.paths) == (other.key, other.train.paths)
            assert bucket.test.paths == other.test.paths
            assert bucket.train.labels.tolist() == other.train.labels.tolist()
    assert load(root, table="photos.parquet").layout == "table (parquet)"
    assert load(root, table="photos.csv").dataset.source == str(root / "photos.csv")


def test_times_become_quarters_and_months(root):
    lines = [f"{A},x,2004-03-31T23:30:00-01:00", f"{B},y,2004-07-01T01:00:00+02:00"]
    lines += ["images/c.png,x,2004-12", "images/d.png,y,2004-03-31 23:30"]
    write(root, *lines, header=TIMED)
    images = list_images(root, borders="quarter")
    assert images == {"2004-Q1": ["d"], "2004-Q2": ["a", "b"], "2004-Q4": ["c"]}
    images = list_images(root, borders="month")
    assert images == {"2004-03": ["d"], "2004-04": ["a"], "2004-06": ["b"], "2004-12": ["c"]}


def test_buckets_of_equal_counts_keep_one_time_together(root):
    start = datetime(2004, 1, 1)
    when = random.Random(1).sample(range(200), 23)
    dates = [(start + timedelta(days=days)).date() for days in when]
    lines = [f"images/{i:02d}.png,{'xy'[i % 2]},{date}" for i, date in enumerate(dates)]
    write(root, *lines, header=TIMED)
    in_time = [f"{i:02d}" for _, i in sorted((d, i) for i, d in enumerate(when))]
    stream_buckets = list_images(root, borders="equal:4")
    assert list(stream_buckets) == ["1", "2", "3", "4"]
    assert [len(names) for names in stream_buckets.values()] == [6, 6, 6, 5]
    ends = [0, 6, 12, 18, 23]
    for names, a, b in zip(stream_buckets.values(), ends, ends[1:], strict=False):
        assert sorted(names) == sorted(in_time[a:b])
    lines = [f"images/{i}.png,{'xy'[i % 2]},{2004 + (i > 5)}" for i in range(8)]
    write(root, *lines, header=TIMED)
    assert [len(names) for names in list_images(root, borders="equal:2").values()] == [6, 2]
    assert "has images for 2 buckets" in refusal(root, borders="equal:3")


@settings(max_examples=40, suppress_health_check=ONE_FIXTURE)
@given(counts=st.lists(st.integers(1, 6), min_size=2, max_size=6), number=st.integers(2, 4))
def test_the_middle_image_of_a_time_decides_its_bucket(root, counts, number):
    """For an even number, the later of the two in the middle."""
    years = [str(2000 + k) for k, count in enumerate(counts) for _ in range(count)]
    expected = {}
    for year in sorted(set(years)):
        middle = years.index(year) + years.count(year) // 2
        expected.setdefault(middle * number // len(years), set()).add(year)
    lines = [f"images/{i}.png,{'xy'[i % 2]},{year}" for i, year in enumerate(years)]
    write(root, *lines, header=TIMED)
    if len(expected) < number:
        assert f"has images for {len(expected)} buckets" in refusal(root, borders=f"equal:{number}")
        return
    buckets = list_images(root, borders=f"equal:{number}").values()
    years_by_bucket = [{years[int(name)] for name in names} for names in buckets]
    assert years_by_bucket == [expected[k] for k in range(number)]


def test_buckets_have_dates(years, root):
    assert load(years[0], table="photos.csv").dataset.times == tuple(
        date(int(year), 1, 1) for year in YEARS
    )
    days = ["2004-01-03", "2004-02-01", "2004-02-07", "2005-07-01", "2006-01-01", "2006-03-01"]
    lines = [f"images/{i}.png,{'xy'[i % 2]},{day}" for i, day in enumerate(days)]
    write(root, *lines, header=TIMED)
    for buckets, times in (
        ("quarter", {"2004-Q1": "2004-01-01", "2005-Q3": "2005-07-01", "2006-Q1": "2006-01-01"}),
        ("equal:2", {"1": "2004-02-01", "2": "2006-01-01"}),
    ):
        assert dict(read_index(root, borders=buckets).times) == times
    write(root, f"{A},x,1", f"{B},y,2", header="path,label,bucket")
    assert read_index(root).times == {}


def test_columns_of_other_names(root):
    header = "file,class,year,note"
    write(root, f"{A},3,2004,x,", f"{B},10,2005,,", header=f"{header},split")
    arguments = {"path": "file", "label": "class", "bucket": "year"}
    assert "has '' as 'split'; expected train or test" in refusal(root, **arguments)
    write(root, f"{A},3,2004,x", f"{B},10,2005,", header=header)
    assert list_images(root, **arguments) == {"2004": ["a"], "2005": ["b"]}
    index = read_index(root, **arguments)
    assert index.class_names == ("3", "10")  # as numbers, for all are


def test_texts_are_kept_unchanged(root):
    names = ["NA", "None", "007", "nan", "null"]
    lines = [f"images/{i}.png,{name},2004,1,train" for i, name in enumerate(names)]
    write(root, *lines)
    assert read_index(root).class_names == tuple(sorted(names))


A, B = "images/a.png", "images/b.png"
EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["../a.png,x,2004,1,train"], "no '..'"),
        (["/etc/passwd,x,2004,1,train"], "expected a relative path"),
        (["images\\a.png,x,2004,1,train"], "expected a relative path"),
        ([",x,2004,1,train"], "expected a relative path"),
        (["out/a.png,x,2004,1,train", f"{B},y,2004,1,train"], "leads out of"),
        ([f"{A},,2004,1,train"], "row 2 has no label"),
        ([f"{A},x,2004,,train"], "row 2 has no bucket"),
        ([f"{A},x,2004,1,train", f"{A},x,2004,1,train"], "images/a.png twice; expected"),
        ([f"{A},x,2004,1,train", f"{A},y,2004,1,train"], "each image once, in one bucket"),
        ([f"{A},x,2004,1,train", "images/./a.png,x,2004,2,test"], "twice"),
        ([f"{A},1,2004,1,train", f"{B},2.5,2004,1,train"], "row 3 has label '2.5'"),
        ([f"{A},x,2004,1,train", f"{B},y,2004,1,valid"], "row 3 has 'valid' as 'split'"),
        ([f"{A},x,2004,1,train"], "has 1 class;"),
        ([f"{A},x,2004,1,test", f"{B},y,2004,1,test"], "nothing to train on"),
        ([f"{A},x,2004,1,train", f"{B},y,2004,1,train,more"], "cannot be read: Error tokenizing"),
        ([f"{A},x,2004,1", f"{B},y,2004,1,train"], "row 2 has '' as 'split'"),
        ([f"{A},x,2004,1,train,more"], "cannot be read: Error tokenizing"),
        ([f"{A},x,2004,one,train", f"{B},y,2004,two,train"], "whose order is the stream's"),
        ([f"{A},x ,2004,1,train", f"{B},y,2004,1,train"], "has a class 'x '"),
        ([], "has no rows"),
    ],
)  # fmt: skip
def test_invalid_values_of_a_table_are_one_line_errors(root, lines, reason):
    (root / "out").symlink_to(root.parent)
    write(root, *lines)
    assert str(root) in check_error(DataError, reason, read_index, root)


@pytest.mark.parametrize(
    ("buckets", "time", "reason"),
    [
        *(
            ("year", time, "; expected a year, a date")
            for time in ("", "yesterday", "2004-13", "2004-02-30", "31.12.2004", "1072915200")
        ),
        ("month", "2004", ", which lacks the month"),
    ],
)
def test_an_invalid_or_too_coarse_time_is_a_one_line_error(root, buckets, time, reason):
    write(root, f"{A},x,2004-05", f"{B},y,{time}", header=TIMED)
    assert f"row 3 has time {time!r}{reason}" in refusal(root, borders=buckets)


@pytest.mark.parametrize(
    ("header", "arguments", "message"),
    [
        ("file,label,bucket", {}, "no column 'path'; its columns are 'file', 'label', 'bucket'"),
        ("path,class,bucket", {}, "dataset_args=label=COLUMN"),
        ("path,label,year", {}, "no column 'bucket' of buckets"),
        ("path,label,year", {"borders": "year"}, "no column 'time'"),
        ("path,label,bucket", {"split": "part"}, "no column 'part'"),
        ("path,label,path", {}, "of different names"),
        ("path,label,bucket", {"bucket": "label"}, "one column for two things"),
    ],
)
def test_a_missing_column_is_a_one_line_error(root, header, arguments, message):
    write(root, "images/a.png,x,2004", header=header)
    assert message in refusal(root, **arguments)


def test_which_table_is_never_guessed(years, root):
    assert "has 2 tables ('photos.csv', 'photos.parquet')" in refusal(years[0])
    assert "has 0 tables (nothing)" in refusal(root)
    assert "no '..'" in refusal(root, table="../t.csv")
    assert "is missing" in refusal(root, table="t.csv")
    assert "is not a table" in refusal(root, table="t.xlsx")
    write(root, f"{A},x,2004,1,train", f"{B},y,2004,1,train")
    assert list_images(root / "t.csv") == list_images(root)
    shutil.move(root / "t.csv", root.parent / "t.csv")
    (root / "t.csv").symlink_to(root.parent / "t.csv")
    assert "leads out of" in refusal(root)


def parquet(root, **columns):
    table_columns = {"path": [A, B], "label": ["x", "y"], "bucket": [1, 2], **columns}
    pq.write_table(pa.table(table_columns), root / "t.parquet")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0.5, 1.5]}, "row 1 has label '0.5'; expected class names or integers: regr"),
        ({"label": [["x"], ["x", "y"]]}, "several labels are not supported"),
        ({"label": ["x", None]}, "row 2 has no label"),
        ({"split": [1, 0]}, "row 1 has '1' as 'split'; expected train or test"),
    ],
)
def test_columns_of_wrong_types_are_a_one_line_error(root, columns, message):
    parquet(root, **columns)
    assert message in refusal(root)


@pytest.mark.parametrize(
    "times",
    [
        [date(2004, 5, 1), date(2005, 1, 1)],
        [datetime(2004, 5, 1), datetime(2005, 1, 1)],
        [datetime(2004, 12, 31, 23, tzinfo=EAST), datetime(2005, 6, 1, tzinfo=EAST)],
        [2004, 2005],
        ["2004", "2005"],
        pa.array(["2004", "2005"]).dictionary_encode(),
        pa.array(["2004", "2005"], pa.large_string()),
        pa.array([datetime(2004, 5, 1), datetime(2005, 1, 1)], pa.timestamp("ns", "Europe/Berlin")),
    ],
)  # fmt: skip
def test_all_time_types_of_parquet_are_read(root, times):
    parquet(root, time=times)
    assert list_images(root, borders="year") == {"2004": ["a"], "2005": ["b"]}


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_the_last_half_second_of_a_year_before_1970_belongs_to_that_year(root, unit, zone):
    times = [datetime(1969, 12, 31, 23, 59, 59, 500_000), datetime(1970, 1, 1)]
    parquet(root, time=pa.array(times, pa.timestamp(unit, zone)))
    assert list_images(root, borders="year") == {"1969": ["a"], "1970": ["b"]}


def test_the_unpacked_size_of_a_parquet_file_is_limited(root):
    number = MAX_TABLE_ROWS + 1
    column = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0), number), pa.array(["x"]))
    parquet(root, path=column, label=column, bucket=column)
    assert (root / "t.parquet").stat().st_size < 100_000
    assert f"has {number} rows" in refusal(root)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"\xff\xfe\x00", b"path,label,bucket", b"a" * 2_000_000]
)
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_damaged_table_is_a_one_line_error(root, name, content):
    (root / name).write_bytes(content)
    refusal(root)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=ONE_FIXTURE)
@given(data=st.data())
def test_any_changed_parquet_file_is_read_or_rejected(years, tmp_path_factory, data):
    root, _ = years
    content = bytearray((root / "photos.parquet").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        offset = data.draw(st.integers(0, len(content) - 1))
        content[offset] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    changed = tmp_path_factory.getbasetemp() / "changed"
    changed.mkdir(exist_ok=True)
    (changed / "t.parquet").write_bytes(content)
    try:
        index = read_stream_index("table", str(changed), cache_dir=changed)
    except DataError as error:
        if "\n" in str(error):
            raise
        return
    assert all(path.is_relative_to(changed.resolve()) for path in index.images.paths)
