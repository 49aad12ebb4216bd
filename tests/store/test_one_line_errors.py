"""Unusable stores and environments are one-line errors with an exit code."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pyarrow as pa
import pytest
from commands import invoke, run_command
from forked import run_forked
from pyarrow import parquet
from stored_runs import stored_run

import clear_mlflow
from clear_mlflow.api import import_
from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.importers import ReadOptions, ResultFile, parse_runs
from clear_mlflow.store import client as store_client
from clear_mlflow.store.client import connect_store


def test_an_artifact_location_that_stores_nothing_is_a_one_line_error(store, monkeypatch):
    """MLflow accepts it for an experiment, and fails at the first artifact."""
    store.create_experiment("elsewhere", artifact_location="http://127.0.0.1:9/x")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    with pytest.raises(TrackingError, match=r":9/x, which is not an artifact store"):
        connect_store()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            ["train", "--strategy", "ewc", "--memory", "100"],
            "error: --memory is 100, but strategy ewc does not use it; leave --memory out",
        ),
        (["import", "x.csv", "--orientation", "rows"], "pass --scale percent"),
        (["import", "m.json"], ": num_instances: expected"),  # a field, and not an option
        (
            ["import", "x.csv", "--table", "--columns", "a"],
            "error: x.csv: --columns is 'a', but the file lacks",
        ),
        (
            ["import", "x.csv", "--table", "--columns", "a"],
            "failed   'x.csv': --columns is 'a'",  # in the table
        ),
        (
            ["identify", "r.json", "3", "--orientation", "columns"],
            "error: 'r.json': --orientation is 'columns', but the format renate-results itself "
            "marks the rows; leave --orientation out",
        ),
        (
            ["train", "--budget", "naive:0.5", "--test-every", "1"],
            "error: --budget is naive:0.5 and --test-every is 1; the number of steps in a bucket "
            "is not known before it is trained: leave --test-every at off",
        ),
        (
            ["train", "--protocol", "streaming", "--split", "30", "--seed", "1"],
            "error: --protocol is streaming and --split is 30, but with streaming a bucket's test "
            "set is its training data; leave --split at auto, or pass --protocol iid",
        ),
        (
            ["train", "--dataset", "weather", "--features", "pixels", "--model", "linear"],
            "error: dataset weather consists of vectors and --features is pixels; pass --features",
        ),
        (["train", "--config", "config.json"], "error: lr_step is 'often'"),
        (["train", "--lr-step", "often"], "error: --lr-step is 'often'"),
        (
            ["train", "--strategy", "ncm", "--model", "mlp:8", "--features", "pixels"],
            "pass --model linear, and standardise=first",
        ),
    ],
)
def test_messages_spell_options_as_they_are_typed(store, tmp_path, monkeypatch, arguments, part):
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("75,50\n70,90\n")
    Path("m.json").write_text('{"matrix": [[0.8, 0.6], [0.7, 0.9]], "num_instances": "x"}')
    Path("r.json").write_text('{"accuracy": [[0.8, 0.6], [0.7, 0.9]], "accuracy_init": [[0, 0]]}')
    Path("config.json").write_text('{"lr_step": "often"}')
    assert part in invoke(*arguments).output


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["evaluate", "RUN", "--rows-scale", "percent"], "'percent', but no rows of another"),
        (["evaluate", "RUN", "--rows-future", "tested"], "pass --rows PATH as well, or leave it"),
        (["evaluate", "RUN", "--rows-orientation", "rows"], "pass --rows PATH as well"),
        (["evaluate", "RUN", "--rows-score", "rmse"], "pass --rows PATH as well"),
        (["evaluate", "RUN", "--rows-lower-is-better"], "pass --rows PATH as well"),
        (["evaluate", "RUN", "--rows", ""], "rows is ''"),
        (["identify", "RUN", "0.5", "--scale", "percent"], "but no file of results is passed"),
        (["identify", "RUN", "0.5", "--rows", "(x)"], "but no file of results is passed"),
        (
            ["import", "--from", "STORE", "RUN", "--seed", "1"],
            "--seed is passed for runs of a store",
        ),
        (["import", "--from", "STORE", "--again"], "--again is passed for runs of a store"),
        (["data", "check", "DIR", "--dataset-args", "a=1"], "but no custom stream is named"),
        (["data", "check", "clear10", "--borders", "year"], "pass --dataset NAME as well"),
        (["open", "--port", "5000"], "5000, but the store is the server http://127.0.0.1:9; leave"),
        (["sweep", "g.yaml", "--cpus", "2"], "which applies only to Ray; pass --engine ray"),
        (["import", "x.csv", "--row-metric", "(a)"], "pass --table true and --columns"),
    ],
)
def test_an_option_that_has_no_effect_is_an_error(
    store, experiment_id, tmp_path, monkeypatch, arguments, part
):
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text(".75,.50\n.70,.90\n")
    Path("g.yaml").write_text("{grid: {seed: [0]}}")
    values = {"RUN": stored_run(store, experiment_id).info.run_id, "DIR": str(tmp_path)}
    values["STORE"] = store.tracking_uri
    if arguments[0] == "open":
        mlflow.set_tracking_uri("http://127.0.0.1:9")
    done = invoke(*(values.get(word, word) for word in arguments))
    assert done.exit_code == 2
    assert part in done.output
    (option,) = [word for word in arguments if word.startswith("--") and word != "--from"]
    assert option in done.output or option == "--rows"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["import", "m.json", "--num-instances", "5"], "json): num_instances: expected"),
        (["identify", "m.json", "1", "--num-instances", "5"], "json): num_instances: expected"),
        (["import", "n.json", "--num-instances", "5"], "json): num_instances[0]: expected"),
        (["import", "m.json", "--num-instances", "x"], "error: --num-instances is 'x'; expected"),
        (["train", "--config", "c.json", "--memory", "9"], "error: lr is 'fast'; expected"),
        (["sweep", "g.yaml", "--jobs", "0"], "error: --jobs is 0; expected"),
        (["sweep", "g.yaml", "--jobs", "2"], "error: the sweep g.yaml: runs is 'jobs'; expected"),
        (["sweep", "g.yaml", "--engine", "ray", "--cpus", "1.5"], "error: --cpus is 1.5; expected"),
    ],
)
def test_a_field_of_a_file_is_not_spelled_as_an_option(
    store, tmp_path, monkeypatch, arguments, part
):
    """Not even if an option of that name is passed: an error names its parameter."""
    monkeypatch.chdir(tmp_path)
    Path("m.json").write_text('{"matrix": [[0.8, 0.6], [0.7, 0.9]], "num_instances": "x"}')
    Path("n.json").write_text('{"matrix": [[0.8, 0.6], [0.7, 0.9]], "num_instances": ["x", 3]}')
    Path("c.json").write_text('{"lr": "fast"}')
    Path("g.yaml").write_text("{grid: {seed: [0]}}" if arguments[-1] != "2" else "{runs: jobs}")
    assert part in invoke(*arguments).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", " "], "cannot load run ' ': no such run"),
        (["import", " "], "' ' is not a file"),
        (["import", "--from", " ", "x"], "the store ' ' does not exist"),
        (["sync", " "], "' ' cannot be read: No such file"),
        (["data", "check", "\u3164"], "data root '\\u3164' cannot be read"),
    ],
)
def test_a_blank_name_is_quoted(store, tmp_path, monkeypatch, arguments, message):
    """Blanks next to each other are one: the name would be missing from the sentence."""
    monkeypatch.chdir(tmp_path)
    assert f"error: {message}" in run_command(*arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((["compare", ""], "runs is ''"), (["evaluate", ""], "runs is ''")),
        *((["show", ""], "run is ''"), (["export", "", "x"], "runs is ''")),
        (["export", "RUN", ""], "to is ''; expected a path"),
        *((["import", ""], "paths is ''"), (["sync", ""], "folders is ''")),
        *((["open", ""], "target is ''"), (["sweep", ""], "grid is ''; expected a path")),
        (["identify", "", "5"], "matrix is ''"),
        (["data", "check", ""], "folder is ''; expected a path"),
        (["data", "download", "clear10", ""], "folder is ''; expected a path"),
        (["train", "--config", ""], "--config is ''; expected a path"),
        (["train", "--data-root", ""], "--data-root is ''; expected a path of printable"),
        (["train", "--weights", " "], "--weights is ' '; expected a path of printable"),
        (["train", "--experiment", ""], "--experiment is ''; expected a name"),
        (["sweep", "x.yaml", "--experiment", ""], "--experiment is ''; expected a name"),
        (["train", "--run-name", ""], "--run-name is ''; expected a name"),
        (["import", "x.csv", "--orientation", "rows", "--experiment", ""], "experiment's name is"),
        (["evaluate", "--filter", ""], "no runs are chosen"),
    ],
)
def test_an_empty_argument_is_an_error(store, tmp_path, monkeypatch, arguments, message):
    """A shell variable that is not set was the working folder, all runs, or no argument."""
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text(".75,.50\n.70,.90\n")
    assert message in run_command(*arguments, code=2)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ""] == []


def test_an_empty_path_in_python_is_an_error(store):
    calls = (clear_mlflow.load, clear_mlflow.runs, clear_mlflow.import_runs, clear_mlflow.sync)
    for call in (*calls, partial(clear_mlflow.export, to="x"), clear_mlflow.evaluate):
        for value in ("", [""], 5):
            with pytest.raises(ConfigError, match=r"(contains|got) (''|5|\[''\]); expected"):
                call(value)


def test_messages_of_functions_spell_arguments_as_in_python():
    with pytest.raises(RecordError, match='pass scale="percent"'):
        parse_runs(ResultFile("x.csv", b"75,50\n70,90\n", ReadOptions(orientation="rows")))


# Makes a package unimportable in a process and in those that it starts.
WITHOUT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "{package}".split():
            raise {error}(f"no {{name}} here"{keywords})
sys.meta_path.insert(0, Missing())
"""
# Runs commands, or Python after "!", and prints exit codes.
RUN_LINES = """
import shlex, sys
import clear_mlflow
from clear_mlflow.cli import main
for line in sys.stdin.read().splitlines():
    try:
        exec(line[1:]) if line[0] == "!" else main(shlex.split(line), prog_name="clear-mlflow")
    except SystemExit as ended:
        print("exit", ended.code, line, file=sys.stderr)
"""


@pytest.fixture
def run_without(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), *sys.path)))

    def run(package, *lines, error="ModuleNotFoundError"):
        keywords = ", name=name" if error == "ModuleNotFoundError" else ""
        text = WITHOUT.format(package=package, error=error, keywords=keywords)
        (tmp_path / "sitecustomize.py").write_text(text)
        command, pipes = [sys.executable, "-c", RUN_LINES], {"capture_output": True, "text": True}
        done = subprocess.run(command, input="\n".join(lines), cwd=tmp_path, check=False, **pipes)
        return done.stderr, [x for x in done.stderr.splitlines() if x.startswith(("exit", "err"))]

    return run


@pytest.mark.slow
def test_recorded_results_can_be_read_and_compared_without_torch(run_without, tmp_path):
    """What docs/install.md promises without torch and torchvision."""
    (tmp_path / "x.csv").write_text(".75,.50\n.70,.90\n")
    table = {"step": [1, 2], "acc/1": [0.7, 0.6], "acc/2": [0.2, 0.9]}
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    lines = [
        "!run = clear_mlflow.track(buckets=2, num_instances=9, seed=0)",
        "!with run: run.log_counts(1, [3, 4])",
        *("import x.csv --orientation rows", "evaluate Default", "identify x.csv 0.8"),
        "import t.parquet --table --columns step --row-metric acc/(.)",
        *("compare Default --published", "export Default out", "!main(['show', run.run_id])"),
    ]
    stderr, ends = run_without("torch torchvision", *lines)
    assert ends == [f"exit 0 {line}" for line in lines[2:]], stderr


CALL = (
    '!exec("try: {call}\\nexcept clear_mlflow.ClearError as error: '
    "print('error:', error, file=sys.stderr)\")"
)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torch", "torchvision", "torch torchvision"])
def test_a_training_in_python_names_the_package_that_is_missing(run_without, package):
    calls = ("clear_mlflow.train(model='resnet18')", "clear_mlflow.sweep({'grid': {'seed': [0]}})")
    calls = calls[: 1 if package == "torchvision" else 2]  # the sweep's model does not need it
    stderr, messages = run_without(package, *(CALL.format(call=call) for call in calls))
    name = package.split()[0]
    assert len(messages) == len(calls), stderr
    for message in messages:
        assert f" needs the package {name}, which cannot be imported" in message, stderr
        assert message.endswith(f"pip install {name}"), stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "error", "line"),
    [
        ("torch", "ModuleNotFoundError", "train --epochs 1"),
        ("torch", "OSError", "sweep grid.yaml"),
        ("torchvision", "RuntimeError", "train --model resnet18"),
    ],
)
def test_a_missing_package_is_a_line_that_says_how_to_install_it(
    run_without, tmp_path, package, error, line
):
    (tmp_path / "grid.yaml").write_text("grid: {seed: [0]}")
    stderr, (message, end) = run_without(package, line, error=error)
    assert f"needs the package {package}, which cannot be imported" in message, stderr
    assert message.endswith(f"pip install {package}")
    assert end == f"exit 2 {line}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sweep", "none.yaml"], "cannot read the sweep none.yaml: No such file or directory"),
        (["sweep", "bad.yaml"], "is not YAML: expected ',' or '}', but got '<scalar>' in line 2, "),
        (["train", "--config", "none.json"], "configuration none.json: No such file or directory;"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_plain_line(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("grid: {seed: [0, 1]\nfixed: 2")
    output = run_command(*arguments, code=2)
    assert expected in output
    assert not any(part in output for part in ("\\n", "Errno"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "test"], "error: the comparison is not stored: cannot store the compar"),
        (["evaluate", "test", "--metrics", "gem"], ": cannot log the scores of run"),
        (["import", "x.csv", "--orientation", "rows"], "x.csv: cannot"),
    ],
)
def test_a_database_that_cannot_be_written_is_named_without_its_statements(
    store, experiment_id, tmp_path, monkeypatch, arguments, message
):
    """A comparison is printed: only its run is missing."""
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text(".75,.50\n.70,.90\n")
    stored_run(store, experiment_id)
    with closing(sqlite3.connect(store.tracking_uri.removeprefix("sqlite:///"))) as connection:
        for table in ("runs", "metrics"):
            connection.execute(
                f"CREATE TRIGGER {table}_kept BEFORE INSERT ON {table} "
                "BEGIN SELECT RAISE(ABORT, 'a readonly database'); END"
            )
    output = run_command(*arguments, code=2)
    assert message in output
    assert "IntegrityError) a readonly database" in output
    assert not re.search("SQL:|autoflush|INSERT|parameters", output)
    assert arguments[0] != "compare" or "challenge_" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "RUN", "/proc/x"], "cannot write '/proc/x': No such file or directory\n"),
        (
            ["open", "RUN", "--port", "PORT"],
            "PORT: Address already in use; pass another one, or auto\n",
        ),
        (["train", "--offline"], "/proc/x cannot be created: No such file or directory; name"),
    ],
)
def test_an_error_of_the_system_is_one_plain_sentence(
    store, experiment_id, monkeypatch, arguments, message
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = {"PORT": str(server.getsockname()[1])}
        values["RUN"] = stored_run(store, experiment_id).info.run_id
        if arguments[0] == "train":
            monkeypatch.setenv("CLEAR_MLFLOW_OFFLINE", "/proc/x")
        output = run_command(*(values.get(word, word) for word in arguments), code=2)
    assert message.replace("PORT", values["PORT"]) in output
    assert "Errno" not in output


@pytest.mark.parametrize("command", [["evaluate", "--unscored-only"], ["import", __file__]])
def test_ctrl_c_while_a_store_hangs_exits_with_130(command, monkeypatch):
    calls = []

    def hang(**options):
        calls.append(options)
        os.kill(os.getpid(), signal.SIGINT)

    for module in (import_, store_client):
        monkeypatch.setattr(module, "connect_store", hang)
    done = invoke(*command)
    assert done.exit_code == 130
    assert len(calls) == 1


@pytest.mark.slow
def test_an_unreadable_database_is_an_error_within_seconds(tmp_path, monkeypatch):
    """MLflow retries for 101 s without output."""
    naps = []
    monkeypatch.setattr("mlflow.store.db.utils.time", SimpleNamespace(sleep=naps.append))
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}")
    with pytest.raises(TrackingError, match="cannot read experiments"):
        connect_store()
    assert 0 < sum(naps) < 10


@pytest.mark.slow
def test_a_locked_database_is_a_one_line_error(store, experiment_id):
    run_id = stored_run(store, experiment_id).info.run_id
    with closing(sqlite3.connect(store.tracking_uri.removeprefix("sqlite:///"))) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        done = run_forked("evaluate", "--runs", run_id, timeout=120)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "database is locked" in line
    assert "stopped" in line
