"""A training survives output that cannot be written, and a lost result is an error."""

import os
import subprocess
import sys

import pytest

PROGRAM = f"{sys.executable} -m clear_mlflow"
TRAIN = f"{PROGRAM} train --epochs 1 --features pixels --predictions none"


def run_shell(command, **environment):
    """Run a shell command in the environment of the test's store."""
    return subprocess.run(
        ["bash", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
    )


@pytest.fixture
def finished_run(store, experiment_id):
    """The id of a run that was trained with intact output."""
    assert run_shell(TRAIN).returncode == 0
    return store.search_runs([experiment_id])[0].info.run_id


@pytest.mark.parametrize(
    "redirection", ["2>/dev/full", "2>&-", ">&-", ">&- 2>&-", ">/dev/full 2>/dev/full", "<&- >&-"]
)
def test_unwritable_output_does_not_end_a_training(store, experiment_id, redirection):
    """Exit code 0 and a complete run, as with intact output."""
    done = run_shell(f"{TRAIN} {redirection}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (run,) = store.search_runs([experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags["clear_mlflow.rows"] == "complete"


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_characters_that_cannot_be_encoded_are_replaced(store, experiment_id, environment):
    """Neither a training nor a table ends in a traceback."""
    done = run_shell(f"{TRAIN} --run-name 'Pr\u00fcfung \u65e5\u672c'", PYTHONUTF8="1")
    assert done.returncode == 0, done.stderr
    (run,) = store.search_runs([experiment_id])
    table = run_shell(f"{PROGRAM} show {run.info.run_id}", **environment)
    assert (table.returncode, table.stderr) == (0, "")
    assert " FINISHED" in table.stdout
    again = run_shell(TRAIN, **environment)
    assert again.returncode == 0, again.stderr
    assert "Traceback" not in again.stderr


def test_a_reader_that_leaves_does_not_end_a_training(store, experiment_id):
    """``| head -1`` reads one line of the result."""
    done = run_shell(f"{TRAIN} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 0, done.stdout
    (run,) = store.search_runs([experiment_id])
    assert run.info.status == "FINISHED"


def test_a_result_that_cannot_be_written_is_an_error(finished_run):
    """Exit code 2 and one line on standard error, for tables, JSON and help."""
    for command in (f"show {finished_run}", f"show {finished_run} --json", "--help"):
        for redirection in (">/dev/full", ">&-", "2>&1 >/dev/full"):
            done = run_shell(f"{PROGRAM} {command} {redirection}")
            assert done.returncode == 2, (command, redirection, done.stderr)
            (line,) = (done.stderr + done.stdout).splitlines()
            assert line.startswith("error: standard output cannot be written: ")


def test_a_full_disk_for_both_streams_is_an_exit_code(finished_run):
    """There is nowhere to print a message."""
    done = run_shell(f"{PROGRAM} show {finished_run} --json >/dev/full 2>/dev/full")
    assert done.returncode == 2


def test_a_library_call_trains_with_standard_error_on_a_full_disk(store, experiment_id):
    """``clear_mlflow.train`` in a script, which keeps its own streams."""
    code = "import clear_mlflow; clear_mlflow.train(epochs=1)"
    done = run_shell(f"{sys.executable} -c '{code}' 2>/dev/full")
    assert done.returncode == 0
    (run,) = store.search_runs([experiment_id])
    assert run.info.status == "FINISHED"
