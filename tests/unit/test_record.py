"""Stored rows: round trips, hostile files, and contradicting rows."""

import json
import math
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from stored_values import row_record

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import (
    SCHEMA_NAME,
    RowRecord,
    assemble,
    format_row_file_name,
    parse_row_index,
)
from clear_mlflow.core.score import ACCURACY, Score

DIGITS = {"name": "digits", "digest": "sha256:0123456789abcdef"}
KEYS = ("1", "2", "3")
NAN = math.nan


def record(number: int, **changes) -> RowRecord:
    row = AccuracyRow(number, KEYS, (number, 5, 6), (10, 20, 30))
    return row_record(**{"row": row, "dataset": DIGITS, **changes})


def document(of=None, **changes):
    """Return the fields of row 2, or of another record. ``...`` omits a field."""
    fields = {**json.loads((of or record(2)).to_json()), **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def read(text: str) -> RowRecord:
    return RowRecord.from_json(text, source="row_002.json")


def check_refused(text: str, part: str) -> None:
    message = check_error(RecordError, part, read, text)
    assert message.startswith("row_002.json: ")
    assert len(message) < 400


ACCURACIES = record(2, row=AccuracyRow.from_values(2, KEYS, (0.2, 0.25, NAN)))
OF_ERRORS = Score("rmse", higher_is_better=False)
ERRORS = record(2, row=AccuracyRow.from_values(2, KEYS, (7.5, -1, NAN), None, OF_ERRORS))

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
taken = {*document(), "accuracy", "split", "score", "values"}
unknown_fields = st.text(st.characters(codec="utf-8")).filter(lambda name: name not in taken)
moments = st.datetimes(min_value=datetime(1970, 1, 1))


@st.composite
def records(draw):
    buckets = tuple(draw(st.lists(printable, min_size=1, max_size=6, unique=True)))
    number = draw(st.integers(0, len(buckets)))
    totals = tuple(draw(st.integers(1, 2**53)) for _ in buckets)
    score = draw(st.sampled_from([None, ACCURACY, OF_ERRORS, Score("PPL-v2")]))
    if score is None:
        counts = tuple(draw(st.integers(0, total)) for total in totals)
        row = AccuracyRow(number, buckets, counts, totals)
    else:
        cell = st.floats(0, 1) if score.is_accuracy else st.floats(-1e150, 1e150)
        cells = [draw(cell), *(draw(cell | st.just(NAN)) for _ in buckets[1:])]
        totals = draw(st.none() | st.just(totals))
        row = AccuracyRow.from_values(number, buckets, cells, totals, score)
    return row_record(
        row,
        protocol=draw(st.sampled_from(["iid", "streaming"])),
        split=draw(st.sampled_from(["test", "validation"])),
        dataset={"name": draw(printable), "digest": draw(printable)},
        seed=draw(st.none() | st.integers(-(2**63), 2**64 - 1)),
        package_version=draw(printable),
        written_at=draw(moments).isoformat(timespec="microseconds") + "Z",
        extra=draw(st.dictionaries(unknown_fields, json_values, max_size=3)),
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(records())
def test_a_record_round_trips(written):
    text = written.to_json()
    assert read(text) == written
    assert read(text).to_json() == text
    content = json.loads(text)
    assert content["schema"] == {"name": SCHEMA_NAME, "version": "1.0"}
    assert sum(name in content for name in ("correct", "accuracy", "values")) == 1
    assert ("num_instances" in content) == (written.row.num_instances is not None)


def test_a_row_without_counts_marks_unmeasured_buckets():
    """As null, since NaN is not JSON. docs/record-format.md has the same fields."""
    assert document(ACCURACIES)["accuracy"] == [0.2, 0.25, None]
    run_record = assemble({"row_002.json": ACCURACIES})
    assert run_record.matrix.num_instances is None
    assert run_record.missing == (1,)  # and not row 0, which other programs need not measure
    np.testing.assert_array_equal(run_record.matrix.values[1], [0.2, 0.25, NAN])
    counted = read(json.dumps(document(ACCURACIES, num_instances=[10, 20, 30])))
    num_instances = assemble({"row_002.json": counted}).matrix.num_instances
    np.testing.assert_array_equal(num_instances, [10, 20, 30])


def test_rows_with_and_without_counts_are_rejected_as_one_run():
    with pytest.raises(RecordError, match=r"num_instances is \(10, 20, 30\) and None"):
        assemble(index_records(record(1), ACCURACIES))


def test_the_fields_are_the_documented_ones():
    """docs/record-format.md has the same list for other programs."""
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
    assert document(record(2, split="validation"))["split"] == "validation"
    errors = document(ERRORS)
    assert errors["score"] == {"name": "rmse", "lower_is_better": True}
    assert errors["values"] == [7.5, -1.0, None]
    assert read(json.dumps(errors)) == ERRORS


def test_a_newer_major_version_is_an_error_that_asks_for_an_upgrade():
    later = document(schema={"name": SCHEMA_NAME, "version": "1.7", "x": 1}, further=[1])
    assert read(json.dumps(later)) == record(2, extra={"further": [1]})
    newer = {"schema": {"name": SCHEMA_NAME, "version": "2.0"}, "rows": []}
    check_refused(json.dumps(newer), "has version '2.0' of the format")


def schema(name=SCHEMA_NAME, version="1.0"):
    return {"schema": {"name": name, "version": version}}


WRONG_FIELDS = [
    ({"schema": ...}, "lacks the field 'schema'"),
    (schema("x"), "schema.name is 'x'"),
    (schema(version=1.0), "schema.version: expected 'str"),
    (schema(version="0.9"), "has version '0.9' of the format"),
    ({"row": ...}, "lacks the field 'row'"),
    ({"row": True}, "row: expected 'int', got 'bool"),
    ({"row": 4}, "only 3 buckets"),
    ({"row": 10**400}, "row is 1000"),
    ({"trained_through": "1"}, "trained_through is '1'; row 2"),
    ({"trained_through": ...}, "lacks the field 'trained_through'"),
    ({"buckets": "123"}, "buckets: expected 'array"),
    ({"buckets": ["1", "2"]}, "num_instances has 3 entries for 2"),
    ({"correct": [2, 5, 31]}, "correct of bucket '3' is 31"),
    ({"correct": [2, 5, True]}, "correct[2]: expected 'int', got 'bool"),
    ({"correct": ...}, "lacks the field 'correct' or 'accuracy'"),
    ({"num_instances": ...}, "num_instances: expected 'array', got 'null"),
    ({"protocol": "offline"}, "protocol is 'offline'"),
    ({"split": "valid"}, "split is 'valid'; expected test or validation"),
    ({"dataset": {"name": "digits"}}, "dataset: lacks the field 'digest'"),
    ({"dataset": {"name": "di\ngits", "digest": "x"}}, "name is 'di\\ngits'"),
    ({"dataset": {"name": "x" * 151, "digest": "x"}}, "expected a text of 1 to 150 printable"),
    ({"seed": True}, "seed: expected 'int"),
    ({"seed": 2**64}, "seed is 18446744073709551616"),
    ({"seed": ...}, "lacks the field 'seed'"),
    ({"package_version": None}, "package_version: expected 'str', got 'null"),
    *(
        ({"written_at": time}, "written_at is")
        for time in (
            *("yesterday", "2026-02-30T12:00:00Z", "2026-01-31T12:00:00", "0001-01-01T00:00:00Z"),
            *("2026-01-31T12:00:00+02:00", "２０２６-01-31T12:00:00Z"),
        )
    ),
    ({"note": "\ud800"}, "not a Unicode text"),
    ({"note": "x" * (1 << 20)}, "larger than 1 MiB"),
]
WRONG_ACCURACIES = [
    ({"accuracy": "0.5"}, "accuracy: expected 'array"),
    ({"accuracy": [0.5, 0.5]}, "one fraction for each of the 3 buckets"),
    ({"accuracy": [0.5, 92.3, None]}, "accuracy of bucket '2' is 92.3"),
    ({"accuracy": [0.5, True, None]}, "accuracy[1]: expected 'float"),
    ({"accuracy": [0.5, 10**400, None]}, "accuracy[1]: number out of range"),
    ({"accuracy": [None, None, None]}, "was not measured on any bucket"),
    ({"correct": [1, 2, 3]}, "two of correct, accuracy and values; expected only correct or acc"),
]
WRONG_SCORES = [
    ({"accuracy": [0.5, 0.5, 0.5]}, "expected only values"),
    ({"correct": [1, 2, 3]}, "expected only values"),
    ({"values": ...}, "lacks the field 'values'"),
    ({"values": [1, 2, 1e200]}, "a finite number up to 1e+150"),
    ({"score": {"name": "rmse"}}, "lacks the field 'lower_is_better'"),
    ({"score": {"name": "a b", "lower_is_better": True}}, "score is 'a b'"),
    ({"score": {"name": "accuracy", "lower_is_better": True}}, "lower is better; expected"),
]


@pytest.mark.parametrize(
    ("of", "changes", "part"),
    [
        *((record(2), *case) for case in WRONG_FIELDS),
        *((ACCURACIES, *case) for case in WRONG_ACCURACIES),
        *((ERRORS, *case) for case in WRONG_SCORES),
    ],
)
def test_invalid_fields_are_rejected_in_one_line(of, changes, part):
    check_refused(json.dumps(document(of, **changes)), part)


GOOD = record(2).to_json().decode()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not JSON"),
        (GOOD[: len(GOOD) // 2], "damaged or cut off"),
        ("null", "is None"),
        (GOOD.replace('"seed": 0', '"seed": NaN'), "NaN"),
        (GOOD.replace('"seed": 0', '"seed": ' + "9" * 10_000), "number too large"),
        (GOOD.replace('"seed": 0', '"seed": 0, "seed": 1'), "field 'seed' twice"),
        (GOOD.replace("digits", "é" * (1 << 19)), "larger than 1 MiB"),
    ],
)
def test_texts_other_than_rows_are_rejected_in_one_line(text, part):
    check_refused(text, part)


@given(st.text())
def test_a_hostile_source_name_does_not_break_the_message(source):
    """File names are as untrusted as files."""
    check_error(RecordError, "", RowRecord.from_json, "", source=source)


def test_extra_cannot_shadow_a_field():
    for name in ("row", "accuracy", "schema", "split"):
        check_error(RecordError, name, record, 1, extra={name: 1})


@pytest.mark.parametrize(
    "name",
    [
        *("row_1.json", "row_0001.json", "row_-01.json", "row_٠٠١.json", "row_001.json\n", ""),
        *("row_001.jsonl", "../row_001.json", "row_" + "9" * 5000 + ".json"),
    ],
)
def test_other_file_names_are_not_rows(name):
    assert parse_row_index(name) is None


def index_records(*records: RowRecord) -> dict[str, RowRecord]:
    return {format_row_file_name(r.row.row): r for r in records}


@pytest.mark.parametrize(
    ("numbers", "missing", "complete"),
    [
        *(((0, 1, 2), (), False), ((1, 2, 3), (0,), True), ((0, 1, 3), (2,), False)),
        *(((3,), (0, 1, 2), False), ((0,), (), False)),
    ],
)
def test_gaps_are_rows_below_the_highest(numbers, missing, complete):
    rows = index_records(*map(record, numbers))
    run_record = assemble(rows, expects_untrained=True)
    assert (run_record.rows, run_record.missing) == (numbers, missing)
    assert run_record.is_complete == complete
    assert assemble(rows).missing == tuple(row for row in missing if row)


def with_row(**changes) -> RowRecord:
    return record(2, row=msgspec.structs.replace(record(2).row, **changes))


NAMED = {**DIGITS, "name": "clear10"}
CHANGED = {**DIGITS, "digest": "sha256:f"}


@pytest.mark.parametrize(
    ("foreign", "difference"),
    [
        (record(2, seed=1), "seed is 0 and 1"),
        (record(2, protocol="streaming"), "protocol is 'iid' and 'streaming'"),
        (record(2, split="validation"), "split is 'test' and 'validation'"),
        (record(2, dataset=NAMED), "dataset name is 'digits' and 'clear10'"),
        (record(2, dataset=CHANGED), "dataset digest is 'sha256:0123456789abcdef' and 'sha256:f'"),
        (with_row(buckets=("1", "2", "x")), "buckets is ('1', '2', '3') and ('1', '2', 'x')"),
        (with_row(num_instances=(10, 21, 30)), "num_instances is (10, 20, 30) and (10, 21, 30)"),
    ],
)
def test_contradicting_rows_are_named_with_both_values(foreign, difference):
    records = index_records(record(1), foreign, record(3))
    check_error(RecordError, f"contradict each other: {difference};", assemble, records)


@pytest.mark.parametrize("name", ["row_003.json", "row_2.json", "notes.txt", "row_003\n.json"])
def test_a_file_under_another_rows_name_is_rejected(name):
    """A copied file would replace a row that was never measured."""
    message = "contains row 2, whose file is row_002.json"
    check_error(RecordError, message, assemble, {name: record(2)})


def test_a_run_without_rows_has_no_record():
    check_error(RecordError, "without rows", assemble, {})


def test_versions_and_times_may_differ_within_a_run():
    later = record(2, package_version="9.9", written_at="2027-01-01T00:00:00Z", extra={"a": 1})
    assert assemble(index_records(record(1), later)).rows == (1, 2)


def test_the_documented_example_is_a_row():
    """docs/record-format.md has the same bytes, and describes every field."""
    page = Path(__file__).parents[2].joinpath("docs", "record-format.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    assert read(example).to_json() == example.encode()
