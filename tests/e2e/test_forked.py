"""What tests start as a fork of a loaded process is what a user starts."""

import os
import signal
import subprocess
import sys

import pytest
from forked import Forked, run_forked


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--help"),
        ("sweep", "--grid", "grid.yaml", "--dry-run"),  # found in the folder that it runs in
        ("evaluate", "--run-id", "nowhere"),
        ("train", "--no-such-option"),
    ],
)
def test_it_says_and_ends_as_the_program_does(store, tmp_path, arguments):
    """With its own arguments, environment and folder: output, errors and exit code."""
    (tmp_path / "grid.yaml").write_text("grid: {strategy: [ncm], seed: [3]}\n")
    options = {"env": {**os.environ, "COLUMNS": "70"}, "cwd": tmp_path}
    forked = run_forked(*arguments, **options)
    command = [sys.executable, "-m", "clear_mlflow", *arguments]
    real = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr == real.stderr


def test_it_can_be_signalled(store):
    """It is in a session of its own where asked to be, and ends by what it gets."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = Forked("train", "--epochs", "1000", start_new_session=True, **pipes)
    assert process.poll() is None
    assert os.getsid(process.pid) == process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
