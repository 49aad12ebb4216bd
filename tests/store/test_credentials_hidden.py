"""Nothing that commands write contains a secret of the tracking address."""

import shutil

import mlflow
import pytest
from commands import invoke
from flask import Flask
from mlflow import MlflowClient
from mlflow_stores import EXPERIMENT
from stored_runs import stored_run

from clear_mlflow.journal.run_folder import RunFolder
from clear_mlflow.server.views import build_blueprint

SECRET = "c4n4ry-s3cr3t"
ABSENT = "f" * 32
# Addresses of no store: MLflow, SQLAlchemy or the network refuses each in its own words.
REFUSED = {
    "password": "nosuch://me:{}@host/db",
    "token": "nosuch://{}@host/db",
    "password of a server": "http://me:{}@127.0.0.1:9",
    "token of a server": "http://{}@127.0.0.1:9",
    "no user": "http://:{}@127.0.0.1:9",
    "query of a server": "http://127.0.0.1:9/?token={}",
    "query": "nosuch://host/db?password={}",
    "slash": "http://me:a/{}@127.0.0.1:9",
    "at": "http://me:p@{}@127.0.0.1:9",
    "unknown driver": "mysql+nosuch://me:{}@host/db",
    "third slash": "nosuch:///me:{}@host/db",
}


@pytest.fixture
def location(tmp_path, own_cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    (tmp_path / "matrix.csv").write_text("0.9\n0.8,0.7\n")
    (tmp_path / "grid.yaml").write_text(
        "fixed: {strategy: ncm, features: pixels, dataset: digits}\ngrid: {seed: [0, 1]}\n"
    )
    before = mlflow.get_tracking_uri()
    yield tmp_path
    mlflow.set_tracking_uri(before)


def use(monkeypatch, address):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    mlflow.set_tracking_uri(address)


def find_leaks(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("address", REFUSED.values(), ids=REFUSED)
def test_no_error_shows_a_credential(location, monkeypatch, address):
    use(monkeypatch, address.format(SECRET))
    for command in (
        ["train"],
        ["evaluate", "--runs", ABSENT],
        ["evaluate", "--runs", EXPERIMENT],
        ["compare", "--runs", EXPERIMENT],
        ["import", "matrix.csv"],
        ["sweep", "--grid", "grid.yaml"],
        ["train", "--resume", ABSENT],
    ):
        result = invoke(*command)
        assert result.exit_code == 2, result.output
        assert "error: " in result.output
        assert SECRET not in result.output
        assert SECRET not in repr(result.exception)
    assert not find_leaks(location)


@pytest.mark.slow
def test_no_command_stores_a_credential(empty_store, location, monkeypatch):
    shutil.copy(empty_store, location / "mlflow.db")
    address = f"sqlite:///{location / 'mlflow.db'}?key={SECRET}"
    use(monkeypatch, address)
    client = MlflowClient(address)
    experiment = client.create_experiment(EXPERIMENT, (location / "artifacts").as_uri())
    run = stored_run(client, experiment)
    for command, code in (
        (["train", "--strategy", "ncm", "--features", "pixels"], 0),
        (["evaluate", "--runs", EXPERIMENT], 0),
        (["evaluate", "--runs", f"{run.info.run_id},{ABSENT}"], 2),
        (["evaluate", "--runs", "nowhere"], 2),
        (["compare", "--runs", EXPERIMENT], 0),
        (["import", "matrix.csv"], 0),
        (["sweep", "--grid", "grid.yaml"], 0),
        (["sync"], 0),
        (["train", "--resume", ABSENT], 2),
        (["train", "--resume", run.info.run_id], 2),
    ):
        result = invoke(*command)
        assert result.exit_code == code, result.output
        assert SECRET not in result.output, command
    RunFolder.create(location / "cache" / "journal", run.info.run_id, address).close(remove=False)
    assert not find_leaks(location)


def test_the_server_limits_the_length_of_addresses(monkeypatch):
    """So that masking takes a limited time, whatever the web server."""
    for name in ("_MLFLOW_SERVER_FILE_STORE", "_MLFLOW_SERVER_REGISTRY_STORE"):
        monkeypatch.setenv(name, "sqlite:///x.db")
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", "/tmp")
    app = Flask(__name__)
    app.register_blueprint(build_blueprint({"/": lambda: "a page"}))
    assert app.test_client().get("/?filter=" + "a" * 16_000).status_code == 200
    refused = app.test_client().get("/?filter=" + "a" * 17_000)
    assert refused.status_code == 414
    assert "has more than 16384 bytes" in refused.text
