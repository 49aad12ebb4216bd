"""Every command and Python block of the README is run."""

import os
import re
from pathlib import Path

import pytest
from forked import run_forked, run_python, run_shell
from mlflow import MlflowClient
from mlflow_stores import copy_store
from released_layout import write_released

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.S | re.M)
LINES = [line.split("#")[0].strip() for _, block in BLOCKS for line in block.splitlines()]
# Those that install are run as they stand by CI, in a fresh environment; cloning is for readers.
COMMANDS = [
    line.split("&&")[-1].strip()
    for line in LINES
    if re.match(r"(pip install -e \. && )?(mlflow run|clear-mlflow) ", line)
    # test_paper.py runs it with fewer epochs, and test_ui_urls.py what serves for ever.
    and not re.match("clear-mlflow (sweep|open)", line)
]
PYTHON = [block for language, block in BLOCKS if language == "python"]
# CLEAR's own recipe takes hours on a CPU: these make it short. The first command as it stands, all
# epochs of it, is test_end_to_end.py's, and CI's.
SHORT = " -P model=small_cnn -P image_size=32 -P epochs=1"
SHORTER = " -P features=pixels -P epochs=1"


def test_the_readmes_commands_are_tested():
    """Without any command found, the tests below would test nothing."""
    installs = [line for line in LINES if line.startswith("pip install")]
    assert [line.partition(" && ")[2] for line in installs] == [
        "mlflow run . --env-manager local",
        "pytest",
    ]
    assert len(COMMANDS) == 6
    assert len(PYTHON) == 2


@pytest.fixture(scope="module")
def trained(empty_store, tmp_path_factory):
    """A store with a run, for commands that read one. Runs that they add are ignored by others."""
    folder = tmp_path_factory.mktemp("trained")
    uri = copy_store(empty_store, folder)
    client = MlflowClient(uri)
    experiment_id = client.create_experiment("test", (folder / "artifacts").as_uri())
    options = ("--features", "pixels", "--epochs", "1", "--experiment", "test")
    run_forked("train", *options, env={**os.environ, "MLFLOW_TRACKING_URI": uri}, check=True)
    return client, experiment_id


@pytest.mark.program
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_command(store, experiment_id, trained, monkeypatch, tmp_path, command):
    if "evaluate" in command or "compare" in command:
        store, experiment_id = trained
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store.tracking_uri)
        (run,) = store.search_runs([experiment_id], "tags.strategy != ''")
        command = command.replace("=RUN", f"={run.info.run_id}").replace(" Default", " test")
    if "dataset=clear10" in command:  # test_clear10_command.py downloads it
        monkeypatch.setenv("CLEAR_MLFLOW_DATA", str(tmp_path))
        write_released(tmp_path / "clear10", size=(32, 32))
    if "DIR" in command:
        write_released(tmp_path / "data", size=(32, 32))
        command = command.replace("DIR", str(tmp_path / "data"))
        # Torchvision's own weights would have to be downloaded.
        command = command.replace("--weights DEFAULT", "--weights none")
    if command.startswith("mlflow run"):
        command += " --experiment-name test"
        if " -e " not in command:
            command += SHORT if "clear10" in command else SHORTER
    run_shell(command, cwd=ROOT, timeout=300)
    for stored_run in store.search_runs([experiment_id], "tags.strategy != ''"):
        assert stored_run.info.status == "FINISHED"
        assert stored_run.data.tags["clear_mlflow.rows"] == "complete"


@pytest.mark.parametrize("code", PYTHON)
def test_python(store, code):
    run_python("-c", code, cwd=ROOT, timeout=300, check=True)
