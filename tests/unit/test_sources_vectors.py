"""Streams of vectors: equal numbers are equal streams, whatever the file format."""

import json
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from layout_trees import list_buckets
from one_line_errors import check_error
from own_streams import load_source
from safetensors.numpy import save_file
from sklearn.feature_extraction.text import HashingVectorizer

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH
from clear_mlflow.data import Entry, build_index, load_stream, read_stream_index
from clear_mlflow.data.check import check_dataset
from clear_mlflow.data.features import load_features
from clear_mlflow.data.stream import build_stream, describe_stream

COLUMNS = ["a", "b", "c"]
FORMATS = ["csv", "csv-with-index", "parquet", "parquet-lists", "npz"]


@pytest.fixture
def table():
    draws = np.random.default_rng(0)
    numbers = draws.normal(size=(40, 3)) * [1, 100, 1e-3]
    frame = pd.DataFrame(numbers, columns=COLUMNS)
    frame["label"] = ["bus", "cab"] * 20
    frame["time"] = [f"{2004 + i // 10}-0{1 + i % 9}-17" for i in range(40)]
    frame["split"] = ["train", "train", "train", "test"] * 10
    return frame


def build_vectors_by_year(root, table, vectors=None):
    vectors = table[COLUMNS].to_numpy() if vectors is None else vectors
    columns = zip(table["label"], table["time"], table["split"], strict=True)
    entries = [Entry(i, label, time[:4], split) for i, (label, time, split) in enumerate(columns)]
    return build_index(entries, vectors=vectors, root=root)


def write_table(table, folder: Path, file_format: str, columns=COLUMNS) -> Path:
    file = folder / f"numbers.{file_format.partition('-')[0]}"
    others = table.drop(columns=columns)
    if file_format.startswith("csv"):
        table.to_csv(file, index=file_format == "csv-with-index")
    elif file_format == "parquet":
        table.to_parquet(file, row_group_size=7)
    elif file_format == "parquet-lists":
        others.assign(vectors=list(table[columns].to_numpy())).to_parquet(file, row_group_size=7)
    elif file_format == "npz":
        arrays = {name: others[name].to_numpy().astype(str) for name in others}
        np.savez(file, vectors=table[columns].to_numpy(), **arrays)
    elif file_format == "huggingface":
        import datasets

        rows = {"vectors": table[columns].to_numpy().tolist(), **others.to_dict("list")}
        datasets.Dataset.from_dict(rows).save_to_disk(file)
    elif file_format == "safetensors":
        numbers = {
            "vectors": table[COLUMNS].to_numpy(),
            "label": (table["label"] == "cab").to_numpy().astype(np.int64),
            "time": np.array([int(time[:4]) for time in table["time"]]),
        }
        save_file(numbers, file)
    return file


def load_vectors(path: Path, cache: Path, **arguments):
    return load_source("vectors", path, cache=cache, **{"borders": "year", **arguments})


def read_index(path: Path, borders="none", **arguments):
    options = {"arguments": arguments, "borders": borders}
    return read_stream_index("vectors", str(path), cache_dir=path.parent, **options)


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_same_vectors_are_the_same_stream(table, tmp_path, file_format):
    expected = build_stream(build_vectors_by_year(tmp_path, table), name="x")
    for of in (table, table.sample(frac=1, random_state=1)):
        columns = {"columns": "vectors"} if file_format == "parquet-lists" else {}
        stream = load_vectors(write_table(of, tmp_path, file_format), tmp_path, **columns)
        assert stream.dataset.digest == expected.dataset.digest
        assert list(stream.dataset.buckets) == ["2004", "2005", "2006", "2007"]
        assert str(stream.dataset.times[1]) == "2005-01-01"
        for bucket, other_bucket in zip(list_buckets(stream), list_buckets(expected), strict=True):
            parts = (bucket.train, other_bucket.train), (bucket.test, other_bucket.test)
            for images, other in parts:
                assert images.vectors[:].tobytes() == other.vectors[:].tobytes()
                assert images.labels.tolist() == other.labels.tolist()
                assert images.contents == other.contents
        assert stream.dataset.name == "numbers"


def test_splits_do_not_depend_on_the_order_of_vectors(table, tmp_path):
    for split in ("3", "validation:3"):
        options = {"borders": "equal:2", "split": split, "cache": tmp_path}
        files = (write_table(of, tmp_path, "csv") for of in (table, table[::-1]))
        first, other = (load_source("vectors", file, **options) for file in files)
        assert first.dataset.digest == other.dataset.digest
        assert first.test[0].contents == other.test[0].contents


def test_safetensors_contain_only_numbers(table, tmp_path):
    stream = load_vectors(write_table(table, tmp_path, "safetensors"), tmp_path)
    assert stream.dataset.class_names == ("0", "1")
    assert list(stream.dataset.buckets) == ["2004", "2005", "2006", "2007"]


def test_features_are_the_vectors_themselves(table, tmp_path):
    stream = load_vectors(write_table(table, tmp_path, "csv"), tmp_path, standardise="past")
    features = load_features(stream, "vectors", cache_dir=tmp_path)
    assert (features.width, stream.standardise) == (3, "past")
    assert features.train[0] is stream.train[0].vectors
    other = load_vectors(tmp_path / "numbers.csv", tmp_path, standardise="none")
    assert other.dataset.digest == stream.dataset.digest
    assert load_features(other, "vectors", cache_dir=tmp_path).digest != features.digest
    with pytest.raises(ConfigError, match="pass features=vectors"):
        load_features(stream, "pixels", cache_dir=tmp_path)


def test_missing_numbers_are_filled_if_requested(table, tmp_path):
    table.loc[5, "b"] = np.nan
    for file_format, row in (("csv", 7), ("parquet", 6), ("npz", 6)):
        file = write_table(table, tmp_path, file_format)
        with pytest.raises(DataError, match=f"{file.name} row {row} has a number that is miss"):
            load_vectors(file, tmp_path)
        vectors = load_vectors(file, tmp_path, fill="-7").train[0].vectors
        assert (vectors[:] == -7).sum() == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": "tall"}, "has a text in column 'b'"),
        ({"b": np.inf}, "has a number that is missing, infinite or beyond"),
        ({"b": 1e39}, "beyond the range of 32-bit floats"),
        ({"label": ""}, "has no label"),
        ({"label": "1.5"}, "regression is not supported"),
    ],
)
def test_an_invalid_vector_is_a_one_line_error(table, tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        load_vectors(write_table(table.astype(object).assign(**change), tmp_path, "csv"), tmp_path)


COLLAPSING = {
    "times": 1_700_000_000 + np.arange(40) / 2,
    "integers": 2**24 + np.arange(40),
    "integers beyond float64": 10**18 + np.arange(40),
    "two clusters": np.where(np.arange(40) % 2, 1_700_000_000 + np.arange(40), 0),
    "tiny": np.arange(40) * 1e-50,
}


@pytest.mark.parametrize("name", COLLAPSING)
@pytest.mark.parametrize("file_format", [*FORMATS[:1], *FORMATS[2:], "huggingface", "function"])
def test_numbers_that_float32_makes_equal_are_rejected(table, tmp_path, file_format, name):
    numbers = np.random.default_rng(0).permutation(COLLAPSING[name])
    frame = table.drop(columns=COLUMNS).assign(a=np.arange(40), b=numbers)
    if file_format == "function":
        with pytest.raises(DataError, match=r"distinct numbers in column 1 \(counted from 0\)"):
            build_vectors_by_year(tmp_path, frame, frame[["a", "b"]].to_numpy())
        return
    source = "huggingface" if file_format == "huggingface" else "vectors"
    path = write_table(frame, tmp_path, file_format, ["a", "b"])
    options = {"huggingface": {"vector": "vectors"}, "parquet-lists": {"columns": "vectors"}}
    arguments = options.get(file_format, {})
    column = "'b'" if file_format in ("csv", "parquet") else "1"
    message = f"distinct numbers in column {column}.* remain as 32-bit floats; subtract"
    with pytest.raises(DataError, match=message) as error:
        load_stream(source, str(path), cache_dir=tmp_path, arguments=arguments, borders="year")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=message):
        check_dataset(str(path), source, arguments, borders=["year"], cache_dir=tmp_path)


def test_numbers_that_are_only_rounded_are_accepted(tmp_path):
    draws = np.random.default_rng(0)
    columns = [
        draws.normal(size=40_000),
        273 + 10 * draws.random(40_000),
        np.resize([0.1 + 0.2, 0.3, 1 / 3, 1 - 2 / 3], 40_000),
        draws.integers(0, 10**9, 40_000),
        np.full(40_000, 2**24 + 1),
    ]
    entries = [Entry(i, "ab"[i % 2], str(i % 4 // 2)) for i in range(40_000)]
    assert build_index(entries, vectors=np.stack(columns, axis=1), root=tmp_path).images


def test_a_date_of_parquet_is_not_a_number(table, tmp_path):
    for column in (pd.to_datetime(table["time"]), pd.to_datetime(table["time"]).dt.date):
        file = write_table(table.assign(measured=column), tmp_path, "parquet")
        message = "in column 'measured'; expected numbers: pass"
        check_error(DataError, message, load_vectors, file, tmp_path)
        assert load_vectors(file, tmp_path, columns="a:b").has_vectors


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["csv", "parquet", "npz"])
def test_the_width_of_vectors_is_limited(tmp_path, file_format):
    for width, message in ((2048, ""), (MAX_FEATURES_WIDTH + 1, "expected 16384 at most")):
        numbers = pd.DataFrame(np.ones((4, width)), columns=[f"n{i}" for i in range(width)])
        roles = {"label": ["a", "b"] * 2, "bucket": ["1", "1", "2", "2"]}
        file = write_table(numbers.assign(**roles), tmp_path, file_format, list(numbers))
        with pytest.raises(DataError, match=message) if message else nullcontext():
            read_index(file)


def test_types_that_numpy_lacks_are_a_one_line_error(tmp_path):
    header = json.dumps({"vectors": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]}})
    content = struct.pack("<Q", len(header)) + header.encode() + bytes(16)
    (tmp_path / "x.safetensors").write_bytes(content)
    labels = np.zeros(4, [("one", int), ("two", int)])
    np.savez(tmp_path / "x.npz", vectors=np.ones((4, 2)), label=labels, bucket=[1, 1, 2, 2])
    for name in ("x.safetensors", "x.npz"):
        # Where ml_dtypes is installed, it is read, and lacks the column.
        with pytest.raises(DataError, match=rf"{name} (cannot be read: |.* no column .label.)"):
            read_index(tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": "a:z"}, "pass dataset_args=columns=A:B"),
        ({"columns": "a:a"}, "each of them once"),
        ({"label": "class"}, "no column 'class'"),
    ],
)
def test_missing_columns_are_a_one_line_error(table, tmp_path, arguments, message):
    with pytest.raises(DataError, match=message):
        load_vectors(write_table(table, tmp_path, "csv"), tmp_path, **arguments)


STRINGS_ADVISED = r"Python objects; .* save it with .astype\(str\)"


def test_arrays_of_other_shapes_are_a_one_line_error(tmp_path):
    file = tmp_path / "x.npz"
    vectors, roles = np.ones((4, 2)), {"label": [1, 2, 1, 2], "bucket": [1, 1, 2, 2]}
    for arrays, message in (
        ({"numbers": vectors}, "no column .vec.*columns=C"),
        ({"vectors": np.ones(4)}, "not .rows, width"),
        ({"vectors": np.ones((3, 2))}, "another number of rows"),
        ({"vectors": vectors, "bucket": [1, 1, 2]}, "another number of rows"),
        ({"vectors": vectors, "label": np.array(["a", "b"] * 2, object)}, STRINGS_ADVISED),
    ):
        np.savez(file, **{**roles, **arrays})
        with pytest.raises(DataError, match=message):
            read_index(file)
    for content in (b"PK\x03\x04 no archive", b"a,b,label"):
        file.write_bytes(content)
        check_error(DataError, "cannot be read: it is not an archive", read_index, file)


def test_repeated_rows_are_a_warning_and_copied_buckets_an_error(table, tmp_path):
    table.loc[39, COLUMNS] = table.loc[0, COLUMNS].to_numpy()
    (warning, *_) = load_vectors(write_table(table, tmp_path, "csv"), tmp_path).dataset.warnings
    assert "1 row is in both a training and a test set" in warning
    assert f"{tmp_path}/numbers.csv/row 2 and " in warning
    table.loc[10:19, COLUMNS] = table.loc[0:9, COLUMNS].to_numpy()
    with pytest.raises(DataError, match="buckets and splits must be disjoint"):
        load_vectors(write_table(table, tmp_path, "csv"), tmp_path)


@pytest.mark.parametrize(("name", "value"), [("fill", "some"), ("fill", "inf"), ("width", 0)])
def test_arguments_are_checked_before_a_file_is_opened(name, value):
    message = f"dataset_args has {name}={value!r}"
    check_error(ConfigError, message, read_index, Path("/nowhere"), **{name: value})


def test_a_mapped_array_stays_mapped(table, tmp_path):
    np.save(tmp_path / "v.npy", table[COLUMNS].to_numpy(np.float32))
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    mapped_array = build_vectors_by_year(tmp_path, table, mapped).images.vectors.array
    assert np.shares_memory(mapped_array, mapped)


def weather(tmp_path, borders="none", **arguments):
    options = {"arguments": arguments, "borders": borders}
    return load_stream("weather", "auto", cache_dir=tmp_path, **options)


def test_the_weather_is_as_it_was_measured(tmp_path):
    stream = weather(tmp_path)
    assert stream.dataset.class_names == ("drizzle", "fog", "rain", "snow", "sun")
    assert list(stream.dataset.buckets)[:3] == ["2012-H1", "2012-H2", "2013-H1"]
    sizes = [len(train) + len(test) for train, test in zip(stream.train, stream.test, strict=True)]
    assert sizes == [182, 184] + [181, 184] * 3
    assert [*map(str, stream.dataset.times[:2])] == ["2012-01-01", "2012-07-01"]
    assert (stream.dataset.name, stream.dataset.source) == ("weather", "embedded")
    rain = weather(tmp_path, borders="year")
    days = [
        sum((images.labels == 2).sum() for images in (train, test))
        for train, test in zip(rain.train, rain.test, strict=True)
    ]
    assert days == [191, 60, 3, 5]
    assert len(weather(tmp_path, borders="quarter").train) == 16
    digest = "sha256:bb268a4fd8d86a9c078035ffd5d4a653166611ed3d2533396600450171f9a3f7"
    assert stream.dataset.digest == digest
    assert describe_stream(rain).absent_classes["test"]["2014"] == ["drizzle", "rain", "snow"]
    assert rain.dataset.warnings == ()  # that two days measured the same is none
    checked = check_dataset("auto", "weather", cache_dir=tmp_path)
    assert {problem.type for problem in checked.problems} == {"empty-class"}
    assert describe_stream(rain).absent_classes["train"] == {
        "2014": ["drizzle", "snow"],
        "2015": ["snow"],
    }
    message = "has standardise='all'; expected"
    check_error(ConfigError, message, weather, tmp_path, standardise="all")
    with pytest.raises(ConfigError, match="is embedded and reads no folder"):
        load_stream("weather", str(tmp_path), cache_dir=tmp_path)


def test_a_text_becomes_scikit_learns_hashed_words(tmp_path):
    texts = [f"{word} of day{i}: Rain" for i, word in enumerate(["Snow", "sun"] * 8)]
    frame = pd.DataFrame({"text": texts, "label": ["a", "b"] * 8, "bucket": [1] * 8 + [2] * 8})
    arguments = {"text": "text", "width": 32, "standardise": "none"}
    expected = HashingVectorizer(n_features=32).transform(texts).toarray().astype(np.float32)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    files = [tmp_path / "a.csv", tmp_path / "a.parquet"]
    streams = [load_source("vectors", file, cache=tmp_path, **arguments) for file in files]
    assert streams[0].dataset.digest == streams[1].dataset.digest
    images = (
        of
        for train, test in zip(streams[0].train, streams[0].test, strict=True)
        for of in (train, test)
    )
    vectors = sorted(row for of in images for row in of.vectors[:].tolist())
    assert vectors == sorted(expected.tolist())
    frame.loc[3, "text"] = None
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    np.savez(tmp_path / "a.npz", vectors=np.ones((16, 2)), label=[1] * 16, bucket=[1] * 16)
    for name, message in (
        ("a.csv", "row 5 has no text; expected one in every row"),
        ("a.parquet", "row 4 has no text; expected one in every row"),
        ("a.npz", "text='text', and .* contains arrays"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            read_index(tmp_path / name, **arguments)
    check_error(DataError, "or text=COLUMN", read_index, tmp_path / "a.csv", text="words")


def test_a_table_of_few_distinct_rows_is_loaded_where_rows_may_be_equal(tmp_path):
    """Six binary columns have at most 64 distinct rows."""
    draws = np.random.default_rng(0)
    table = pd.DataFrame(draws.integers(0, 2, (600, 6)), columns=list("abcdef"))
    table["label"] = np.where(table["a"] > table["b"], "x", "y")
    table["time"] = [str(2004 + i // 200) for i in range(600)]
    table.to_csv(tmp_path / "t.csv", index=False)
    message = "dataset_args=may_repeat=yes if rows may be equal"
    check_error(DataError, message, load_vectors, tmp_path / "t.csv", tmp_path)
    stream = load_vectors(tmp_path / "t.csv", tmp_path, may_repeat=True)
    assert [
        len(train) + len(test) for train, test in zip(stream.train, stream.test, strict=True)
    ] == [200] * 3


def test_the_weathers_card_states_the_test_days_that_repeat_a_training_day(project, tmp_path):
    page = " ".join((project / "docs" / "datasets.md").read_text(encoding="utf-8").split())
    for buckets, expected in (("year", 2), ("half", 1)):
        repeats = [
            content
            for bucket in list_buckets(weather(tmp_path, borders=buckets))
            for content in bucket.test.contents
            if content in bucket.train.contents
        ]
        assert len(repeats) == expected
    assert "Two of the 436 test days (one with half-year buckets) have the same" in page
