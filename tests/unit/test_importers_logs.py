"""Logs of other programs, written by their own code, and what proves how a matrix is to be read.

support/published_logs has what these programs printed or logged about small results, run at:
PyCIL 87cc411, PILOT 2647455, C3Box 1378ab2 (trainer.py and toolkit.accuracy), LibContinual a399ed4
(train_loop from its tests on), CLArena bf58528 (update_test_acc_to_csv), ZSCL b96e714 and
MoE-Adapters4CL 4572d97 (mtil: evaluate and torch_load). moe_cil.json is the published
cil/experiments/class/tinyimagenet_100-20-MoE-Adapters/metrics.json of MoE-Adapters4CL.
"""

import random
import re
from pathlib import Path

import numpy as np
import pytest
from one_line_errors import check_error

from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.importers import ReadOptions, ResultFile, parse_runs

LOGS = Path(__file__).parent.parent / "support" / "published_logs"
RANGE = " (accuracy over all images: only within the range of the row)"
C3BOX = [[72.5], [50.0, 82.5], [48.0, 70.0, 85.5], [48.5, 59.5, 77.0, 86.0]]
PILOT = [[70.25], [59.5, 83.5], [52.25, 73.0, 82.5], [57.0, 64.0, 76.5, 86.0]]
LIBCONTINUAL = [[90.0], [78.0, 90.0], [76.0, 79.5, 93.5], [55.0, 68.5, 80.0, 89.5]]
CLARENA = [[91.3333356], [86.0000014, 87.6666665], [68.6666667, 78.3333361, 92.3333347]]
MOE_CIL = [[85.98], [83.72, 85.1], [81.72, 82.2, 81.6], [80.06, 80.4, 78.0, 81.2]]
MOE_CIL += [[78.28, 79.0, 76.3, 77.7, 79.2], [77.42, 76.6, 75.8, 73.6, 76.9, 78.7]]
SQUARE = np.array([[61.5, 40.2, 30.1], [55.1, 70.3, 42.0], [50.2, 60.4, 72.8]])


def read(name, content, **options):
    encoded = content.encode() if isinstance(content, str) else content
    return parse_runs(ResultFile(name, encoded, ReadOptions(**options)))


def read_log(name, **options):
    return read(name, (LOGS / name).read_bytes(), **options)


def assert_equal(run, percent):
    rows = run.matrix.values.tolist()
    for row, expected in zip(rows, percent, strict=True):
        np.testing.assert_allclose(row[: len(expected)], np.divide(expected, 100), atol=1e-6)
        assert np.isnan(row[len(expected) :]).all()


@pytest.mark.parametrize(
    ("name", "format_name", "rows", "proof"),
    [
        ("c3box.log", "pycil", C3BOX, "mean accuracy over all images 68.5825"),
        ("pilot.log", "pycil", PILOT, "forgetting 12.9167"),
        ("libcontinual.txt", "libcontinual", LIBCONTINUAL, f"forgetting 18.833{RANGE}"),
        ("clarena.csv", "text", CLARENA, "average of a line 0.797778"),
        ("moe_cil.json", "zscl", MOE_CIL, f"accuracy on earlier tasks 78.51{RANGE}"),
    ],
)
def test_a_log_is_read_as_its_own_averages_prove(name, format_name, rows, proof):
    (run,) = read_log(name)
    assert run.format_name == format_name
    assert_equal(run, rows)
    assert "rows as training: fits" in run.proof
    assert run.proof.endswith(proof)


def test_both_classifiers_of_pycil_are_runs():
    text = (LOGS / "pycil_output.txt").read_text()
    runs = read_log("pycil_output.txt")
    assert [run.label for run in runs] == ["run 1 CNN", "run 2 NME"]
    assert runs[0].matrix.values.tolist() != runs[1].matrix.values.tolist()
    for run in runs:
        classifier = run.label[-3:]
        printed = text.partition(f"Accuracy Matrix ({classifier}):\n")[2].partition("]]")[0]
        columns = [line.split() for line in printed.replace("[", "").split("]")]
        rows = np.transpose(columns).astype(float).tolist()
        assert_equal(run, [row[: i + 1] for i, row in enumerate(rows)])
        strategy = {"strategy": "icarl", "dataset": "cifar224", "model": "vit_base"}
        assert run.metadata == {**strategy, "seed": "1993"}
        # Only the end of the output, whose columns are the tests.
        end = f"{classifier}:\n{printed}]]\nForgetting ({classifier}): {run.proof.split()[-1]}\n"
        (pasted,) = read("end.txt", end, future="not-tested")
        np.testing.assert_array_equal(pasted.matrix.values, run.matrix.values)
        assert "percent, columns as training: fits forgetting" in pasted.proof


@pytest.mark.parametrize("name", ["zscl_mtil.txt", "moe_mtil.txt"])
def test_checkpoints_and_data_sets_are_rows_and_columns(name):
    (run,) = read_log(name)
    tests, checkpoint, dataset = {}, "", ""
    for line in (LOGS / name).read_text().splitlines():
        if "loaded" in line and "autochooser" not in line:
            checkpoint = Path(line.split()[-1]).stem
        elif "Evaluating" in line:
            dataset = line.split()[-1]
        elif "Top-1" in line:
            tests[checkpoint, dataset] = float(line.split()[-1])
    names = run.matrix.buckets
    assert names[:3] == ("Aircraft", "Caltech101", "CIFAR100")
    assert_equal(run, [[tests[trained, tested] for tested in names] for trained in names])


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir()))
def test_a_truncated_log_is_rejected(name):
    """Cut a log at many places: each is an error, unless no number of the matrix is missing."""
    complete = (LOGS / name).read_bytes()
    runs = [run.matrix.values for run in read(name, complete)]
    num_refused = 0
    for end in {*range(0, len(complete), 61), *range(len(complete) - 60, len(complete))}:
        try:
            cut_runs = read(name, complete[:end])
        except RecordError as error:
            assert str(error).isprintable()  # noqa: PT017
            num_refused += 1
            continue
        for run, values in zip(cut_runs, runs, strict=False):
            np.testing.assert_allclose(run.matrix.values, values, atol=1e-5)
    assert num_refused > 30


def test_a_run_that_stopped_is_imported_if_the_user_states_it():
    log = (LOGS / "c3box.log").read_text()
    stopped = log[: log.index("Learning on 20-30")]
    with pytest.raises(RecordError, match=r'lacks 4 tests of CNN .* Pass orientation="rows"'):
        read("c3box.log", stopped)
    (run,) = read("c3box.log", stopped, orientation="rows")
    assert_equal(run, [[72.5], [50.0, 82.5]])


PILOT_CELLS = "'00-19': np.float64({}), '20-29': np.float64({})"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("c3box.log", "Average Accuracy (CNN): 68.5825", "Average Accuracy (CNN): 67.5825"),
        ("pilot.log", "'00-19': np.float64(57.0)", "'00-19': np.float64(58.0)"),
        ("libcontinual.txt", "[78. 90.]", "[90. 78.]"),
        ("libcontinual.txt", "[55.  68.5 80.  89.5]", "[89.5 80.  68.5 55. ]"),
        ("moe_cil.json", "[83.72, 85.1]", "[85.1, 83.72]"),
        ("clarena.csv", "2,0.8683333396911621,0.86", "2,0.8683333396911621,0.87"),
        ("clarena.csv", "1,0.9133333563804626,0.9133333563804626", "1,0.68,0.68"),
        ("zscl_mtil.txt", "Evaluating on DTD", "Evaluating on Aircraft"),
        # Exchanged cells: the accuracy over all images is still between them, and forgetting fits.
        ("pilot.log", PILOT_CELLS.format(57.0, 64.0), PILOT_CELLS.format(64.0, 57.0)),
    ],
)
def test_a_changed_or_transposed_log_is_rejected(name, old, new):
    text = (LOGS / name).read_text()
    assert old in text
    if new == "1,0.68,0.68":
        text = text.replace("0.9133333563804626", "0.68666667").replace("0.92333", "0.91333")
    else:
        text = text.replace(old, new)
    with pytest.raises(RecordError, match=r"prints|tests .* twice|not the"):
        read(name, text)


def test_weights_by_classes_prove_the_accuracy_over_all_images():
    """Test sets of other sizes than the classes only bound it, as the proof states."""
    (equal,) = read_log("pilot.log")
    assert "rows as training: fits accuracy over all images 68.1, " in equal.proof
    assert RANGE not in equal.proof
    other = (LOGS / "pilot.log").read_text()
    for total, changed in (("67.5", "66.5"), ("65.0", "64.0"), ("68.1", "67.1")):
        other = other.replace(f"'total': np.float64({total})", f"'total': np.float64({changed})")
    other = other.replace("67.7125", "66.9625")
    (run,) = read("pilot.log", other)
    np.testing.assert_array_equal(run.matrix.values, equal.matrix.values)
    assert run.proof.endswith(RANGE)


DYTOX = """{"task": 0, "epoch": 499, "acc": 92.5, "avg_acc": 92.5, "forgetting": 0, \
"acc_per_task": [92.5], "train_lr": 1e-05, "bwt": 0.0, "fwt": 0.0, "test_acc1": 92.5}
{"task": 1, "epoch": 499, "acc": 85.55, "avg_acc": 89.03, "forgetting": 0, \
"acc_per_task": [87.7, 83.4], "train_lr": 1e-05, "bwt": -4.8, "fwt": 87.7, "test_acc1": 85.55}
{"task": 2, "epoch": 499, "acc": 78.67, "avg_acc": 85.57, "forgetting": 6.25, \
"acc_per_task": [80.0, 74.0, 82.0], "train_lr": 1e-05, "bwt": -4.17, "fwt": 80.57}
{"avg": 85.57333333333332}
"""


def test_the_log_of_dytox_ends_with_its_average():
    """Rows as in dytox issue 2; an average that does not fit is an error."""
    (run,) = read("logs.json", DYTOX)
    assert_equal(run, [[92.5], [87.7, 83.4], [80.0, 74.0, 82.0]])
    for wrong, reason in (
        (DYTOX.replace("85.5733", "84.5733"), "prints accuracy over all images 78.67"),
        (DYTOX.replace('"avg":', '"mean":'), "or avg at the end"),
        (DYTOX[: DYTOX.index('{"avg"')], "lacks the line with avg at its end"),
        (DYTOX.replace('"task": 1, ', ""), "expected task 1 with 2 accuracies"),
    ):
        check_error(RecordError, reason, read, "logs.json", wrong)


def test_the_order_of_checkpoints_is_proven_stated_or_called_unproven():
    text = (LOGS / "zscl_mtil.txt").read_text()
    (run,) = read("a.txt", text)
    assert run.proof.startswith("buckets in the order of the log, which proves nothing")
    order = tuple(reversed(run.matrix.buckets))
    (stated,) = read("a.txt", text, buckets=order)
    assert (stated.matrix.buckets, stated.proof) == (order, "")
    np.testing.assert_array_equal(stated.matrix.values, run.matrix.values[::-1, ::-1])
    tests = re.findall(r"Checkpoint.*\nEval.*\nTop.*\n", text)
    past_tests = "".join(test for i, test in enumerate(tests) if i % 4 <= i // 4)
    (proven,) = read("a.txt", past_tests, future="not-tested")
    assert proven.proof == ""
    past_cells = np.where(np.tri(4), run.matrix.values, np.nan)
    np.testing.assert_array_equal(proven.matrix.values, past_cells)


def test_groups_other_than_the_tasks_are_rejected():
    log = (LOGS / "c3box.log").read_text()
    log = re.sub(r", '10-19': np.float64\([0-9.]+\)", "", log)
    check_error(RecordError, "always group by ten classes", read, "c3box.log", log)


def test_damaged_logs_are_one_line_errors():
    rng = random.Random(3)
    for path in sorted(LOGS.iterdir()):
        lines = path.read_bytes().splitlines(keepends=True)
        for _ in range(60):
            damaged = [*lines]
            for _ in range(rng.randint(1, 3)):
                i, j = rng.randrange(len(damaged)), rng.randrange(len(damaged))
                line = damaged[i]
                k = rng.randrange(len(line) + 1)
                changed_byte = line[:k] + bytes([rng.randrange(256)]) + line[k + 1 :]
                no_number = line.replace(b"0", rng.choice([b"nan", b"", b"-", b"9" * 40]))
                no_text = line.replace(b"'", b"{")
                lines_instead = [b"", line + line, damaged[j], changed_byte, no_number, no_text]
                damaged[i] = rng.choice(lines_instead)
            for options in ({}, {"orientation": "rows"}):
                try:
                    read(path.name, b"".join(damaged), **options)
                except ClearError as error:
                    assert str(error).isprintable()  # noqa: PT017


def test_a_printed_average_decides_orientation_and_scale():
    average, forgetting = SQUARE[2].mean(), np.mean(SQUARE.max(axis=0)[:2] - SQUARE[2, :2])
    printed = f"Average accuracy: {average:.1f}\nForgetting: {forgetting:.2f}\n"
    for text, orientation in (
        (f"{printed}{SQUARE}", "rows"),
        (f"{printed}{SQUARE.T}", "columns"),
        (f"{SQUARE}\n# mean accuracy = {average / 100:.3f}\n", "rows"),
    ):
        (run,) = read("a.txt", text)
        assert_equal(run, SQUARE.tolist())
        assert run.proof.startswith(f"percent, {orientation} as training: fits average accuracy")
    with pytest.raises(RecordError, match=r"prints average accuracy 60.1, forgetting 10.6, but"):
        read("a.txt", printed.replace(f"{average:.1f}", "60.1") + str(SQUARE))


def test_an_unproven_orientation_is_an_error_with_both_results():
    for content in (str(SQUARE), "\n".join(",".join(map(str, row)) for row in SQUARE)):
        message = (
            "each row or each column is the test after one bucket (with rows as tests: average "
            "61.1, forgetting 10.6; with columns as tests: average 48.3, forgetting 29.8); pass "
            'orientation="rows"'
        )
        check_error(RecordError, message, read, "a.txt", content)
    (run,) = read("a.txt", str(SQUARE), orientation="columns", scale="percent")
    assert_equal(run, SQUARE.T.tolist())


@pytest.mark.parametrize("start", ["", "\ufeff", "\ufeffsep=;\n"])
def test_decimal_commas_of_excel_are_read(start):
    lines = [
        ";".join(f"{cell:.2f}".replace(".", ",") for cell in (*row, row[: i + 1].mean()))
        for i, row in enumerate(SQUARE)
    ]
    names = "task1;task2;task3;average\n"
    (run,) = read("a.csv", start + names + "\r\n".join(lines))
    assert_equal(run, SQUARE.tolist())
    assert "percent, rows as training: fits average of a line 61.13" in run.proof


def test_pandas_index_and_columns_prove_no_orientation():
    text = ",0,1,2\n" + "\n".join(f"{i},{','.join(map(str, row))}" for i, row in enumerate(SQUARE))
    check_error(RecordError, "columns as tests: average 48.3", read, "a.csv", text)
    (run,) = read("a.csv", text, orientation="rows", scale="percent")
    assert_equal(run, SQUARE.tolist())
