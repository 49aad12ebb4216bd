"""Every command, in a folder with special characters in its name."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import click
import mlflow
import pytest
from click.testing import CliRunner
from file_server import REPOSITORY, Hub, serving
from forked import Forked, run_forked
from huggingface_hub import constants
from mlflow_stores import tracking_uri
from released_layout import write_released, zip_folder
from servers import tracking_server
from waiting import LONG

from clear_mlflow.cli import main
from clear_mlflow.data.download import RELEASES, Archive, Release
from clear_mlflow.journal.run_folder import OUTCOME_JSON, Outcome, RunFolder
from clear_mlflow.store.client import connect_store
from clear_mlflow.store.rows import read_row_files

pytestmark = pytest.mark.slow

NAME = "my prøject 100% #1? & 'co' $HOME (b)"
MATRIX = "trained,1,2\n1,0.9,0.1\n2,0.5,0.8\n"


def list_commands(group=main, *words):
    """Return the words of every command, without its group's options."""
    return {
        path
        for name, command in group.commands.items()
        for path in (
            list_commands(command, *words, name)
            if isinstance(command, click.Group)
            else {(*words, name)}
        )
    }


@pytest.fixture
def folder(request, tmp_path, empty_store, monkeypatch):
    """The working folder, with its store: MLflow's default, a relative SQLite URI, or a server."""
    folder = tmp_path / "parent" / NAME
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "my 100% expériment")
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(folder / "my cache"))
    monkeypatch.setenv("CLEAR_MLFLOW_DATA", str(folder / "my data"))
    monkeypatch.setattr(mlflow.tracking.fluent, "_active_experiment_id", None)
    with tracking_uri(None), ExitStack() as stack:
        if request.param == "sqlite":
            monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///my%20stores/runs.db")
        if request.param == "server":
            shutil.copy(empty_store, "server.db")
            server = tracking_server(folder, "sqlite:///server.db", artifacts="./artifacts")
            monkeypatch.setenv("MLFLOW_TRACKING_URI", stack.enter_context(server).wait())
        yield folder


class Commands:
    """Runs commands as a user types them, and records which of them succeeded."""

    def __init__(self):
        self.succeeded = set()
        self.environment = dict(os.environ)  # MLflow changes it in this process

    def start(self, *words):
        """Return the standard output of a command that trains, in its own processes."""
        done = run_forked(*map(str, words), env=self.environment, timeout=LONG, check=True)
        self.record(words)
        return done.stdout

    def run(self, *words):
        """Return the standard output of a command that starts no other process."""
        done = CliRunner().invoke(main, list(map(str, words)))
        assert done.exit_code == 0, done.output
        self.record(words)
        return done.stdout

    def record(self, words):
        self.succeeded |= {path for path in list_commands() if path == words[: len(path)]}


def write_dataset(folder):
    """Write a small dataset. Return its folder, and the options of a short training on it."""
    data = write_released(folder / "my dataset", buckets=["1", "2"], size=(32, 32), train=4, test=3)
    options = ("--dataset", "clear10", "--data-root", data, "--features", "pixels")
    return data, (*options, "--epochs", "1", "--predictions", "none")


def train(commands, options):
    """Return the id of a new run."""
    return re.search(r"run ([0-9a-f]{32}) FINISHED", commands.start("train", *options))[1]


def check_names(folder):
    """Check that nothing is in a folder with a percent-encoded name, or next to this one."""
    assert [path.name for path in folder.parent.iterdir()] == [NAME]
    assert not [path for path in folder.rglob("*") if "%20" in path.name]


@pytest.mark.parametrize("folder", ["default store"], indirect=True)
def test_every_command_works(folder, monkeypatch):
    commands = Commands()
    data, train_options = write_dataset(folder)
    commands.run("data", "check", data)
    commands.run("data", "features", data, "--backbone", "mobilenet_v3_small", "--weights", "none")
    download_release(commands, data, monkeypatch)

    trained = train(commands, train_options)
    commands.start("train-distributed", "--processes", "1", "--seed", "1", *train_options)
    options = zip(train_options[::2], train_options[1::2], strict=True)
    fixed = {name.removeprefix("--").replace("-", "_"): str(value) for name, value in options}
    Path("my grid.json").write_text(json.dumps({"fixed": fixed, "grid": {"seed": [2]}}))
    commands.start("sweep", "--grid", "my grid.json")

    assert "clear/in_domain_accuracy" in commands.run("show", trained)
    commands.run("evaluate", trained)
    assert "50.0: " in commands.run("identify", trained, "50.0")
    Path("my matrix.csv").write_text(MATRIX)
    report = json.loads(commands.run("import", "my matrix.csv", "--num-instances", "10", "--json"))
    (imported,) = (file["run_id"] for file in report["files"])
    commands.run("compare", trained, imported)
    for bundle in ("my bundles", "my bundles.tar.xz"):
        commands.run("export", trained, imported, bundle)
        commands.run("compare", bundle)
    commands.run("show", f"my bundles.tar.xz/{next(Path('my bundles').iterdir()).name}")

    resend_run(commands, trained)
    open_report(commands, trained)
    assert commands.succeeded == list_commands()
    check_names(folder)


@pytest.mark.parametrize("folder", ["sqlite", "server"], indirect=True)
def test_other_stores_are_written_and_read(folder):
    commands = Commands()
    trained = train(commands, write_dataset(folder)[1])
    assert "clear/in_domain_accuracy" in commands.run("show", trained)
    commands.run("evaluate", trained)
    commands.run("export", trained, "my bundles")
    commands.run("compare", trained, "my bundles")
    resend_run(commands, trained)
    if "http" in os.environ["MLFLOW_TRACKING_URI"]:  # no second server is started
        open_report(commands, trained)
    check_names(folder)


def download_release(commands, data, monkeypatch):
    """Download a small release from a hub on this machine."""
    files = {f"{split}.zip": zip_folder(data, split) for split in ("train", "test")}
    archives = tuple(
        Archive(name, hashlib.md5(content).hexdigest(), name.removesuffix(".zip"), 10**9)
        for name, content in files.items()
    )
    with serving(Hub(files=files)) as hub, monkeypatch.context() as patch:
        patch.setitem(RELEASES, "clear10", Release("clear10", REPOSITORY, archives))
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        commands.run("data", "download", "clear10")
    commands.run("data", "check", "clear10")


def resend_run(commands, trained):
    """Send a run from a run folder, as a killed training leaves it."""
    client = connect_store()
    run = client.get_run(trained)
    tags = {name: text for name, text in run.data.tags.items() if name == "clear_mlflow.kind"}
    resent = client.create_run(run.info.experiment_id, tags=tags)
    run_id = resent.info.run_id
    journal = RunFolder.create(Path("unsent_rows", run_id), run_id, client.tracking_uri)
    for name, content in read_row_files(client, run).items():
        journal.append(f"accuracy_matrix/rows/{name}", content)
    journal.append_json(OUTCOME_JSON, Outcome("FINISHED"))
    journal.close()
    assert "scored, FINISHED" in commands.run("sync")
    assert not list(Path("unsent_rows").iterdir())


def open_report(commands, run_id):
    """Open a run's page in a server of the command, or in the existing one."""
    words = ("open", run_id, "--browser", "no")
    options = {"env": commands.environment, "stdout": subprocess.PIPE}
    process = Forked(*words, **options, start_new_session=True)
    address = process.stdout.readline().strip()
    try:
        base = address.partition("/#/")[0]
        query = f"{base}/get-artifact?path=report.html&run_uuid={run_id}"
        assert b"in_domain" in urllib.request.urlopen(query, timeout=LONG).read()
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
        assert process.wait(LONG) in (0, 130)
    commands.record(words)
