"""Rows of other programs, stored under other names: found, read, converted and scored."""

import json

import numpy as np
import pytest
import result_files as files
from commands import invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from stored_runs import row_texts, rows_folder

from clear_mlflow.core.errors import ClearError, ConfigError, RecordError
from clear_mlflow.core.record import assemble
from clear_mlflow.importers import (
    ReadOptions,
    ResultFile,
    RowPattern,
    combine_rows,
    parse_row,
    parse_runs,
)
from clear_mlflow.store.rows import read_rows

SQUARE = [[0.75, 0.5, 0.25], [0.625, 0.875, 0.375], [0.5, 0.5625, 0.9375]]
INITIAL = [0.125, 0.0, 0.25]
PATTERN = "results/acc_after_{row}.json"


@pytest.mark.parametrize(
    ("pattern", "paths", "rows"),
    [
        ("r/a_{row}.json", ["r/a_0.json", "r/a_10.json"], {0: "r/a_0.json", 10: "r/a_10.json"}),
        ("acc_{row0}.json", ["acc_00.json", "acc_01.json"], {1: "acc_00.json", 2: "acc_01.json"}),
        ("*/{row}.csv", ["a/1.csv", "b.csv", "a/b/2.csv"], {1: "a/1.csv"}),
        ("acc?.json", ["acc1.json", "acc10.json"], {None: "acc1.json"}),
        ("{row}.csv", ["0999.csv", "1000.csv"], {999: "0999.csv", 1000: "1000.csv"}),  # the largest
        ("x.json", [], {}),
        ("a.b", ["aXb"], {}),
    ],
)
def test_a_pattern_maps_files_to_rows(pattern, paths, rows):
    assert RowPattern(pattern).find_rows(paths) == rows


@pytest.mark.parametrize(
    ("pattern", "paths", "part"),
    [
        ("*.json", ["a.json", "b.json"], "write {row} in place of"),
        ("*_{row}.json", ["a_1.json", "b_1.json"], "are both row 1"),
        ("{row}", ["1001"], "at most 1000 buckets"),
        ("../{row}", [], "a path within a run"),
        ("/etc/{row}", [], "a path within a run"),
        ("a//{row}", [], "a path within a run"),
        ("{row}/{row}", [], "once, no other braces"),
        ("{bucket}", [], "once, no other braces"),
        ("a*b*c*d*", [], "at most 3 stars"),
        ("", [], "a path within a run"),
    ],
)
def test_an_ambiguous_pattern_is_an_error(pattern, paths, part):
    check_error((ConfigError, RecordError), part, lambda: RowPattern(pattern).find_rows(paths))


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(SQUARE[1]),
        json.dumps({"accuracy": SQUARE[1]}),
        "0.625,0.875,0.375\n",
        "# after 2\n0.625\t0.875\t0.375",
        files.savetxt(SQUARE[1]),
        files.savetxt([SQUARE[1]]),
        files.npy(np.array(SQUARE[1])),
        files.npy(np.array([SQUARE[1]], "f4")),
    ],
)
def test_a_row_has_many_forms(content):
    content = content if isinstance(content, bytes) else content.encode()
    matrix = combine_rows({2: parse_row(ResultFile("row", content))}, ReadOptions())
    np.testing.assert_array_equal(matrix.values[1], SQUARE[1])
    assert np.isnan(matrix.values[0]).all()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_row_or_a_one_line_error(content):
    """Artifacts of other programs may contain anything."""
    message = ""
    try:
        combine_rows({1: parse_row(ResultFile("row", content))}, ReadOptions())
    except ClearError as error:
        message = str(error)
    assert message.isprintable()


@pytest.mark.parametrize(
    ("trained", "part"),
    [
        ("0 1 0 2", "two trainings on experience 0, the second after experience 1"),
        ("None 2 1 2", "two trainings on experience 2, the second after experience 1"),
        ("2 1", "trained on experiences 2, 1 in this order, without a test after experience 0:"),
    ],
)
def test_an_avalanche_file_with_an_unclear_order_is_a_one_line_error(trained, part):
    """An experience trained twice has no row; the place of an untested one is not known."""
    lines = ["eval_exp,training_exp,eval_accuracy,eval_loss,forgetting"]
    lines += [f"{j},{i},0.5000,0.5000,0.0000" for i in trained.split() for j in range(3)]
    file = ResultFile("eval_results.csv", "\n".join(lines).encode())
    check_error(RecordError, part, parse_runs, file)


@pytest.fixture
def foreign(store, experiment_id):
    """Return a function that creates runs of another program with such artifacts."""

    def make(artifacts, **tags):
        run = store.create_run(experiment_id, tags=tags)
        for path, text in artifacts.items():
            store.log_text(run.info.run_id, text, path)
        store.set_terminated(run.info.run_id)
        return run.info.run_id

    return make


def evaluate(*arguments):
    return invoke("evaluate", *arguments)


def build_name(rows, first=0):
    return {f"results/acc_after_{first + i}.json": json.dumps(row) for i, row in enumerate(rows)}


def test_rows_of_other_programs_are_scored(store, foreign):
    run_id = foreign(build_name([INITIAL, *SQUARE]), dataset="clear10", seed="7", strategy="mine")
    done = evaluate("--runs", run_id, "--rows", PATTERN)
    assert done.exit_code == 0, done.output
    run = store.get_run(run_id)
    record = assemble(read_rows(store, run))
    np.testing.assert_array_equal(record.matrix.values, SQUARE)
    np.testing.assert_array_equal(record.matrix.initial, INITIAL)
    assert (record.dataset.name, record.seed) == ("clear10", 7)
    assert run.data.metrics["clear/in_domain_accuracy"] == np.mean([0.75, 0.875, 0.9375])
    assert "renate/forward_transfer" in run.data.metrics
    listed = {file.path for file in store.list_artifacts(run_id, "results")}
    assert listed == set(build_name([INITIAL, *SQUARE]))
    again = evaluate("--runs", run_id, "--rows", PATTERN)
    assert "1 unchanged" in again.output
    assert evaluate("--runs", run_id).exit_code == 0


def test_partially_written_rows_are_completed(store, foreign):
    run_id = foreign(build_name(SQUARE, first=1))
    for _ in range(2):
        done = evaluate("--runs", run_id, "--rows", PATTERN)
        assert done.exit_code == 0, done.output
        run = store.get_run(run_id)
        assert assemble(read_rows(store, run)).missing == ()
        (rows_folder(run) / "row_002.json").unlink()


def test_rows_of_a_training_are_not_completed_from_other_files(store, foreign):
    """Other files may be of another measurement."""
    name = "row_001.json"
    own = {f"accuracy_matrix/rows/{name}": row_texts()[name]}
    run_id = foreign({**build_name(SQUARE, first=1), **own})
    evaluate("--runs", run_id, "--rows", PATTERN)
    assert list(read_rows(store, store.get_run(run_id))) == [name]


def test_what_was_not_read_is_reported(store, foreign):
    name = "row_001.json"
    own = {f"accuracy_matrix/rows/{name}": row_texts()[name]}
    trained = foreign({**build_name(SQUARE, first=1), **own})
    imported = foreign(build_name(SQUARE, first=1))
    other = foreign({"notes.txt": "none"})
    for _ in range(2):
        done = evaluate("test", "--rows", PATTERN, "--json")
        runs = {run["run_id"]: run["detail"] for run in json.loads(done.stdout)["runs"]}
        assert f"the run's own rows are scored, and {PATTERN!r} is not read" in runs[trained]
        assert runs[other].endswith(f"; no artifact matches {PATTERN!r}")
        assert "not read" not in runs[imported] + runs[other]
    done = evaluate(imported, "--rows", "result/acc_after_{row}.json")
    assert "3 of 3 rows; no artifact matches 'result/acc_after_{row}.json'" in done.stdout


@pytest.mark.parametrize("row", [1, 3])
def test_a_row_that_was_changed_after_its_import_is_an_error(store, foreign, row):
    run_id = foreign(build_name(SQUARE, first=1))
    assert evaluate(run_id, "--rows", PATTERN).exit_code == 0
    store.log_text(run_id, json.dumps([0.25, 0.5, 0.75]), PATTERN.format(row=row))
    done = evaluate(run_id, "--rows", PATTERN)
    assert done.exit_code == 2
    assert f"row {row} in {PATTERN!r} differs from the one that was imported before" in done.output
    matrix = assemble(read_rows(store, store.get_run(run_id))).matrix
    np.testing.assert_array_equal(matrix.values, SQUARE)


def test_each_run_of_an_experiment_is_reported(store, foreign):
    good = foreign(build_name(SQUARE, first=1))
    bad = foreign({**build_name(SQUARE, first=1), "results/acc_after_2.json": "[0.5"})
    foreign({"notes.txt": "none"})
    complete_run = foreign({"results/acc_after_all.csv": files.savetxt(SQUARE)})
    done = evaluate("--runs", "test", "--rows", PATTERN)
    assert done.exit_code == 2
    assert f"error: run {bad}: 'acc_after_2.json': is not JSON" in done.output
    assert "1 failed, 1 scored, 2 skipped" in done.output
    assert "clear/accuracy" in store.get_run(good).data.metrics
    options = ("--runs", complete_run, "--rows", "results/*.csv")
    assert "pass --rows-orientation rows or --rows-orientation" in evaluate(*options).output
    done = evaluate(*options, "--rows-orientation", "rows")
    assert done.exit_code == 0, done.output
    assert "clear/accuracy" in store.get_run(complete_run).data.metrics


def test_scale_and_future_options_apply_to_rows(store, foreign):
    rows = [[75, 0, 0], [62.5, 87.5, 0], [50, 56.25, 93.75]]
    run_id = foreign(build_name(rows, first=1))
    options = ["--runs", run_id, "--rows", PATTERN]
    assert "pass --rows-scale percent" in evaluate(*options).output
    assert "--rows-future not-tested" in evaluate(*options, "--rows-scale", "percent").output
    done = evaluate(*options, "--rows-scale", "percent", "--rows-future", "not-tested")
    assert done.exit_code == 0, done.output
    metrics = store.get_run(run_id).data.metrics
    assert metrics["clear/accuracy"] == pytest.approx(
        np.mean([75, 62.5, 87.5, 50, 56.25, 93.75]) / 100
    )
    assert "clear/forward_transfer" not in metrics
    assert "rows must be written" in evaluate(*options, "--dry-run").output
