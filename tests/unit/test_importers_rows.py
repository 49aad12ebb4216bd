"""Rows in the lines of a log, which the user's regular expression finds."""

import math
import time

import numpy as np
import pytest
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.importers import ReadOptions, ResultFile, log_rows, parse_runs

JAGGED = [[42.9], [48.4, 67.3], [44.6, 48.5, 68.3]]
LOG = """task 0, epoch 1: loss 1.2, accuracies: [1.0]
CIL: [42.9]
task 1
CIL: [48.4, 67.3]
CIL: [44.6, 48.5, 68.3]
mean: 53.8
"""


def read(text: str, rows: str = r"CIL: \[(.*)\]", format_name: str = "auto", **options):
    options = {"scale": "percent", **options}
    file = ResultFile("train.log", text.encode(), ReadOptions(rows=rows, **options))
    return parse_runs(file, format_name)


def stack(rows) -> np.ndarray:
    values = np.full((len(rows), max(map(len, rows))), math.nan)
    for i, row in enumerate(rows):
        values[i, : len(row)] = row
    return values / 100


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (LOG, r"CIL: \[(.*)\]"),
        (LOG.replace(", ", " "), r"CIL: (.*)"),
        (LOG.replace(", ", " & ").replace(" & ", ";"), r"^CIL: \[(.*)\]$"),
        (LOG.replace("]", "%]").replace(", ", "%, "), r"CIL: \[(.*)\]"),
        (LOG.replace("]", " +- 0.3]").replace(", ", " ± 1.25, "), r"CIL: \[(.*)\]"),
        (LOG.replace("\n", "\r\n"), r"CIL: \[(.*)\]"),
        # A percent sign after a space was a cell that was not measured.
        (LOG.replace("]", " %]").replace(", ", " %, "), r"CIL: \[(.*)\]"),
        (LOG.replace("]", " %]").replace(", ", " % "), r"CIL: \[(.*)\]"),
        (LOG.replace("]", "±0.3 %]").replace(", ", " ± 1 %; "), r"CIL: \[(.*)\]"),
    ],
)
def test_the_rows_of_a_log_are_found(text, rows):
    (run,) = read(text, rows)
    np.testing.assert_allclose(run.matrix.values, stack(JAGGED))
    assert (run.format_name, run.label) == ("log-rows", "")
    (explicit,) = read(text, rows, "log-rows")
    np.testing.assert_array_equal(explicit.matrix.values, run.matrix.values)


@pytest.mark.parametrize("separator", ["; ", " ", ";"])
def test_decimal_commas_are_no_separators(separator):
    """91,2 was the cells 91 and 2. A list of one such number is not known from a list of two."""
    text = f"acc [91,2{separator}52,0]\nacc [82,5{separator}93,44]\n"
    (run,) = read(text, "acc (.*)")
    np.testing.assert_allclose(run.matrix.values, [[0.912, 0.52], [0.825, 0.9344]])
    (run,) = read("acc 91,2\nacc 82,5\n", "acc (.*)")
    assert run.matrix.values.tolist() == [[0.91, 0.02], [0.82, 0.05]]


def test_a_shorter_row_or_one_after_a_square_begins_another_run():
    runs = read(LOG + LOG.replace("8", "7"))
    assert [run.label for run in runs] == ["run 1", "run 2"]
    np.testing.assert_allclose(runs[0].matrix.values, stack(JAGGED))
    assert runs[1].matrix.values[0, 0] == 0.429
    square = "acc 0.9 0.2\nacc 0.8 0.9\nacc 0.7 0.1\nacc 0.6 0.8\n"
    runs = read(square, r"acc (.*)", scale="fraction")
    assert [run.matrix.values.tolist() for run in runs] == [
        [[0.9, 0.2], [0.8, 0.9]],
        [[0.7, 0.1], [0.6, 0.8]],
    ]
    initial = read("acc 0.1 0.2\n" + square[:24], "acc (.*)", scale="auto", initial="first-row")
    assert [run.matrix.initial.tolist() for run in initial] == [[0.1, 0.2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CIL: [50]\nCIL: [0.5%, 0.7%]\n", "contains % in line 2; pass scale=percent"),
        ("nothing\n", "contains no line that matches rows"),
        ("CIL: [1, two, 3]\n", "contains 'two' in line 1, cell 2; expected a number"),
        ("x\nCIL: [0.5]\nCIL: [nan?]\n", "contains 'nan?' in line 3, cell 1"),
        ("CIL: [50]\nCIL: [50]\nCIL: [50, 40]\n", "contains rows of [1, 1, 2] numbers"),
        ("CIL: [50]\nCIL: [50, 140]\n", "contains 140"),
    ],
)
def test_a_log_that_cannot_be_read_is_a_one_line_error(text, message):
    scale = "auto" if "%" in text else "percent"
    assert "'train.log'" in check_error(RecordError, message, read, text, scale=scale)


@pytest.mark.parametrize(
    "rows", ["CIL", "(a)(b)", "(", "*(a)", "(a" * 300, "", "(?P<n>" + "a" * 600]
)
def test_an_expression_without_exactly_one_group_is_a_one_line_error(rows):
    message = check_error(
        ConfigError, "expected a regular expression with one group", read, LOG, rows
    )
    assert message.startswith("rows is ")


def test_an_expression_that_takes_exponential_time_is_stopped(monkeypatch):
    monkeypatch.setattr(log_rows, "_MAX_SECONDS", 1)
    start = time.monotonic()
    check_error(RecordError, "takes over 1 seconds", read, "a" * 5000 + "!\n", r"^(a|aa)+$")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "line",
    [
        "[DEBUG] Loading models...\nTest Accuracy: 0.81",
        "[Exp 0] acc=78.00% AA=78.00% updates=79",
        "[2024-10-19 15:46:40,974] acc 0.9",
        "[1] acc 0.9",
        "[12:30:01] acc 0.9",
    ],
)
def test_a_log_whose_lines_begin_with_a_bracket_is_neither_json_nor_an_array(line):
    file = ResultFile("train.log", f"{line}\n{line}\n".encode())
    assert not file.looks_like_json
    assert not file.is_printed_array
    check_error(RecordError, "is in an unknown format", parse_runs, file)
    (run,) = read(f"{line}\nCIL: [0.5]\n", scale="fraction")
    assert run.matrix.values.tolist() == [[0.5]]


@pytest.mark.parametrize(
    "text", ["[]", "[0.5]\n", "[1e-5, 2]", "[NaN, 1]", "[null]", '["a"]', "{}"]
)
def test_json_is_recognized(text):
    assert ResultFile("m.json", text.encode()).looks_like_json


@pytest.mark.parametrize("text", ["[[0.5 nan]\n [1. 2.]]", "[0.5 0.25]", "[[-1.e-05  2.]]"])
def test_a_printed_array_is_recognized(text):
    assert ResultFile("m.txt", text.encode()).is_printed_array


def test_rows_of_another_format_are_a_one_line_error():
    check_error(ConfigError, "but format is pycil; leave rows out", read, LOG, "(a)", "pycil")
    file = ResultFile("train.log", LOG.encode())
    check_error(ConfigError, "which needs rows", parse_runs, file, "log-rows")


MARKDOWN = """| after | A1 | A2 | A3 |
|:---|---:|---:|---:|
| A1 | **90.5 ± 0.3** | 20.0 ± 1 | 10.5 ± 2.25 |
| A2 | 70.5 +- .5 | 80.25 | 30 |
| A3 | 60.5 | 70.5 +/- 1.5 | **95.5** |
"""
LATEX = r"""\begin{tabular}{lrrr}
\toprule
after & A1 & A2 & A3 \\
\midrule
A1 & \textbf{90.5} $\pm$ 0.3 & $20.0 \pm 1$ & 10.5\\ \hline
A2 & 70.5 & 80.25 & 30 \\
\cmidrule(lr){2-3}
A3 & 60.5 & \underline{70.5} & $\mathbf{95.5}$ \\
\bottomrule
\end{tabular}
"""


@pytest.mark.parametrize(
    "text",
    [
        MARKDOWN,
        LATEX,
        LATEX.split("\n", 4)[4],
        # As leaderboards of this package are written, and as short as Markdown permits.
        MARKDOWN.replace("|:---|---:|---:|---:|", "|:--|--:|--:|--:|"),
        MARKDOWN.replace("|:---|---:|---:|---:|", "|:-:|-:|:-|-:|"),
        # Deviations as an index.
        LATEX.replace(r"\textbf{90.5} $\pm$ 0.3", r"90.5$_{\pm 0.3}$").replace(
            r"$20.0 \pm 1$", r"$20.0^{\pm1.5}$"
        ),
        # A comment was a row.
        LATEX.replace("\nA2 &", "\n%A2 & 1 & 2 & 3 \\\\\nA2 &"),
    ],
)
def test_a_table_of_a_paper_is_read(text):
    """With its rules, bold numbers and deviations; also without the lines around the rows."""
    file = ResultFile("table.txt", text.encode(), ReadOptions(scale="percent", orientation="rows"))
    (run,) = parse_runs(file)
    expected = [[90.5, 20, 10.5], [70.5, 80.25, 30], [60.5, 70.5, 95.5]]
    np.testing.assert_allclose(run.matrix.values, np.array(expected) / 100)


@pytest.mark.parametrize("dash", ["-", "--", "---", "–", "—"])
@pytest.mark.parametrize("text", [MARKDOWN, LATEX])
def test_a_dash_in_such_a_table_is_a_cell_that_was_not_measured(text, dash):
    """LaTeX has longer dashes, with which this package writes tables, too."""
    text = text.replace(" 30 ", f" {dash} ")
    file = ResultFile("table.txt", text.encode(), ReadOptions(scale="percent", orientation="rows"))
    (run,) = parse_runs(file)
    assert np.argwhere(np.isnan(run.matrix.values)).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("text", "cell"),
    [(MARKDOWN.replace("80.25", "8o.25"), "8o.25"), (LATEX.replace("80.25", "8o.25"), "8o.25")],
)
def test_a_cell_of_such_a_table_that_is_not_a_number_is_named(text, cell):
    file = ResultFile("table.txt", text.encode(), ReadOptions(scale="percent", orientation="rows"))
    check_error(RecordError, f"'{cell}' in line", parse_runs, file, "text")


def test_deviations_in_csv_are_left_out():
    file = ResultFile("m.csv", b"0.9 +- 0.01,0.2\n0.8,0.95+-0.1\n", ReadOptions(orientation="rows"))
    assert parse_runs(file)[0].matrix.values.tolist() == [[0.9, 0.2], [0.8, 0.95]]


@pytest.mark.parametrize(
    ("text", "location"),
    [
        (",t1,t2\nt1,91.2 ± 0.3,20\nt2,80.1±0.1,9O.1 ± .2\n", "'9O.1' in line 3, cell 3"),
        ("t1;t2\n91.2 (0.3);20\n80;90\n", "'91.2 (0.3)' in line 2, cell 1"),
        ("| | t1 |\n|--|--|\n| t1 | 91.2% |\n", "'91.2%' in line 3, cell 2"),
        ("& t1 & t2 \\\\\na & 91 & 9l \\\\\n", "'9l' in line 2, cell 3"),
        ("tensor([[0.5, 0.25],\n        [0.5, x]])\n", "'x' in line 2, cell 2"),
    ],
)
def test_an_unreadable_cell_is_named_by_line_and_number(text, location):
    """Next to deviations and labels, which can be read."""
    file = ResultFile("m.csv", text.encode(), ReadOptions(scale="percent", orientation="rows"))
    check_error(RecordError, f"contains {location}", parse_runs, file)
