"""Real MLflow stores for tests: a fresh sqlite store each, copied from one that was set up once."""

import os
import shutil
import signal
from pathlib import Path

import mlflow
import pytest
from hypothesis import settings
from mlflow import MlflowClient

EXPERIMENT = "test"

# On a developer's machine every run tries other examples; where a change is accepted or refused,
# the same change is always answered the same.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

# A shell that runs pytest in the background (``pytest &``) has it ignore Ctrl-C, and ``nohup`` a
# hang-up, and all that it starts, too: nothing of what is tested of these signals would happen.
for _signal, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)

# Files whose tests start programs and wait for them, the longest first: side by side with the
# others, none of them is left to the end.
_LONGEST = (
    "test_examples.py",
    "test_distributed.py",
    "test_real_servers.py",
    "test_end_to_end.py",
    "test_resume.py",
    "test_readme.py",
    "test_sweep.py",
    "test_on_ray.py",
    "test_outages.py",
    "test_killer.py",
)


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest."""
    place = {name: at for at, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(_LONGEST)))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A database with MLflow's tables and nothing in them; setting one up takes seconds."""
    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{database}").search_experiments()
    return database


@pytest.fixture
def store(empty_store, tmp_path, monkeypatch):
    """A store of its own for one test, as the environment of a user names it."""
    database = tmp_path / "mlflow.db"
    shutil.copy(empty_store, database)
    uri = f"sqlite:///{database}"
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    client.create_experiment(EXPERIMENT, artifact_location=(tmp_path / "artifacts").as_uri())
    yield client
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.fixture
def experiment_id(store):
    """The id of the experiment that the test's store has."""
    return store.get_experiment_by_name(EXPERIMENT).experiment_id


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """A cache folder for the whole session, shared with the processes that tests start."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setenv("CLEAR_MLFLOW_CACHE", str(folder))
    yield folder
    patch.undo()


@pytest.fixture(scope="session")
def project() -> Path:
    """The checkout."""
    return Path(__file__).parent.parent
