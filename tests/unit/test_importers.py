"""Results of other programs: every format as the program writes it."""

import json
import math
import os

import numpy as np
import pytest
import result_files as files
from one_line_errors import check_error

from clear_mlflow import importers
from clear_mlflow.core.errors import ConfigError, DataError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.importers._base import PrintedNumber
from clear_mlflow.metrics import FAMILIES
from clear_mlflow.report.exports import format_matrix_csv, format_matrix_json

NAN = math.nan
SQUARE = [[0.75, 0.5, 0.25], [0.625, 0.875, 0.375], [0.5, 0.5625, 0.9375]]
PAST_ONLY = [[0.75, NAN, NAN], [0.625, 0.875, NAN], [0.5, 0.5625, 0.9375]]
ZEROS = [[0.75, 0.0, 0.0], [0.625, 0.875, 0.0], [0.5, 0.5625, 0.9375]]
INITIAL = [0.125, 0.0, 0.25]
# Twelve experiences: Exp010 stands before Exp002 in no list, and behind it in every list of texts.
TWELVE = [[round(0.3 + 0.05 * i + 0.001 * j, 4) for j in range(12)] for i in range(12)]
RENATE = "metrics_summary_update_2_2026-01-31.csv"
PARTS = {"matrix": SQUARE, "initial": INITIAL}
PAST = AccuracyMatrix(PAST_ONLY, INITIAL)
CSV = files.savetxt(SQUARE, delimiter=",")
AS_ROWS = {"orientation": "rows"}
RMSE = Score("rmse")
MAMMOTH = files.mammoth_line(SQUARE, eval_future=True)
PERCENT_ROWS = {"scale": "percent", **AS_ROWS}
INITIAL_FIRST = {"initial": "first-row"}
TWO_BY_TWO = np.array(SQUARE)[:2, :2]
AVALANCHE = files.avalanche_results([INITIAL, *SQUARE])


def result_file(name: str, content: str | bytes, **options) -> importers.ResultFile:
    encoded = content.encode() if isinstance(content, str) else content
    return importers.ResultFile(name, encoded, importers.ReadOptions(**options))


def read(name: str, content: str | bytes, format_name: str = "auto", **options) -> AccuracyMatrix:
    (run,) = importers.parse_runs(result_file(name, content, **options), format_name)
    return run.matrix


def assert_equal(matrix: AccuracyMatrix, rows, initial=None) -> None:
    np.testing.assert_array_equal(matrix.values, rows)
    assert (matrix.initial is None) == (initial is None)
    if initial is not None:
        np.testing.assert_array_equal(matrix.initial, initial)


# Name of the format, name of the file, content, rows, initial row, what a person has to say.
SAMPLES = [
    ("text", "acc.csv", CSV, SQUARE, None, AS_ROWS),
    ("text", "a", files.savetxt(SQUARE, header="acc"), SQUARE, None, AS_ROWS),
    ("text", "a.tsv", files.savetxt(SQUARE, delimiter="\t", fmt="%g"), SQUARE, None, AS_ROWS),
    ("text", "a.csv", files.savetxt(np.multiply(SQUARE, 100)), SQUARE, None, PERCENT_ROWS),
    ("text", "a.csv", "0.75,,\n0.625,0.875,\n0.5,0.5625,0.9375", PAST_ONLY, None, {}),
    ("text", "a.csv", "0.75\n0.625,0.875\n0.5,0.5625,0.9375", PAST_ONLY, None, {}),
    ("text", "a.csv", "0,1,2\n" + CSV, SQUARE, None, AS_ROWS),
    ("text", "a.csv", "bucket,1,2\n1,0.75,0.5\n2,0.625,0.875", TWO_BY_TWO, None, AS_ROWS),
    ("text", "matrix.csv", format_matrix_csv(PAST), PAST_ONLY, INITIAL, {}),
    ("text", "a", files.savetxt([INITIAL, *SQUARE]), SQUARE, INITIAL, {"initial": "first-row"}),
    ("text", "a.csv", files.savetxt(ZEROS), PAST_ONLY, None, {"future": "not-tested"}),
    ("numpy", "acc.npy", files.npy(np.array(SQUARE)), SQUARE, None, AS_ROWS),
    ("numpy", "acc.npz", files.npz(R=SQUARE, initial=INITIAL, loss=SQUARE), SQUARE, INITIAL, {}),
    ("json", "acc.json", json.dumps(SQUARE), SQUARE, None, AS_ROWS),
    ("json", "a.json", json.dumps(PARTS), SQUARE, INITIAL, {}),
    ("json", "matrix.json", format_matrix_json(PAST), PAST_ONLY, INITIAL, {}),
    ("avalanche-csv", "e.csv", files.avalanche_csv(TWELVE, TWELVE[0]), TWELVE, TWELVE[0], {}),
    ("avalanche-results", "eval.json", files.avalanche_results(TWELVE), TWELVE, None, {}),
    ("avalanche-results", "e.json", AVALANCHE, SQUARE, INITIAL, INITIAL_FIRST),
    ("renate-csv", RENATE, files.renate_csv(SQUARE), SQUARE, None, {}),
    ("renate-results", "r.json", files.renate_results(SQUARE, INITIAL), SQUARE, INITIAL, {}),
    ("mammoth", "logs.pyd", files.mammoth_line(PAST_ONLY), PAST_ONLY, None, {}),
    ("mammoth", "logs.pyd", files.mammoth_line(PAST_ONLY, numpy_2=True), PAST_ONLY, None, {}),
    ("mammoth", "logs.pyd", MAMMOTH, SQUARE, None, {}),
    ("mammoth", "a.pyd", files.mammoth_line(SQUARE[:2], eval_future=1), SQUARE[:2], None, {}),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample[0]} {sample[1]}")
def test_every_format_is_detected_and_read(sample):
    format_name, name, content, rows, initial, options = sample
    assert importers.detect_format(result_file(name, content)).name == format_name
    assert_equal(read(name, content, **options), rows, initial)
    assert_equal(read(name, content, format_name, **options), rows, initial)


TRANSPOSED = [list(column) for column in zip(*ZEROS, strict=True)]
EMPTIES = "0.75,0.625,0.5\n,0.875,0.5625\n,,0.9375\n"
CLARENA = "after_training_task,average_accuracy,test_on_task_1,test_on_task_2,test_on_task_3\n"
CLARENA += "1,0.75,0.75\n2,0.75,0.625,0.875\n3,0.66666667,0.5,0.5625,0.9375\n"
ROWS = [",".join(map(str, row)) for row in SQUARE]


@pytest.mark.parametrize(
    ("content", "options", "rows"),
    [
        # PyCIL prints a row per bucket tested; trainer.py at 87cc411.
        (str(np.array(TRANSPOSED)), {"future": "not-tested"}, PAST_ONLY),
        (files.savetxt(TRANSPOSED), {"future": "not-tested"}, PAST_ONLY),
        (EMPTIES, {}, PAST_ONLY),
        (json.dumps(np.transpose(PAST_ONLY).tolist()), {}, PAST_ONLY),
        ("tested_on,1,2,3\n" + "\n".join(f"{j + 1},{row}" for j, row in enumerate(ROWS)), {}, None),
        (CSV, {"orientation": "columns"}, None),
        (EMPTIES, {"orientation": "rows"}, np.transpose(PAST_ONLY)),
        (",0.5,0.25\n,,0.375\n,,\n", {}, [[NAN, 0.5, 0.25], [NAN, NAN, 0.375]]),
        ("trained,1,2\n1,0.75,0.5\n2,,0.875\n", {}, [[0.75, 0.5], [NAN, 0.875]]),
        # NumPy breaks long rows.
        (str(np.array(SQUARE)), AS_ROWS, SQUARE),
        (str(np.full((12, 12), 0.123456789)), {}, np.full((12, 12), 0.12345679)),
        # CLArena: clarena/metrics/cl_acc.py at bf58528.
        (CLARENA, {}, PAST_ONLY),
        (f"epoch,task1,task2,task3,avg,std\n1,{ROWS[0]},0.5,0.1\n", {}, SQUARE[:1]),
        (",1,2,3\n3," + f"{ROWS[2]}\n1,{ROWS[0]}\n2,{ROWS[1]}\n", AS_ROWS, SQUARE),
        (f"x,b,c,v\nv,{ROWS[2]}\nb,{ROWS[0]}\nc,{ROWS[1]}\n", {"columns": tuple("bcv")}, SQUARE),
        (f"after 3,{ROWS[2]}\nafter 1,{ROWS[0]}\nafter 2,{ROWS[1]}\n", {}, SQUARE),
        (f"2,{ROWS[1]}\n3,{ROWS[2]}\n1,{ROWS[0]}\n", {"row_labels": "use", **AS_ROWS}, SQUARE),
        (f"9,{ROWS[0]}\n5,{ROWS[1]}\n7,{ROWS[2]}\n", {"row_labels": "ignore", **AS_ROWS}, SQUARE),
        ("lr,b,a,c\n1,0.5,0.75,0.25\n", {"columns": ("a", "b", "c")}, SQUARE[:1]),
        ("9,0.5,0.75,0.25\n", {"columns": ("3", "2", "4")}, SQUARE[:1]),
    ],
)
def test_labels_zeros_and_names_decide_what_a_cell_is(content, options, rows):
    matrix = read("acc.txt", content, **options)
    np.testing.assert_allclose(matrix.values, np.transpose(SQUARE) if rows is None else rows)


YEARS = "after 2004;90,1;50\nafter 2005;80;91,5\n"
LATE = "t1,t2,t3,t4", ".8,.9,.5,.4", ".7,.8,.9,.5", ".6,.7,.8,.9"
LATE_ROWS = [[NAN] * 4, [0.8, 0.9, 0.5, 0.4], [0.7, 0.8, 0.9, 0.5], [0.6, 0.7, 0.8, 0.9]]


def write_late(names: str, *labels: str) -> str:
    """Return a table whose first row was tested after the second bucket."""
    lines = [f"{label},{row}" for label, row in zip(labels, LATE[1:], strict=False)]
    return "\n".join([f",{names}" if names else "", *lines])


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (write_late(LATE[0], "after 2", "after 3", "after 4"), {}),
        (write_late(LATE[0], "task 2", "task 3", "task 4"), {}),
        (write_late(LATE[0], "after 4", "after 2", "after 3")
         .replace("4,.8,.9,.5,.4", "2,.8,.9,.5,.4").replace("after 2,.7", "after 3,.7")
         .replace("after 3,.6", "after 4,.6"), {}),
        (write_late("y2004,y2005,y2006,y2007", "after 2005", "after 2006", "after 2007"), {}),
        (write_late("2004,2005,2006,2007", "after 2005", "after 2006", "after 2007"), {}),
        (write_late("2004,2005,2006,2007", "2005", "2006", "2007"), {}),
        (write_late("2004,2005,2006,2007", "2005", "2006", "2007")[1:], {}),
        (write_late(LATE[0], "2", "3", "4"), {"row_labels": "use"}),
        (write_late("", "after 2", "after 3", "after 4"), {}),
        (write_late("a,b,c,d", "after b", "after c", "after d"), {}),
    ],
)  # fmt: skip
def test_rows_that_start_at_a_later_bucket_keep_their_place(content, options):
    matrix = read("late.csv", content, **options)
    np.testing.assert_array_equal(matrix.values, LATE_ROWS)


@pytest.mark.parametrize(
    ("content", "options", "rows", "buckets"),
    [
        # Some programs write a separator at the end of each line.
        ("t1,t2,t3,\n.9,,,\n.8,.9,,\n.7,.8,.9,\n", {}, 3, "t1 t2 t3"),
        (".9;\n.8;.9;\n.7;.8;.9;\n", {}, 3, "1 2 3"),
        (".9\t\t\t\n.8\t.9\t\t\n.7\t.8\t.9\t\n", {}, 3, "1 2 3"),
        # CLEAR's buckets, with Excel's decimal commas.
        (f";2004;2005\n{YEARS}", {"scale": "percent"}, 2, "2004 2005"),
        (f"2004;2005\n{YEARS}", {"scale": "percent"}, 2, "2004 2005"),
        ("# a\n,2004,2005\n2004,.9,\n2005,.8,.9\n", {}, 2, "2004 2005"),
        # CLArena, from the start and from its second line on.
        (CLARENA, {}, 3, "1 2 3"),
        (CLARENA.replace("1,0.75,0.75\n", ""), {"orientation": "rows"}, 3, "1 2 3"),
        ("x,eval_on_pix,eval_on_art\nafter pix,.9,.1\nafter art,.8,.7\n", {}, 2, "pix art"),
        # Pasted from Python.
        ("tensor([[0.9, nan],\n        [0.8, 0.7]], device='cuda:0')\n", {}, 2, "1 2"),
        ("acc = np.array([[0.9, nan], [0.8, 0.7]])\n", {}, 2, "1 2"),
    ],
)  # fmt: skip
def test_nameless_columns_and_words_before_names_are_left_out(content, options, rows, buckets):
    matrix = read("a.csv", content, **options)
    assert (matrix.num_rows, matrix.buckets) == (rows, tuple(buckets.split()))


TRANSPOSED_PARTS = {"matrix": TRANSPOSED, "strategy": "er"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(TRANSPOSED_PARTS)),
        ("a.json", json.dumps({"values": TRANSPOSED, "initial": INITIAL})),
        ("a.npz", files.npz(matrix=TRANSPOSED)),
    ],
)
def test_a_matrix_called_matrix_may_be_transposed(name, content):
    assert_equal_past = read(name, content, future="not-tested").values
    np.testing.assert_array_equal(assert_equal_past, PAST_ONLY)
    upper = '{"matrix": [[0.5, 0.4], [0, 0.6]]}'
    check_error(RecordError, "contains 0 below the diagonal", read, "a.json", upper)
    assert_equal(read("a.json", json.dumps({"matrix": SQUARE})), SQUARE)


def test_previews_and_averages_belong_to_the_labelled_order():
    lines = [f"{i + 1},{row}" for i, row in enumerate(ROWS)]
    previews = []
    for order in (lines, lines[::-1]):
        table = "\n".join([",t1,t2,t3", *order])
        previews.append(check_error(RecordError, "", read, "a.csv", table))
    assert previews[0] == previews[1]
    assert "with rows as tests: average 0.667, forgetting 0.281" in previews[0]
    averages = [f"{lines[i]},{np.mean(row[: i + 1])}" for i, row in enumerate(SQUARE)]
    for order in (averages, averages[::-1], averages[:0:-1]):
        table = "\n".join(["task,t1,t2,t3,average", *order])
        (run,) = importers.parse_runs(result_file("a.csv", table))
        np.testing.assert_array_equal(run.matrix.values[1:], SQUARE[1:])
        assert run.proof.startswith("rows as training: fits average of a line 0.666667")


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (f"x,c,b,a\na,{ROWS[0]}\nb,{ROWS[1]}\nc,{ROWS[2]}\n", "another order; pass row_labels=ign"),
        (",b c,a\nafter a,.5,.4\nafter b c,.3,.4\n", "are in another order"),
        (f"tested_on,1,2,3\n3,{ROWS[0]}\n1,{ROWS[1]}\n2,{ROWS[2]}\n", "are in another order"),
        ("after 2,.5,.4,.3,.2\nafter 3,.5,.4,.3,.2\n", "no names of buckets, which do not show"),
        (",a,b,c\nafter 2004,.5,.4,.3\nafter 2005,.5,.4,.3\n", "do not show after which bucket"),
        # Names that no column has show a bucket only if no row is missing.
        (",t1,t2,t3\nsecond,.5,.4,.3\nthird,.5,.4,.3\n", "do not show after which bucket"),
        ("cow,.5,.4,.3\nhen,.5,.4,.3\n", "no names of buckets, which do not show"),
        (",t1,t2,t3\nx,.5,.4,.3\n", "do not show after which bucket"),
        (",b1,b2,b3\n1,.5,.4,.3\nx,.4,.5,.3\n", "do not show after which bucket"),
        # Either after experience 1, or after one experience.
        (",task_0,task_1,task_2\nafter_1,.5,.4,.3\nafter_2,.4,.5,.3\n", "do not show after which"),
        (",t1,t2\nt1,.5,.4\nnan,.4,.5\n", "labels row 2 'nan'; expected a bucket"),
        (",a,b\n,.5,.4\n", "labels row 1 ''; expected a bucket"),
        ("2004,2005\n90,50\n", "2005.0, which is not an accuracy: .* pass buckets='2004,2005'"),
        ("a,b\n.5,.4,.3\n", "names 2 columns, but has a line of 3 cells"),
        ("0.5,0.4\n0,0.9\n", 'pass orientation="columns"'),
        ("0.1,0.2\n0.3,0.4\n0.5,0.6\n", 'orientation="columns"'),
        ("lr,b1,b2\n0.1,0.5,0.4\n0.1,0.3,0.9\n", "pass columns="),
        (",3,1,2\n1,0.5,0.4,0.3\n", "pass columns="),
        (",0,1,2\n1,0.5,0.4,0.3\n2,0.5,0.4,0.3\n", "pass row_labels=ignore"),
        (",1,2,3\n1,0.5,0.4,0.3\n1,0.5,0.4,0.3\n", "pass row_labels=ignore"),
        (",a,b,c\n1,0.5,0.4,0.3\n3,0.5,0.4,0.3\n", "pass row_labels=ignore"),
        (str(np.zeros((40, 40))), "save it with numpy.savetxt"),
    ],
)
def test_an_ambiguous_file_is_an_error_that_names_the_option(content, advice):
    with pytest.raises(RecordError, match=advice):
        read("acc.txt", content)


def test_reading_options_that_a_format_contradicts_are_rejected():
    avalanche = ("e.csv", files.avalanche_csv(SQUARE))
    for name, value in (
        *(("orientation", "columns"), ("initial", "first-row"), ("scale", "percent")),
        ("score", Score("rmse", higher_is_better=False)),
    ):
        with pytest.raises(ConfigError, match=f"; leave {name} out") as error:
            read(*avalanche, **{name: value})
        assert error.value.parameter == name
    message = "columns is '1,x', but the file lacks the column 'x'; choose from '1,2,3'"
    check_error(ConfigError, message, read, "a.csv", CSV, columns=("1", "x"))


def test_names_of_buckets_in_another_order_are_rejected():
    """--buckets renames columns, and does not move them."""
    for name, content in (
        ("a.csv", f"a,b,c\n{CSV}"),
        ("a.json", json.dumps({"matrix": SQUARE, "buckets": ["a", "b", "c"]})),
    ):
        message = "buckets is 'c,b,a', but the file has the order 'a,b,c'"
        check_error(ConfigError, message, read, name, content, buckets=tuple("cba"), **AS_ROWS)
        assert read(name, content, buckets=tuple("xyz"), **AS_ROWS).buckets == ("x", "y", "z")


def test_a_row_of_zeros_before_the_last_is_a_row():
    """future=not-tested removes only rows of zeros at the end, of buckets that were not trained."""
    rows = [[0.75, 0, 0], [0, 0, 0], [0.5, 0.5625, 0.9375]]
    expected = [[0.75, NAN, NAN], [0, 0, NAN], [0.5, 0.5625, 0.9375]]
    assert_equal(read("a.csv", files.savetxt(rows), future="not-tested"), expected)


@pytest.mark.parametrize(
    ("cell", "is_possible"),
    [("0.3", True), ("0.33333", True), ("0.33", True), ("0.333331", False), ("0.34", False)],
)
def test_an_accuracy_is_rounded_to_one_to_five_digits(cell, is_possible):
    if is_possible:
        assert read("a.csv", f"{cell},1\n", num_instances=(3,)).values[0, 0] == float(cell)
    else:
        message = "which no number of 3 test images results in"
        check_error(RecordError, message, read, "a.csv", f"{cell},1\n", num_instances=(3,))


def test_every_format_has_a_sample():
    # By test_importers_logs.py, test_importers_rows.py and test_importers_tables.py.
    read_as_logs = {"pycil", "libcontinual", "zscl", "mtil", "log-rows", "long-table"}
    assert {sample[0] for sample in SAMPLES} == set(importers.FORMATS) - read_as_logs


def test_runs_that_stopped_have_fewer_rows():
    two = SQUARE[:2]
    assert_equal(read("eval_results.csv", files.avalanche_csv(two)), two)
    assert_equal(read("e.json", files.avalanche_results(two)), two)
    assert_equal(read(RENATE, files.renate_csv(two)), two)
    stopped = files.savetxt([*ZEROS[:2], [0, 0, 0]])
    assert_equal(read("acc_taw.txt", stopped, future="not-tested"), PAST_ONLY[:2])


def test_each_line_of_mammoth_is_a_run():
    lines = [files.mammoth_line(PAST_ONLY, seed=seed, backbone="resnet18") for seed in (0, 1)]
    two = importers.parse_runs(result_file("logs.pyd", "".join(lines)))
    assert [run.label for run in two] == ["line 1", "line 2"]
    assert [run.metadata["seed"] for run in two] == ["0", "1"]
    parameters = {"strategy": "derpp", "dataset": "seq-cifar10", "model": "resnet18"}
    assert two[0].metadata == {**parameters, "seed": "0"}
    (run,) = importers.parse_runs(result_file("logs.pyd", files.mammoth_line(PAST_ONLY, seed=None)))
    assert "seed" not in run.metadata


def test_a_mammoth_line_is_never_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = files.mammoth_line(PAST_ONLY).replace("0.03", "open('x', 'w'), <object at 0x7f>, -[1]")
    assert_equal(read("logs.pyd", line), PAST_ONLY)
    assert not list(tmp_path.iterdir())


def test_avalanches_unmonitored_zero_is_not_an_accuracy():
    """Its CSV logger writes a bare 0 for missing values. 0.0000 was measured."""
    text = files.avalanche_csv(SQUARE).replace("0.2500", "0").replace("0.5625", "0.0000")
    expected = [[0.75, 0.5, NAN], [0.625, 0.875, 0.375], [0.5, 0.0, 0.9375]]
    assert_equal(read("eval_results.csv", text), expected)


@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0)])
def test_avalanches_buckets_are_in_the_order_of_training(order):
    """The file has numbers of experiences; the stream is as they were trained."""
    header, *lines = files.avalanche_csv(SQUARE, INITIAL).splitlines()
    numbered = [header]
    for tested, trained, rest in (line.split(",", 2) for line in lines):
        row = trained if trained == "None" else order[int(trained)]
        numbered.append(f"{order[int(tested)]},{row},{rest}")
    matrix = read("eval_results.csv", "\n".join(numbered))
    assert_equal(matrix, SQUARE, INITIAL)
    assert matrix.buckets == tuple(str(number + 1) for number in order)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0)])
def test_avalanches_results_are_in_an_order_that_is_proven_or_stated(order):
    """Tests that each add an experience prove it; otherwise it is by number, and called that."""
    numbered = np.array(SQUARE)[:, np.argsort(order)]
    names = tuple(str(number + 1) for number in order)
    (run,) = importers.parse_runs(result_file("e.json", files.avalanche_results(numbered)))
    assert run.matrix.buckets == ("1", "2", "3")
    assert run.proof.startswith("experiences by number, which proves no order of training")
    (run,) = importers.parse_runs(
        result_file("e.json", files.avalanche_results(numbered), buckets=names)
    )
    assert (run.matrix.buckets, run.proof) == (names, "")
    assert_equal(run.matrix, SQUARE)
    tests = json.loads(files.avalanche_results(numbered))
    for i, test in enumerate(tests):
        for number in order[i + 1 :]:
            del test[files.avalanche_name(number)]
    (run,) = importers.parse_runs(result_file("e.json", json.dumps(tests)))
    assert (run.matrix.buckets, run.proof) == (names, "")
    assert_equal(run.matrix, PAST_ONLY)


def test_avalanches_collected_metrics_are_all_of_its_tests():
    """The result of ``get_all_metrics``: each key with its steps and values."""
    collected = {files.avalanche_name(j): [[0, 1, 2], [row[j] for row in SQUARE]] for j in range(3)}
    assert_equal(read("all.json", json.dumps(collected)), SQUARE)


def test_avalanches_test_stream_is_preferred():
    def streams(**rows):
        cells = {}
        for stream, row in rows.items():
            cells |= {files.avalanche_name(j, stream): cell for j, cell in enumerate(row)}
        return json.dumps([cells] * 3)

    assert_equal(read("e.json", streams(train=SQUARE[1], test=SQUARE[0])), [SQUARE[0]] * 3)
    assert_equal(read("e.json", streams(valid=SQUARE[0])), [SQUARE[0]] * 3)
    other = streams(valid=SQUARE[0], train=SQUARE[1])
    check_error(RecordError, "expected one called test", read, "e.json", other)


def test_imported_matrices_have_capymoas_scores():
    """Counts of 40, and the scores of CapyMOA 0.15.1 (``_OCLEvaluator``)."""
    right = [[39, 11, 13, 11], [36, 36, 11, 12], [30, 30, 37, 17], [29, 33, 34, 39]]
    matrix = read("ocl.npz", files.npz(matrix=np.array(right, np.float32) / 40))
    capymoa_values = {
        "accuracy_all_avg": 0.6531249955296516,
        "accuracy_seen_avg": 0.8817708343267441,
        "accuracy_final": 0.84375,
        "forward_transfer": 0.3125,
        "backward_transfer": -0.14166666567325592,
    }
    for metric in FAMILIES["capymoa"]:  # theirs are of 32 bits
        expected = capymoa_values[metric.name.removeprefix("capymoa/")]
        assert metric.function(matrix) == pytest.approx(expected, abs=1e-6)


def test_counts_and_keys_are_read_or_passed():
    stored = {"matrix": SQUARE, "num_instances": [16, 32, 48], "buckets": ["a", "b", 3]}
    stored |= {"seed": 2**70, "strategy": "er", "model": True}
    (run,) = importers.parse_runs(result_file("a.json", json.dumps(stored)))
    matrix = run.matrix
    assert (matrix.num_instances.tolist(), matrix.buckets) == ([16, 32, 48], ("a", "b", "3"))
    assert run.metadata == {"strategy": "er"}
    counted = read("a.csv", CSV, num_instances=(160,), buckets=("x", "y", "z"), **AS_ROWS)
    assert (counted.num_instances.tolist(), counted.buckets) == ([160] * 3, ("x", "y", "z"))
    years = read("a.csv", "2004,2005\n0.5,0.25\n0.5,0.75\n", buckets=("2004", "2005"), **AS_ROWS)
    assert (years.num_rows, years.buckets) == (2, ("2004", "2005"))
    # 0.333 is a third to its last digit, and 549.0 / 550 to more of them.
    assert read("a.csv", "0.333,1\n1,0.99818181\n", num_instances=(3, 550), **AS_ROWS).num_rows == 2
    npz = files.npz(R=SQUARE, num_instances=[16, 32, 48], buckets=["a", "b", "c"])
    assert read("a.npz", npz, **AS_ROWS).buckets == ("a", "b", "c")


TRAINING = "training_exp,epoch,training_accuracy,val_accuracy,training_loss,val_loss\n0,1,0.5,0,1,0"
# Contents of a.csv, which is read without options.
WRONG_TEXTS = [
    *(
        (
            f"0.9,{cell},0.3\n0.5,0.6,0.7\n0.4,0.8,0.9",
            "neither a line of numbers nor a line of names",
        )
        for cell in ("inf", "oops", "true", "0x1p-1", "0.1_5", "٠")
    ),
    ("0.5,0\n0.3,0.9", 'pass future="not-tested"'),
    ("0.1,0.2\n0.5,0.4\n0.3,0.9", 'pass initial="first-row"'),
    ("0.5\n-0.1,0.9", "never below 0"),
    ("nan,nan\nnan,nan", "no measured accuracy"),
    ("Task ID,loss\n,Task 1\n1,0.5\n", "expected 'accuracy'"),
    ("oops,0.8\n0.5,0.6\n", "contains 'oops' in line 1, cell 1; expected a number"),
    ("model,1,2\n1,0.9,0.8\n2,0.7,0.6\n", "contains 'model' in line 1, cell 1; expected a number"),
    ("tested,a1,a2\n0,0.5\n", "contains 1 row of numbers, but names 2"),
    ("", "is empty; expected a file of results"),
    ("\ufeff\n \r\n", "is empty; expected a file of results"),
    ("t1,t2\n", "contains no line of numbers"),
    ("t1;t2\n\n91.2;50.1 ± x\n", "contains '50.1 ± x' in line 3, cell 2, and is in"),
    ("x,y\n0.5,0.4\n\n# a\n0.3,x\n", "contains 'x' in line 5, cell 2; expected a number"),
    (";t1;t2\na;0,5;0,4\nb;0,5;o\n", "contains 'o' in line 3, cell 3; expected a number"),
]
VALIDATED = files.mammoth_line(SQUARE, eval_future=False, validation=1)
FOURTH_TASK = "'accuracy_1_task4': 5, 'forward"
WRONG = [
    *(("a.csv", content, {}, part) for content, part in WRONG_TEXTS),
    ("a.csv", "92,8\n7,9", AS_ROWS, "contains 92.0, which is not a fraction: if they are percent,"),
    ("a.csv", "0.5\n0.3,0.9", {"scale": "percent"}, 'scale="percent" seems wrong'),
    ("a.csv", "0.5,0.1\n0.3,0.9", {"future": "not-tested", **AS_ROWS}, "cannot be true"),
    ("a.csv", "0.5,0.5", {"score": RMSE, "scale": "fraction"}, "which applies only to accuracies"),
    ("logs.pyd", files.mammoth_line(SQUARE), {"scale": "fraction"}, "as percent; leave scale"),
    (RENATE, files.renate_csv(SQUARE), {"scale": "percent"}, "as fraction; leave scale out"),
    ("logs.pyd", files.mammoth_line(SQUARE), {"initial": "first-row"}, "leave initial out"),
    ("training_results.csv", TRAINING, {}, "import eval_results.csv"),
    ("e.csv", files.avalanche_csv(SQUARE) + "0,0,0.1,1,0\n", {}, "two trainings on experience 0"),
    ("e.csv", files.avalanche_csv([[0, 0]]).replace("0.0000", "0"), {}, "monitor"),
    ("e.json", '[{"Top1_Acc_Stream/eval_phase/test_stream": 0.5}]', {}, "contains no Top1_Acc_Exp"),
    ("metrics_summary.csv", "Task ID,Average Accuracy,Forgetting\n1,0.5,0.0\n", {}, "no matrix"),
    ("logs.pyd", "{'accmean_task1': 50.0}\n", {}, "line 1 contains no accuracy_"),
    ("logs.pyd", files.mammoth_line(SQUARE)[:-5], {}, "line 1 is"),
    ("logs.pyd", "{'accuracy_2_task9': 50.0}", {}, "contains tasks [2] at test 9; expected 1, 2"),
    ("logs.pyd", "{'accuracy_1_task1': 5, 'accuracy_2_task1': 5}", {}, "2 accuracies of past"),
    ("logs.pyd", VALIDATED.replace("'forward", FOURTH_TASK), {}, "--validation, --eval_epochs"),
    ("logs.pyd", MAMMOTH.replace("'accuracy_2_task2'", "'x'"), {}, "1 of future tasks after task"),
    *(
        ("a.csv", f"{line}\n{rows}", options, "line names the buckets, pass buckets='2004,2005'")
        for line, rows in (("2004,2005", "0.5,0.4\n0.3,0.9"), (",2004,2005", "1,0.5,0.4"))
        for options in ({}, {"scale": "percent"}, {"scale": "fraction"})
    ),
    *(
        ("a.csv", f"{corner},2004,2005\n{label},0.5,0.4", {"score": score}, "buckets='2004,2005'")
        for corner, label in (("bucket", "1"), ("Task", "b"))
        for score in (ACCURACY, RMSE)
    ),
    ("a.csv", "0.5,1\n", {"num_instances": (3,)}, "0.5, which no number of 3 test"),
    ("a.json", "[[0.5, 0.4], [0.3]]", {}, "contains rows of [2, 1] numbers; expected a number for"),
    ("logs.pyd", "{'accuracy_1_task1': f(5)}", {}, "expected a number"),
    ("logs.pyd", "{'accuracy_1_task99999': 5.0}", {}, "buckets are read"),
    ("a.npz", files.npz(a=SQUARE, b=SQUARE), {}, "expected one matrix"),
    ("a.npz", files.npz(a=SQUARE), {"future": "not-tested", **AS_ROWS}, "other than 0"),
    ("e.json", json.dumps({files.avalanche_name(0): 0.5}), {}, "expected its steps and its values"),
    ("a.npy", files.npy(np.array([SQUARE], dtype=object)), {}, "expected numbers"),
    ("a.npy", files.npy(np.array(SQUARE))[:-8], {}, "is cut off"),
    ("a.json", '{"a": [[0.5]]}', {}, "expected one of matrix"),
    ("a.json", '[[0.5, "x"]]', {}, "the matrix[0][1]: expected 'float"),
    ("a.json", '{"matrix": [[0.5]], "buckets": "a"}', {}, "buckets: expected 'array"),
    ("a.json", '{"matrix": [[0.5]], "buckets": [' + "9" * 101 + "]}", {}, "1 to 100"),
    ("notes.txt", "We had fun.\n", {}, "contains no line of numbers, and is in an unknown format"),
    ("a.md", "| a | b |\n|---|---|\n| 0.9 | x |\n", {}, "contains 'x' in line 3, cell 2, and"),
    ("a.txt", "tensor([[0.5, oops],\n  [0.4, 0.3]])", {}, "contains 'oops' in line 1, cell 2"),
    ("a.bin", b"\xff\xfe\x00", {}, "is in an unknown format"),
    ("a.json", '{"matrix": [[0.5, "nan"]]}', {}, "the matrix[0][1]: expected 'float"),
    ("a.json", '{"matrix": [[0.5]], "buckets": [NaN]}', {}, "buckets[0]: expected"),
    ("a.npz", files.npz(matrix=SQUARE, buckets=[1.0, NAN, 2]), {}, "buckets[0]: expected"),
]


@pytest.mark.parametrize(("name", "content", "options", "part"), WRONG)
def test_invalid_or_unknown_files_are_one_line_errors(name, content, options, part):
    message = check_error((RecordError, ConfigError), part, read, name, content, **options)
    assert name in message
    assert len(message) < 500


def test_sizes_are_limited_before_memory_is_allocated(tmp_path):
    bomb = files.npz(matrix=np.zeros((3000, 1000)))
    assert len(bomb) < 100_000
    header = files.npy(np.zeros((1, 1))).replace(b"(1, 1), ", b"(999, 999), ")
    for name, content, part in [
        ("a.npz", bomb, "unpacks to more than"),
        ("a.npy", header, "is not an array|is cut off"),
        ("a.npy", files.npy(np.zeros((2, 2000))), "at most 1000"),
        ("a.json", "[" + "[]," * 100_000 + "[]]", "more than 100000 lists"),
        ("a.json", json.dumps([[0.5] * 1001]), "of length <= 1000"),
        ("a.csv", "0.5\n" * 100_000, "more than 1000 rows"),
        ("a.csv", "0.5," * 100_000, "more than 4001 cells"),
        ("a.csv", ",".join(["0.5"] * 1001), "expected 1 to 1000"),
    ]:
        with pytest.raises(RecordError, match=part):
            importers.parse_runs(result_file(name, content))
    large = tmp_path / "large.csv"
    large.touch()
    os.truncate(large, (64 << 20) + 1)
    check_error(DataError, "'large.csv' is larger than 64 MiB", importers.load_file, large)
    check_error(DataError, "is not a file", importers.load_file, tmp_path)


def test_row_labels_may_start_with_the_untrained_model():
    """The other labels are numbers, which could be accuracies."""
    rows = [f"{number},{row}" for number, row in enumerate(ROWS, start=1)]
    content = "\n".join(["initial,0.125,0.0,0.25", *rows])
    assert_equal(read("acc.csv", content), SQUARE, INITIAL)


def test_the_largest_allowed_matrix_is_read():
    names = ",".join(["", *(f"b{j}" for j in range(1000))])
    rows = [f"{label}{',' * 999},0.5" for label in ("initial", *range(1, 1001))]
    matrix = read("large.csv", "\n".join([names, *rows]), format_name="text")
    assert matrix.values.shape == (1000, 1000)
    assert matrix.initial[-1] == 0.5
    assert matrix.buckets[-1] == "b999"


@pytest.mark.parametrize(
    ("names", "passed"),
    [
        ([RENATE, "metrics_summary_update_10.csv", "metrics_summary.csv"], [True, False, True]),
        (["training_results.csv", "eval_results.csv"], [True, False]),
        (["training_results.csv"], [False]),
    ],
)
def test_files_next_to_a_matrix_are_skipped(names, passed):
    assert [name in importers.find_skipped_files(names) for name in names] == passed


@pytest.mark.parametrize(
    ("digits", "precision"),
    [("61.25", 0.005), ("61", 0.5), ("6.125e1", 0.005), ("5e-05", 5e-6), ("1e2", 0.5), ("-", 0.5)],
)
def test_a_printed_number_is_known_to_half_a_unit_of_its_last_digit(digits, precision):
    assert PrintedNumber.parse("mean", digits, 1).precision == pytest.approx(precision)


# Cells in percent with one decimal; the averages of the rows and of the columns differ by 0.2.
COARSE = "70.1,40.2,30.3\n60.4,75.1,35.2\n55.3,65.4,80.0\n"


@pytest.mark.parametrize(
    ("average", "orientation"),
    [
        ("66.90", "rows"),  # exactly
        ("66.94", "rows"),  # within +- 0.05
        ("48.50", "columns"),
        ("48.46", "columns"),
    ],
)
def test_a_printed_average_fits_within_the_rounding_of_the_cells(average, orientation):
    matrix = read("m.csv", COARSE + f"Average accuracy: {average}\n", scale="percent")
    rows = np.array([line.split(",") for line in COARSE.split()], dtype=float) / 100
    np.testing.assert_allclose(matrix.values, rows if orientation == "rows" else rows.T)


@pytest.mark.parametrize("average", ["66.96", "66.84", "48.64"])
def test_a_printed_average_beyond_the_rounding_of_the_cells_is_an_error(average):
    content = COARSE + f"Average accuracy: {average}\n"
    check_error(RecordError, "has other averages", read, "m.csv", content, scale="percent")


def test_an_average_that_fits_exactly_decides_between_rows_and_columns():
    """The columns fit within the rounding of the cells only."""
    content = "70.1,60.3\n60.4,75.1\nAverage accuracy: 67.75\n"
    np.testing.assert_allclose(
        read("m.csv", content, scale="percent").values, [[0.701, 0.603], [0.604, 0.751]]
    )


@pytest.mark.parametrize(
    ("name", "content", "options", "advice"),
    [
        ("acc.csv", "0,91.2,10\n1,85.5,90\n", {"scale": "percent"}, "row_labels"),
        ("acc.txt", "1 0.9 0.1\n2 0.8 0.9\n", {}, "row_labels"),
        ("acc.md", "| Model | a | b |\n| 0 | 9.5 | - |\n| 1 | 8.5 | 9 |", {}, "row_labels"),
        ("acc.csv", "0,0.215,0.9\n1,0.642,0.7\n", AS_ROWS, "row_labels"),
        ("acc.tsv", "1\t2\t3\n46.8\t82.3\t73.4\n", {"scale": "percent"}, "buckets"),
        ("acc.md", "| 0 | 1 |\n|---|---|\n| 0.9 | 0.2 |", {}, "buckets"),
        ("a.md", "| 1 | 2 |  |\n| 1 | 77 | 50 |\n| 2 | 39 | 77 |", {"scale": "percent"}, "buckets"),
        ("acc.json", "[[1, 91.2, 10], [2, 85.5, 90]]", {"scale": "percent"}, "row_labels"),
        ("acc.npy", files.npy([[0, 1, 2], [91.2, 10, 5]]), {"scale": "percent"}, "buckets"),
    ],
)  # fmt: skip
def test_labels_and_names_that_count_are_no_accuracies(name, content, options, advice):
    """They were the accuracies of another bucket, or of another row: 0 %, 1 %, 2 %."""
    check_error(RecordError, f"pass {advice}=", read, name, content, **options)


def test_the_user_says_whether_a_count_is_names_or_labels():
    text = "0,0.9,0.1\n1,0.8,0.9\n"
    rows = [[0.9, 0.1], [0.8, 0.9]]
    for options in ({"row_labels": "use"}, {"row_labels": "ignore"}, {"columns": ("2", "3")}):
        assert_equal(read("acc.csv", text, **options, **AS_ROWS), rows)
    matrix = read("acc.csv", "1,2,3\n0.5,0.25,0.125\n", buckets=("1", "2", "3"))
    assert_equal(matrix, [[0.5, 0.25, 0.125]])
    assert_equal(read("acc.csv", "0,1\n1,0\n", **AS_ROWS, future="tested"), [[0, 1], [1, 0]])


@pytest.mark.parametrize("separator", [";", "\t", " & "])
def test_a_row_of_one_cell_has_the_separator_of_the_others(separator):
    """55,3 was the cells 55 and 3."""
    end = r" \\" if "&" in separator else ""
    text = f"a{separator}b{end}\n55,3{end}\n81,1{separator}85,7{end}\n"
    matrix = read("acc.csv", text, scale="percent", **AS_ROWS)
    np.testing.assert_allclose(matrix.values, [[0.553, NAN], [0.811, 0.857]])
