"""What tests start as a fork of a loaded process is what a user starts."""

import os
import signal
import subprocess
import sys

import psutil
from forked import Forked, run_forked


def test_it_says_and_ends_as_the_program_does(store, tmp_path):
    """With its own arguments, environment and folder: output, errors and exit code."""
    (tmp_path / "grid.yaml").write_text("grid: {strategy: [ncm], seed: [3]}\n")
    environment = {**os.environ, "COLUMNS": "70"}
    for arguments in (
        ("train", "--help"),
        ("sweep", "--grid", "grid.yaml", "--dry-run"),  # found in the folder that it runs in
        ("evaluate", "--run-id", "nowhere"),
        ("train", "--no-such-option"),
    ):
        forked = run_forked(*arguments, env=environment, cwd=tmp_path)
        real = subprocess.run(
            [sys.executable, "-m", "clear_mlflow", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
        assert forked.stderr == real.stderr


def test_it_can_be_found_signalled_and_killed(store, tmp_path):
    """By its number, of which ps tells the command; a training dies with it."""
    process = Forked(
        *("train", "--epochs", "1000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    shown = psutil.Process(process.pid)
    while not (found := [c for c in shown.children() if "process.child" in " ".join(c.cmdline())]):
        assert process.poll() is None, process.stdout.read()
    (training,) = found
    assert " ".join(shown.cmdline()[:4]) == f"{sys.executable} -m clear_mlflow train"
    assert training.cmdline()[2] == "clear_mlflow.process.child"
    assert os.getsid(process.pid) == process.pid
    assert os.getsid(training.pid) == training.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    training.wait(60)
