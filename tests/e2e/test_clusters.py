"""examples/slurm and examples/docker: a job is one run, from its start over requeues to its end."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.projects.utils import load_project

from clear_mlflow.cli import main
from clear_mlflow.core.record import ROWS_FOLDER, row_file_name

ROOT = Path(__file__).parents[2]
JOB = "17"


@pytest.fixture
def slurm(empty_store, tmp_path):
    """A folder to submit from, and commands that do what Slurm's do: run, and note a requeue."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    commands = tmp_path / "bin"
    commands.mkdir()
    srun = '#!/usr/bin/env bash\nshift\n"$@" &\necho $! > step.pid\nwait $!\n'
    scontrol = '#!/usr/bin/env bash\necho "$@" >> scontrol.log\n'
    for name, text in {"srun": srun, "scontrol": scontrol}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(
            [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "SLURM_JOB_ID": JOB,
    }

    def start(**slurm_says):
        words = ["--features", "pixels", "--epochs", "1", "--strategy", "naive"]
        return subprocess.Popen(
            ["bash", str(ROOT / "examples/slurm/train.sbatch"), *words],
            cwd=tmp_path,
            env=environment | slurm_says,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return tmp_path, start


def test_a_job_that_is_asked_to_stop_resumes_its_run(slurm):
    """SIGTERM to the step: the job queues again; its next start completes the one run it has."""
    folder, start = slurm
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    job = start(SLURM_ARRAY_TASK_ID="3")
    run = _run_of(folder, job)
    deadline = time.monotonic() + 120
    while not client.list_artifacts(run, ROWS_FOLDER) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(int((folder / "step.pid").read_text()), signal.SIGTERM)
    printed, _ = job.communicate(timeout=120)
    assert job.returncode == 143, printed
    assert (folder / "scontrol.log").read_text() == f"requeue {JOB}\n"
    assert client.get_run(run).info.status == "KILLED"

    job = start(SLURM_ARRAY_TASK_ID="3", SLURM_RESTART_COUNT="1")
    printed, _ = job.communicate(timeout=240)
    assert job.returncode == 0, printed
    (only,) = client.search_runs(["0"])
    assert only.info.run_id == run
    assert only.info.status == "FINISHED"
    assert only.data.params["seed"] == "3"
    assert only.data.tags["clear_mlflow.resumed"] == "1"
    rows = {Path(file.path).name for file in client.list_artifacts(run, ROWS_FOLDER)}
    assert rows == {row_file_name(i) for i in range(11)}
    assert (folder / "scontrol.log").read_text() == f"requeue {JOB}\n"


def test_a_job_that_fails_is_not_queued_again(slurm):
    """Only what was asked to stop is: a wrong option would fail for ever."""
    folder, start = slurm
    job = start(SLURM_ARRAY_TASK_ID="many")
    printed, _ = job.communicate(timeout=120)
    assert job.returncode == 2, printed
    assert "many" in printed
    assert not (folder / "scontrol.log").exists()


def _run_of(folder, job):
    file = folder / f"clear-{JOB}.run"
    while not file.exists():
        assert job.poll() is None, job.stdout.read()
        time.sleep(0.05)
    return file.read_text().strip()


def test_the_containers_project_hands_over_every_parameter():
    """MLflow reads it as a project in a container, whose command our command line takes."""
    project = load_project(ROOT / "examples/docker")
    assert project.docker_env == {"image": "clear_mlflow"}
    # Kubernetes makes a job's name of it: letters, digits and hyphens.
    assert project.name == "clear-mlflow"
    command = project.get_entry_point("main").compute_command({"dataset": "clear10"}, None)
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "clear_mlflow", "train"]
    parsed = main.commands["train"].make_context("train", words[4:])
    assert parsed.params["dataset"] == "clear10"


def test_kubernetes_finds_its_places_in_the_job():
    """The template has a place for a job's name, image, command and environment."""
    job = yaml.safe_load((ROOT / "examples/kubernetes/job.yaml").read_text())
    assert "name" in job["metadata"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name", "image", "command"} <= set(container)
    assert isinstance(container["env"], list)
