"""Tables with a line per value or per step, as trackers export them, in CSV and Parquet."""

import io
import math
import time

import numpy as np
import pyarrow as pa
import pytest
from one_line_errors import check_error
from pyarrow import parquet

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.importers import ReadOptions, ResultFile, log_rows, parse_runs

COLUMNS = ("run", "step", "metric", "value")
MATRIX = [[0.8, 0.3, 0.2], [0.7, 0.85, 0.4], [0.6, 0.75, 0.9]]
METRIC = r"test/acc_(\d+)"


def build_long(matrix=MATRIX, runs=("a",), first_step=0, factor=1) -> list[dict]:
    lines = []
    for number, run in enumerate(runs):
        for i, row in enumerate(matrix):
            step = factor * (i + first_step)
            lines.append({"run": run, "step": step, "metric": "loss", "value": 12.5})
            for j, value in enumerate(row):
                value = value if value is None else round(value - number / 100, 4)
                line = {"run": run, "step": step, "metric": f"test/acc_{j}", "value": value}
                lines.append(line)
    return lines


def build_wide(lines) -> list[dict]:
    """Return a line per run and step with a column per metric."""
    rows: dict = {}
    for line in lines:
        row = rows.setdefault((line["run"], line["step"]), {"run": line["run"]})
        row["step"] = line["step"]
        row[line["metric"]] = line["value"]
    return [*rows.values()]


def write_csv(lines, separator=",") -> bytes:
    names = [*lines[0]]
    cells = [names, *([line.get(name) for name in names] for line in lines)]
    texts = ([f"{'' if cell is None else cell}" for cell in row] for row in cells)
    return ("\n".join(map(separator.join, texts)) + "\n").encode()


def write_parquet(lines) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(lines), buffer)
    return buffer.getvalue()


def read(content, columns=COLUMNS, row_metric=METRIC, format_name="auto", **options):
    text = content if isinstance(content, bytes) else content.encode()
    read_options = ReadOptions(table=True, columns=columns, row_metric=row_metric, **options)
    return parse_runs(ResultFile("export.csv", text, read_options), format_name)


@pytest.mark.parametrize("write", [write_csv, write_parquet])
@pytest.mark.parametrize("columns", [COLUMNS, ("step", "metric", "value")])
def test_a_table_with_a_line_per_value_is_read(write, columns):
    lines = build_long()[::-1]
    (run,) = read(write(lines), columns)
    assert run.matrix.values.tolist() == MATRIX
    assert (run.matrix.buckets, run.label) == (("0", "1", "2"), "")
    assert run.format_name == "long-table"


@pytest.mark.parametrize("write", [write_csv, write_parquet])
@pytest.mark.parametrize("columns", [("run", "step"), ("step",)])
def test_a_table_with_a_column_per_metric_is_read(write, columns):
    (run,) = read(write(build_wide(build_long())), columns)
    assert run.matrix.values.tolist() == MATRIX


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_and_steps_with_decimals_are_read(separator):
    lines = [{**line, "step": f"{line['step']}.0"} for line in build_long()]
    (run,) = read(write_csv(lines, separator))
    assert run.matrix.values.tolist() == MATRIX


def test_each_run_of_a_table_is_one():
    lines = build_long(runs=("a", "b"))
    runs = read(write_csv(lines))
    assert [run.label for run in runs] == ["a", "b"]
    np.testing.assert_allclose(runs[1].matrix.values, np.array(MATRIX) - 0.01)
    check_error(RecordError, "contains 0.8 and 0.79 (line", read, write_csv(lines), COLUMNS[1:])


def test_a_value_that_is_there_twice_is_read_once():
    (run,) = read(write_csv(build_long() * 2))
    assert run.matrix.values.tolist() == MATRIX


@pytest.mark.parametrize(("first_step", "factor"), [(0, 1), (1, 1), (1, 500), (7, 13)])
def test_steps_are_rows_in_ascending_order(first_step, factor):
    lines = build_long(first_step=first_step, factor=factor)
    (run,) = read(write_csv(lines[::-1]))
    assert run.matrix.values.tolist() == MATRIX


def test_a_step_that_is_missing_is_a_row_that_was_not_measured():
    lines = [line for line in build_long() if line["step"] != 1]
    (run,) = read(write_csv(lines))
    expected = [MATRIX[0], [math.nan] * 3, MATRIX[2]]
    np.testing.assert_array_equal(run.matrix.values, expected)
    # Of steps 500 and 1500, nothing shows which bucket each follows.
    lines = [line for line in build_long(factor=500) if line["step"] != 500]
    check_error(RecordError, "do not show after which bucket", read, write_csv(lines))
    (run,) = read(write_csv(lines), row_labels="ignore")
    assert run.matrix.values[:2].tolist() == [MATRIX[0], MATRIX[2]]


def test_tests_of_past_buckets_and_empty_cells_are_not_measured():
    past = [[0.8, None, None], [0.7, 0.85, None], [0.6, 0.75, 0.9]]
    for content in (write_csv(build_long(past)), write_parquet(build_long(past))):
        (run,) = read(content)
        assert run.matrix.values[2].tolist() == past[2]
        assert np.isnan(run.matrix.values[np.triu_indices(3, 1)]).all()


def test_the_first_step_can_be_the_untrained_model():
    (run,) = read(write_csv(build_long([[0.1, 0.1, 0.1], *MATRIX])), initial="first-row")
    assert run.matrix.initial.tolist() == [0.1, 0.1, 0.1]
    assert run.matrix.values.tolist() == MATRIX


NAMED = """Train_Task,Eval_Task,Accuracy
dogs,dogs,0.9
dogs,cats,0.2
cats,dogs,0.7
cats,cats,0.8
"""


def test_tasks_with_names_are_in_the_order_of_the_table_unless_stated():
    columns = ("Train_Task", "Eval_Task", "Accuracy")
    (run,) = read(NAMED, columns, None)
    assert run.matrix.values.tolist() == [[0.9, 0.2], [0.7, 0.8]]
    assert run.matrix.buckets == ("dogs", "cats")
    assert run.proof == "buckets in the order of the table; --buckets states another"
    (run,) = read(NAMED, columns, None, buckets=("cats", "dogs"))
    assert run.matrix.values.tolist() == [[0.8, 0.7], [0.2, 0.9]]
    assert run.proof == ""
    (run,) = read(NAMED.replace("dogs,cats,0.2\n", ""), columns, None)
    assert run.proof == ""  # what was not tested shows the order


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0.85", "o.85"), "contains 'o.85' in line 8, column 'value'; expected a number"),
        (("a,1,test/acc_1", "a,,test/acc_1"), "contains no step in line 8"),
        (("test/acc_", "acc_"), "contains no metric that row_metric, "),
        (("loss", "test/acc_01"), "is not a fraction"),
        (("a,0,loss", '"a,0,loss'), "is not CSV in line "),
    ],
)
def test_a_table_that_cannot_be_read_is_a_one_line_error(change, message):
    text = write_csv(build_long()).decode().replace(*change)
    assert "'export.csv'" in check_error(RecordError, message, read, text)


def test_a_cell_of_a_column_per_metric_or_of_parquet_is_named():
    wide = write_csv(build_wide(build_long())).decode().replace("0.85", "n/r")
    message = "contains 'n/r' in line 3, column 'test/acc_1'; expected a number"
    check_error(RecordError, message, read, wide, ("run", "step"))
    lines = [{**line, "value": str(line["value"])} for line in build_long()]
    content = write_parquet([{**lines[0]}, {**lines[1], "value": "n/r"}, *lines[2:]])
    check_error(RecordError, "contains 'n/r' in row 2, column 'value'", read, content)


def test_two_metrics_of_one_bucket_are_a_one_line_error():
    lines = build_long() + [{**line, "metric": "val/acc_1"} for line in build_long()[2:3]]
    check_error(RecordError, "several metrics of one bucket", read, write_csv(lines),
                row_metric=r".*/acc_(\d+)")  # fmt: skip


@pytest.mark.parametrize("columns", [(), tuple("abcde")])
def test_columns_without_roles_are_a_one_line_error(columns):
    check_error(ConfigError, "run,step,metric,value or", read, write_csv(build_long()), columns)


def test_options_that_contradict_a_table_are_one_line_errors():
    content = write_csv(build_long())
    check_error(ConfigError, "lacks the column 'x'", read, content, ("run", "step", "metric", "x"))
    check_error(ConfigError, "format is pycil; leave table out", read, content, format_name="pycil")
    check_error(ConfigError, "leave one out", read, content, rows="(a)")
    check_error(ConfigError, "row_metric is 'acc'; expected a regular expression", read, content,
                row_metric="acc")  # fmt: skip
    check_error(ConfigError, "pass table=true", ReadOptions, row_metric="(a)")
    file = ResultFile("export.csv", content)
    check_error(ConfigError, "pass table=true", parse_runs, file, "long-table")


def test_an_expression_that_takes_exponential_time_is_stopped(monkeypatch):
    monkeypatch.setattr(log_rows, "_MAX_SECONDS", 1)
    content = write_csv([{**build_long()[0], "metric": "a" * 5000 + "!"}])
    start = time.monotonic()
    message = "takes over 1 seconds to search for '^(a|aa)+$'; pass row_metric=..."
    check_error(RecordError, message, read, content, row_metric="^(a|aa)+$")
    assert time.monotonic() - start < 10


def test_damaged_and_large_tables_are_one_line_errors(monkeypatch):
    content = write_parquet(build_long())
    for damaged in (
        content[:-20],
        content[:4],
        content.replace(b"test/acc", b"\xff\xfe\xfd\xfc\xff\xfe\xfd\xfc"),
    ):
        check_error(RecordError, "is not readable as Parquet", read, damaged)
    check_error(ConfigError, "lacks the column 'step'", read, "", ("step",))
    monkeypatch.setattr(untrusted, "MAX_LINES", 5)
    check_error(RecordError, "contains more than 5 lines", read, write_csv(build_long()))
    check_error(RecordError, "is too large", read, content)
