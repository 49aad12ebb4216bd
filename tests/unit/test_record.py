"""The stored form of a row: round trips, hostile files, and rows that contradict each other."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import (
    ROWS_FOLDER,
    SCHEMA_NAME,
    DatasetIdentity,
    RowRecord,
    assemble,
    row_file_name,
    row_index,
)

DIGITS = DatasetIdentity("digits", "sha256:0123456789abcdef")


def record(number: int, **changes) -> RowRecord:
    row = AccuracyRow(number, ("1", "2", "3"), (number, 5, 6), (10, 20, 30))
    facts = {
        "row": row,
        "protocol": "iid",
        "dataset": DIGITS,
        "seed": 0,
        "package_version": "0.1.0",
        "written_at": "2026-01-31T12:00:00.123Z",
    }
    return RowRecord(**{**facts, **changes})


def document(**changes):
    fields = {**json.loads(record(2).to_json()), **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def read(text: str) -> RowRecord:
    return RowRecord.from_json(text, source="row_002.json")


printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)


@st.composite
def records(draw):
    buckets = tuple(draw(st.lists(printable, min_size=1, max_size=6, unique=True)))
    totals = tuple(draw(st.integers(1, 2**53)) for _ in buckets)
    return RowRecord(
        row=AccuracyRow(
            draw(st.integers(0, len(buckets))),
            buckets,
            tuple(draw(st.integers(0, total)) for total in totals),
            totals,
        ),
        protocol=draw(st.sampled_from(["iid", "streaming"])),
        dataset=DatasetIdentity(draw(printable), draw(printable)),
        seed=draw(st.none() | st.integers(-(2**63), 2**64 - 1)),
        package_version=draw(printable),
        written_at=draw(
            st.datetimes(min_value=np.datetime64("1970-01-01", "s").item()).map(
                lambda time: time.isoformat(timespec="microseconds") + "Z"
            )
        ),
        extra=draw(
            st.dictionaries(
                st.text(st.characters(codec="utf-8")).filter(lambda k: k not in document()),
                json_values,
                max_size=3,
            )
        ),
        schema_version=draw(st.sampled_from(["1.0", "1.7"])),
    )


@st.composite
def accuracy_records(draw):
    """Rows of accuracies alone, with some buckets not measured, with and without test counts."""
    buckets = tuple(draw(st.lists(printable, min_size=1, max_size=6, unique=True)))
    cells = [draw(st.floats(0, 1) | st.just(math.nan)) for _ in buckets]
    cells[draw(st.integers(0, len(cells) - 1))] = draw(st.floats(0, 1))
    counts = draw(st.none() | st.tuples(*(st.integers(1, 2**53) for _ in buckets)))
    number = draw(st.integers(0, len(buckets)))
    row = AccuracyRow.from_values(number, buckets, cells, counts)
    return replace(draw(records()), row=row)


@settings(max_examples=60)
@given(records())
def test_what_is_written_is_read_back(written):
    """Every field survives, unknown ones and a newer minor version too."""
    text = written.to_json()
    assert read(text) == written
    assert read(text).to_json() == text


@settings(max_examples=60)
@given(accuracy_records())
def test_rows_without_counts_are_read_back_to_the_last_digit(written):
    """Fractions survive as they are, what was not measured stays so, and the version says it."""
    text = written.to_json()
    assert read(text) == written
    assert read(text).to_json() == text
    found = json.loads(text)
    assert found["schema"]["version"] in ("1.1", "1.7")
    assert "correct" not in found
    assert ("num_instances" in found) == (written.row.num_instances is not None)


def accuracy_document(**changes):
    row = AccuracyRow.from_values(2, ("1", "2", "3"), (0.2, 0.25, math.nan))
    fields = {**json.loads(record(2, row=row).to_json()), **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def test_a_row_without_counts_says_what_was_not_measured():
    """docs/record-format.md has the same fields; NaN is no JSON, so it is null."""
    assert accuracy_document()["accuracy"] == [0.2, 0.25, None]
    assert accuracy_document()["schema"]["version"] == "1.1"
    found = assemble({"row_002.json": read(json.dumps(accuracy_document()))})
    assert found.matrix.num_instances is None
    assert found.missing == (1,)  # and not row 0, which few other programs measure
    np.testing.assert_array_equal(found.matrix.values[1], [0.2, 0.25, math.nan])
    counted = read(json.dumps(accuracy_document(num_instances=[10, 20, 30])))
    known = assemble({"row_002.json": counted}).matrix.num_instances
    np.testing.assert_array_equal(known, [10, 20, 30])


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"accuracy": ...}, "lacks the field 'accuracy'"),
        ({"accuracy": "0.5"}, "accuracy is '0.5'"),
        ({"accuracy": [0.5, 0.5]}, "one fraction for each of the 3 buckets"),
        ({"accuracy": [0.5, 92.3, None]}, "accuracy of bucket '2' is 92.3"),
        ({"accuracy": [0.5, -0.1, None]}, "accuracy of bucket '2' is -0.1"),
        ({"accuracy": [0.5, True, None]}, "accuracy of bucket '2' is True"),
        ({"accuracy": [0.5, 10**400, None]}, "accuracy of bucket '2' is 1000"),
        ({"accuracy": [None, None, None]}, "no measured bucket"),
        ({"num_instances": None}, "num_instances is None"),
        ({"num_instances": [1, 2]}, "num_instances has 2 entries"),
        ({"num_instances": [1, 2, 0]}, "num_instances of bucket '3' is 0"),
        ({"correct": [1, 2, 3]}, "lacks the field 'num_instances'"),
        ({"schema": {"name": "clear_mlflow/accuracy_row", "version": "1.0"}}, "field 'correct'"),
    ],
)
def test_wrong_accuracies_are_refused_in_one_line(changes, part):
    """Percent is never taken for a fraction, and version 1.0 has counts."""
    with pytest.raises(RecordError) as caught:
        read(json.dumps(accuracy_document(**changes)))
    message = str(caught.value)
    assert part in message
    assert message.isprintable()
    assert len(message) < 400


def test_rows_with_and_without_counts_are_not_of_one_run():
    """Nobody measured one run in two ways: a foreign row is named, and nothing crashes."""
    foreign = read(json.dumps(accuracy_document()))
    with pytest.raises(RecordError, match=r"num_instances is \(10, 20, 30\) and None"):
        assemble(stored(record(1), foreign))


def test_the_fields_are_the_documented_ones():
    """Another program reads these names: docs/record-format.md has the same list."""
    assert document() == {
        "schema": {"name": "clear_mlflow/accuracy_row", "version": "1.0"},
        "row": 2,
        "trained_through": "2",
        "buckets": ["1", "2", "3"],
        "correct": [2, 5, 6],
        "num_instances": [10, 20, 30],
        "protocol": "iid",
        "dataset": {"name": "digits", "digest": "sha256:0123456789abcdef"},
        "seed": 0,
        "package_version": "0.1.0",
        "written_at": "2026-01-31T12:00:00.123Z",
    }
    assert json.loads(record(0).to_json())["trained_through"] is None


def test_a_derived_accuracy_has_to_agree():
    """Other programs may write it; within rounding it is taken, beyond that refused."""
    stated = [0.2, 0.25, 0.2]
    assert read(json.dumps(document(accuracy=stated))) == record(2)
    for wrong in ([0.2, 0.25, 0.20001], [0.2, 0.25], [True, 0.25, 0.2], ["0.2", 0.25, 0.2], 3):
        with pytest.raises(RecordError, match=r"row_002\.json: accuracy is"):
            read(json.dumps(document(accuracy=wrong)))


def test_a_newer_major_version_asks_for_an_upgrade():
    """The version is looked at first: the rest may well be different then."""
    newer = {"schema": {"name": "clear_mlflow/accuracy_row", "version": "2.0"}, "rows": []}
    with pytest.raises(RecordError, match=r"version 2\.0 of the format.*upgrade"):
        read(json.dumps(newer))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"schema": ...}, "lacks the field 'schema'"),
        ({"schema": "1.0"}, "schema is '1.0'"),
        ({"schema": {"name": "x", "version": "1.0"}}, "schema.name is 'x'"),
        ({"schema": {"name": "clear_mlflow/accuracy_row", "version": 1.0}}, "schema.version"),
        ({"schema": {"name": "clear_mlflow/accuracy_row", "version": "0.9"}}, "schema.version"),
        ({"schema": {"name": "clear_mlflow/accuracy_row", "version": "1"}}, "schema.version"),
        ({"row": ...}, "lacks the field 'row'"),
        ({"row": True}, "row is True"),
        ({"row": 4}, "only 3 buckets"),
        ({"row": 2.0}, "row is 2.0"),
        ({"row": 10**400}, "row is 1000"),
        ({"row": None}, "row is None"),
        ({"trained_through": "1"}, "trained_through is '1'; row 2"),
        ({"trained_through": None}, "trained_through is None"),
        ({"trained_through": ...}, "lacks the field 'trained_through'"),
        ({"buckets": "123"}, "buckets is '123'"),
        ({"buckets": ["1", "2"]}, "correct has 3 entries for 2"),
        ({"buckets": ["1", "2", {"a": 1}]}, "a bucket key is {'a': 1}"),
        ({"buckets": ["1", "2", "\u001b[31m"]}, "printable"),
        ({"correct": [2, 5]}, "correct has 2 entries"),
        ({"correct": [2, 5, 31]}, "correct of bucket '3' is 31"),
        ({"correct": [2, 5, True]}, "expected one integer per bucket"),
        ({"correct": {"1": 2}}, "correct is {'1': 2}"),
        ({"num_instances": [10, 20, 0]}, "num_instances of bucket '3' is 0"),
        ({"num_instances": [10, 20, 10**300]}, "2**53"),
        ({"protocol": "offline"}, "protocol is 'offline'"),
        ({"protocol": ["iid"]}, "protocol is ['iid']"),
        ({"dataset": "digits"}, "dataset is 'digits'"),
        ({"dataset": {"name": "digits"}}, "expected an object of name and digest"),
        ({"dataset": {"name": "digits", "digest": 3}}, "digest is 3"),
        ({"dataset": {"name": "di\ngits", "digest": "x"}}, "name is 'di\\ngits'"),
        ({"seed": "0"}, "seed is '0'"),
        ({"seed": True}, "seed is True"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": ...}, "lacks the field 'seed'"),
        ({"package_version": None}, "package_version is None"),
        ({"package_version": "x" * 1000}, "package_version is 'xxx"),
        ({"written_at": "yesterday"}, "written_at is 'yesterday'"),
        ({"written_at": "2026-02-30T12:00:00Z"}, "written_at"),
        ({"written_at": "2026-01-31T12:00:00"}, "written_at"),
        ({"written_at": "2026-01-31T12:00:00+02:00"}, "written_at"),
        ({"written_at": "0001-01-01T00:00:00Z"}, "written_at"),
        ({"written_at": "２０２６-01-31T12:00:00Z"}, "written_at"),
        ({"written_at": 1769860800}, "written_at is 1769860800"),
        ({"note": "\ud800"}, "no Unicode text"),
        ({"\ud800": 1}, "no Unicode text"),
        ({"note": "x" * (1 << 20)}, "larger than 1 MiB"),
    ],
)
def test_wrong_fields_are_refused_in_one_line(changes, part):
    """The message names the file and shows what stands there, cut short."""
    with pytest.raises(RecordError) as caught:
        read(json.dumps(document(**changes)))
    message = str(caught.value)
    assert message.startswith("row_002.json: ")
    assert part in message
    assert message.isprintable()
    assert len(message) < 400


GOOD = record(2).to_json()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no JSON"),
        (GOOD[: len(GOOD) // 2], "damaged or cut off"),
        ("\ufeff" + GOOD, "no JSON"),
        (GOOD + "{}", "no JSON"),
        ("[]", "is []; expected a JSON object"),
        ("null", "is None"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (GOOD.replace('"seed": 0', '"x": ' + "[" * 40 + "]" * 40), "nested too deeply"),
        (GOOD.replace('"seed": 0', '"seed": NaN'), "NaN"),
        (GOOD.replace('"seed": 0', '"seed": -Infinity'), "-Infinity"),
        (GOOD.replace('"seed": 0', '"seed": 1e999'), "'1e999', a number too large"),
        (GOOD.replace('"seed": 0', '"seed": ' + "9" * 10_000), "number too large"),
        (GOOD.replace('"seed": 0', '"seed": 0, "seed": 1'), "field 'seed' twice"),
        (GOOD.replace('"digest"', '"name": "x", "digest"'), "field 'name' twice"),
        (" " * ((1 << 20) + 1), "larger than 1 MiB"),
        (GOOD.replace("digits", "é" * (1 << 19)), "larger than 1 MiB"),
        (GOOD.replace("digits", "\ud800"), "no Unicode text"),
    ],
)
def test_texts_that_are_no_row_are_refused_in_one_line(text, part):
    """Nothing that a file may hold ends in another error than ours."""
    with pytest.raises(RecordError) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith("row_002.json: ")
    assert part in message
    assert message.isprintable()
    assert len(message) < 400


@settings(max_examples=300)
@given(st.data())
def test_any_value_in_any_field_is_read_or_refused(data):
    """No value crashes the reader, and what it reads it can write."""
    fields = data.draw(st.sampled_from([document(), accuracy_document()]))
    fields[data.draw(st.sampled_from([*fields, "accuracy", "correct"]))] = data.draw(json_values)
    try:
        found = read(json.dumps(fields))
    except RecordError:
        return
    assert read(found.to_json()) == found


@given(st.text())
def test_a_hostile_source_name_does_not_break_the_message(source):
    """The name of a file comes from the same place as the file."""
    with pytest.raises(RecordError) as caught:
        RowRecord.from_json("", source=source)
    assert str(caught.value).isprintable()


def test_extra_cannot_shadow_a_field():
    """A writer's own field must not replace what was measured."""
    for name in ("row", "accuracy", "schema"):
        with pytest.raises(RecordError, match=name):
            record(1, extra={name: 1})


def test_file_names_sort_as_rows_do():
    """Three digits at least, and one name per row."""
    assert ROWS_FOLDER == "accuracy_matrix/rows"
    assert [row_file_name(n) for n in (0, 12, 1234)] == [
        "row_000.json",
        "row_012.json",
        "row_1234.json",
    ]


@given(st.integers(0, 10**9 - 1))
def test_a_file_name_gives_its_row_back(number):
    """Reading is the inverse of writing."""
    assert row_index(row_file_name(number)) == number


@pytest.mark.parametrize(
    "name",
    [
        "row_1.json",
        "row_0001.json",
        "row_-01.json",
        "row_٠٠١.json",
        "row_001.json\n",
        "row_001.jsonl",
        "../row_001.json",
        "row_" + "9" * 5000 + ".json",
        "",
    ],
)
def test_other_file_names_are_no_rows(name):
    """Whatever else lies in the folder is left alone."""
    assert row_index(name) is None


def stored(*records: RowRecord) -> dict[str, RowRecord]:
    return {row_file_name(r.row.row): r for r in records}


def test_rows_become_a_run():
    """The run's facts, its matrix, and which rows are there and which are not."""
    whole = assemble(stored(*(record(n) for n in (3, 0, 2, 1))))
    assert whole.is_complete
    assert (whole.rows, whole.missing) == ((0, 1, 2, 3), ())
    assert (whole.protocol, whole.dataset, whole.seed) == ("iid", DIGITS, 0)
    np.testing.assert_array_equal(whole.matrix.values[:, 0], [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(whole.matrix.initial, [0.0, 0.25, 0.2])


@pytest.mark.parametrize(
    ("numbers", "missing", "complete"),
    [
        ((0, 1, 2), (), False),
        ((1, 2, 3), (0,), True),
        ((0, 1, 3), (2,), False),
        ((3,), (0, 1, 2), False),
        ((0,), (), False),
    ],
)
def test_gaps_are_rows_below_the_highest(numbers, missing, complete):
    """A run without its initialisation is complete, and still lacks a row."""
    found = assemble(stored(*map(record, numbers)))
    assert (found.rows, found.missing, found.is_complete) == (numbers, missing, complete)


def with_row(**changes) -> RowRecord:
    return record(2, row=replace(record(2).row, **changes))


@pytest.mark.parametrize(
    ("foreign", "what", "ours", "theirs"),
    [
        (record(2, seed=1), "seed", "0", "1"),
        (record(2, seed=None), "seed", "0", "None"),
        (record(2, protocol="streaming"), "protocol", "'iid'", "'streaming'"),
        (
            record(2, dataset=DatasetIdentity("digits", "sha256:f")),
            "dataset digest",
            "'sha256:0123456789abcdef'",
            "'sha256:f'",
        ),
        (
            record(2, dataset=DatasetIdentity("clear10", DIGITS.digest)),
            "dataset name",
            "'digits'",
            "'clear10'",
        ),
        (with_row(buckets=("1", "2", "x")), "key of bucket 3", "'3'", "'x'"),
        (
            record(2, row=AccuracyRow(2, ("1", "2"), (1, 1), (10, 20))),
            "number of buckets",
            "3",
            "2",
        ),
        (with_row(num_instances=(10, 21, 30)), "num_instances of bucket 2", "20", "21"),
    ],
)
def test_contradicting_rows_are_named_with_both_values(foreign, what, ours, theirs):
    """A user has to know which file to remove."""
    with pytest.raises(RecordError) as caught:
        assemble(stored(record(1), foreign, record(3)))
    message = str(caught.value)
    assert f"row_001.json and row_002.json contradict each other: {what} is" in message
    assert f"{what} is {ours} and {theirs};" in message


@pytest.mark.parametrize("name", ["row_003.json", "row_2.json", "notes.txt", "row_003\n.json"])
def test_a_file_under_another_rows_name_is_refused(name):
    """A copied file would stand for a row that was never measured."""
    with pytest.raises(RecordError, match=r"holds row 2, whose file is row_002\.json") as caught:
        assemble({name: record(2)})
    assert str(caught.value).isprintable()


def test_a_run_without_rows_is_no_record():
    """Nothing is assembled from nothing."""
    with pytest.raises(RecordError, match="no row"):
        assemble({})


def test_versions_and_times_may_differ_within_a_run():
    """A run that was resumed after an upgrade is still one run."""
    later = record(2, package_version="9.9", written_at="2027-01-01T00:00:00Z", extra={"a": 1})
    assert assemble(stored(record(1), later)).rows == (1, 2)


def test_the_documented_example_is_a_row():
    """docs/record-format.md shows what the reader reads, byte for byte, and tells every field."""
    page = Path(__file__).parents[2].joinpath("docs", "record-format.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    assert read(example).to_json() == example
    of_rows, _, _ = page.partition("\n## Tests inside a bucket\n")
    told = [line.split("`")[1] for line in of_rows.splitlines() if line.startswith("| `")]
    assert [name for name in told if "." not in name] == list(json.loads(example))
    without_counts = page.split("```json\n")[2].split("```")[0]
    assert read(without_counts).row.cells[:2] == (0.855, 0.94)
    fields = [name for name in told if "." not in name]
    fields[fields.index("correct") : fields.index("num_instances") + 1] = ["accuracy"]
    assert fields == list(json.loads(without_counts))


def test_a_row_on_validation_images_says_so():
    """As version 1.2, which it reads back; a row on test images stays of the version it was."""
    validated = record(2, split="validation")
    text = json.loads(validated.to_json())
    assert (text["schema"]["version"], text["split"]) == ("1.2", "validation")
    assert read(validated.to_json()) == validated
    assert "split" not in document()
    assert document()["schema"]["version"] == "1.0"
    newer = document(schema={"name": SCHEMA_NAME, "version": "1.2"}, split="test")
    assert read(json.dumps(newer)).split == "test"
    with pytest.raises(RecordError, match="split is 'valid'; expected test or validation"):
        read(json.dumps({**newer, "split": "valid"}))


def test_a_field_that_another_program_called_split_stays_its_own():
    """Rows of before there was the field are read and written back as they are."""
    theirs = read(json.dumps(document(split="fold 3")))
    assert (theirs.split, theirs.extra) == ("test", {"split": "fold 3"})
    assert json.loads(theirs.to_json())["split"] == "fold 3"


def test_rows_on_validation_and_on_test_images_are_not_of_one_run():
    """Both files and both values are named."""
    rows = {
        row_file_name(1): record(1),
        row_file_name(2): record(2, split="validation"),
    }
    with pytest.raises(RecordError, match="split is 'test' and 'validation'"):
        assemble(rows)
    assert assemble({row_file_name(2): rows[row_file_name(2)]}).split == "validation"
