"""What tests start as a fork of a loaded process is what a user starts."""

import json
import os
import signal
import subprocess
import sys

import psutil
from forked import Forked, programs, run_forked, run_python


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


SHOWING = """
import json, os, sys
shown = [__name__, sys.argv, sys.path[0], os.getcwd(), os.environ["ONLY_HERE"], sys.stdin.read()]
json.dump(shown, sys.stdout)
sys.exit(7)
"""


def test_python_runs_code_and_files_as_the_interpreter_does(tmp_path):
    """With what the code sees of how it was started, also where a shell starts it."""
    folder = tmp_path / "of the file"
    folder.mkdir()
    (folder / "shows.py").write_text(SHOWING)
    environment = {**os.environ, "ONLY_HERE": "1"}
    path = f"{programs()}{os.pathsep}{os.environ['PATH']}"
    options = {"cwd": tmp_path, "text": True, "stdout": subprocess.PIPE, "check": False}
    for words in ((f"{folder / 'shows.py'}", "a", "b c"), ("-c", SHOWING, "a")):
        real = subprocess.run([sys.executable, *words], env=environment, input="", **options)
        by_name = subprocess.run(
            ["bash", "-c", 'python "$@"', "bash", *words],
            env={**environment, "PATH": path},
            input="said",
            **options,
        )
        forked = run_python(*words, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL)
        assert real.returncode == by_name.returncode == forked.returncode == 7
        expected = json.loads(real.stdout)
        if words[0] == "-c":
            assert expected[2] == ""  # the folder that it runs in, as that of a module
            expected[2] = str(tmp_path)
        assert json.loads(forked.stdout) == expected
        assert json.loads(by_name.stdout) == [*expected[:-1], "said"]


def test_a_program_ends_by_the_signal_that_it_gets(tmp_path):
    """As by the interpreter's own: whoever waits for it learns which."""
    waiting = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [f"{programs()}/python", "-c", waiting], text=True, stdout=subprocess.PIPE
    )
    forked = psutil.Process(int(process.stdout.readline()))
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM
    process.stdout.close()
    forked.wait(60)
