"""A training survives output that cannot be written, and a lost result is an error."""

import os
import subprocess
import sys

import pytest
from forked import Forked, run_forked, run_python
from mlflow import MlflowClient
from mlflow_stores import copy_store
from stored_runs import only_run

TRAIN = ("train", "--epochs", "1", "--features", "pixels", "--predictions", "none")
# Change the streams of a forked process as a shell changes those of one that it starts.
REDIRECT = """
import os, runpy, sys
for word in sys.argv[1].split():
    number, target = int(word[0]), word[1:]
    os.close(number)
    if target == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
    else:  # Python has no stream for a descriptor that is closed when it starts
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)
sys.argv = sys.argv[1:]
runpy.run_module("clear_mlflow", run_name="__main__", alter_sys=True)
"""


def run_redirected(redirection, *arguments):
    """Run a command with its streams closed or on a full disk, in a forked process."""
    return run_python("-c", REDIRECT, redirection, *arguments)


def run_in_new_interpreter(line, **environment):
    """Run a line of bash in which clear-mlflow is this copy of the program."""
    program = f'clear-mlflow() {{ "{sys.executable}" -m clear_mlflow "$@"; }}'
    command = ["bash", "-c", f"{program}\n{line}"]
    options = {"capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run(command, check=False, env=os.environ | environment, **options)


@pytest.fixture(scope="module")
def finished_run(empty_store, tmp_path_factory):
    """Return the id of a run that was trained with intact output, and the URI of its store."""
    folder = tmp_path_factory.mktemp("finished")
    uri = copy_store(empty_store, folder)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    name = "Pr\u00fcfung \u65e5\u672c"
    run_forked(*TRAIN, "--run-name", name, cwd=folder, env=environment, check=True)
    return only_run(MlflowClient(uri), "0").info.run_id, uri


def check_is_trained(done, store, experiment_id):
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in (done.stderr or "")
    run = only_run(store, experiment_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["clear_mlflow.rows"] == "complete"


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirection", ["2full", "2closed", "1closed", "1closed 2closed", "1full 2full"]
)
def test_unwritable_output_does_not_end_a_training(store, experiment_id, redirection):
    check_is_trained(run_redirected(redirection, *TRAIN), store, experiment_id)


@pytest.mark.slow
def test_closed_input_and_output_do_not_end_a_training(store, experiment_id):
    """In a new interpreter, whose first files could get the numbers of the closed streams."""
    done = run_in_new_interpreter(f"clear-mlflow {' '.join(TRAIN)} <&- >&-")
    check_is_trained(done, store, experiment_id)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1:strict"])
def test_characters_that_cannot_be_encoded_are_replaced(finished_run, encoding):
    run_id, uri = finished_run
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONIOENCODING": encoding}
    table = run_forked("show", run_id, env=environment)
    assert (table.returncode, table.stderr) == (0, "")
    assert " FINISHED" in table.stdout
    assert "?" in table.stdout


@pytest.mark.slow
def test_a_training_and_a_table_need_no_utf8(finished_run, store, experiment_id):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run_id, uri = finished_run
    table = run_in_new_interpreter(
        f"clear-mlflow show {run_id}", MLFLOW_TRACKING_URI=uri, **ascii_only
    )
    assert (table.returncode, table.stderr) == (0, "")
    assert " FINISHED" in table.stdout
    training = run_in_new_interpreter(f"clear-mlflow {' '.join(TRAIN)}", **ascii_only)
    check_is_trained(training, store, experiment_id)


@pytest.mark.slow
def test_a_closed_pipe_does_not_end_a_training(store, experiment_id):
    """``| head -1`` reads one line of the result."""
    process = Forked(*TRAIN)
    assert process.stdout.readline()
    process.stdout.close()
    process.wait()
    check_is_trained(process, store, experiment_id)


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["1full", "1closed"])
def test_a_result_that_cannot_be_written_is_an_error(finished_run, monkeypatch, redirection):
    run_id, uri = finished_run
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for arguments in (("show", run_id), ("show", run_id, "--json"), ("--help",)):
        done = run_redirected(redirection, *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: standard output cannot be written: ")


def test_a_full_disk_for_both_streams_is_an_exit_code(finished_run, monkeypatch):
    run_id, uri = finished_run
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert run_redirected("1full 2full", "show", run_id, "--json").returncode == 2


@pytest.mark.slow
def test_a_library_call_trains_with_standard_error_on_a_full_disk(store, experiment_id):
    code = "import clear_mlflow, os; clear_mlflow.train(epochs=1); os._exit(0)"
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = run_python("-c", code, stderr=full)
    check_is_trained(done, store, experiment_id)
