"""examples/slurm and examples/docker: a job is one run, from its start over requeues to its end.

A node has its own host name and process ids by namespaces, which need no root.
"""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from forked import PIPED, environment, run_forked
from mlflow import MlflowClient
from mlflow.projects.utils import load_project
from mlflow_stores import copy_store
from stored_runs import history, only_run, read_comparable_rows, read_stored_rows, wait_for_row
from waiting import finish, finish_well, wait_until

from clear_mlflow.cli import main
from clear_mlflow.core.record import ROWS_FOLDER, format_row_file_name

ROOT = Path(__file__).parents[2]
JOB = "17"


@pytest.fixture
def slurm(empty_store, tmp_path):
    """A folder to submit from, with commands that run jobs and record requeues as Slurm's do."""
    commands = tmp_path / "bin"
    commands.mkdir()
    srun = '#!/usr/bin/env bash\nshift\n"$@" &\necho $! > step.pid\nwait $!\n'
    scontrol = '#!/usr/bin/env bash\necho "$@" >> scontrol.log\n'
    for name, text in {"srun": srun, "scontrol": scontrol}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    uri = copy_store(empty_store, tmp_path)
    variables = environment(MLFLOW_TRACKING_URI=uri, SLURM_JOB_ID=JOB)
    variables["PATH"] = f"{commands}{os.pathsep}{variables['PATH']}"

    def start(**slurm_says):
        job = ["bash", str(ROOT / "examples/slurm/train.sbatch"), *TRAINED]
        return start_piped(job, tmp_path, variables | slurm_says)

    return tmp_path, MlflowClient(uri), start


TRAINED = ["--features", "pixels", "--strategy", "naive", "--epochs", "3", "--device", "cpu"]


def on_node(name, *words):
    """Return a command on a node whose processes all die when its first process is killed."""
    spaces = ["--map-root-user", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *spaces, "sh", "-c", 'hostname "$0" && exec "$@"', name, *words]


def start_piped(words, folder, variables):
    return subprocess.Popen(words, cwd=folder, env=variables, text=True, **PIPED)


# The program, with a lease that expires sooner.
QUICKER = """
from clear_mlflow.cli import main
from clear_mlflow.store import lease
from clear_mlflow.tracking import run_recorder
lease.EXPIRY_SECONDS, run_recorder.RENEW_SECONDS = 10.0, 1.0
main()
"""


@pytest.mark.slow
def test_a_container_that_was_killed_is_resumed_when_its_lease_has_expired(slurm):
    """The next container cannot see its processes."""
    folder, client, _ = slurm
    run_id = client.create_run("0").info.run_id
    variables = os.environ | {"MLFLOW_TRACKING_URI": client.tracking_uri}
    program = on_node("container", sys.executable, "-c", QUICKER, "train", *TRAINED)
    first = start_piped(program, folder, variables | {"MLFLOW_RUN_ID": run_id})
    wait_for_row(client, "0", 2, first, run_id)
    # Its number is not to be that of the next one, which would then know that all of it is gone.
    with Path(f"/proc/{first.pid}/ns/pid_for_children").open():
        first.kill()
        finish(first)
        assert client.get_run(run_id).info.status == "RUNNING"
        second = start_piped(program, folder, variables | {"MLFLOW_RUN_ID": run_id})
        printed = finish_well(second)
    assert printed.count("waiting up to 10 s for the expiry of its lease") == 1
    run_forked("train", *TRAINED, cwd=folder, env=variables, check=True)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["clear_mlflow.resumed"]) == ("FINISHED", "1")
    undisturbed = only_run(client, "0", f"attributes.run_id != '{run_id}'")
    assert len(read_stored_rows(undisturbed)) == 11
    assert read_comparable_rows(run) == read_comparable_rows(undisturbed)
    assert history(client, run_id) == history(client, undisturbed.info.run_id)


@pytest.mark.slow
def test_a_job_that_receives_sigterm_resumes_its_run(slurm):
    folder, client, start = slurm
    job = start(SLURM_ARRAY_TASK_ID="3")
    file = folder / f"clear-{JOB}.run"
    run = wait_until(lambda: file.exists() and file.read_text().strip(), job)
    wait_until(lambda: client.list_artifacts(run, ROWS_FOLDER), job)
    os.kill(int((folder / "step.pid").read_text()), signal.SIGTERM)
    code, printed = finish(job)
    assert code == 143, printed
    assert (folder / "scontrol.log").read_text() == f"requeue {JOB}\n"
    assert client.get_run(run).info.status == "KILLED"

    finish_well(start(SLURM_ARRAY_TASK_ID="3", SLURM_RESTART_COUNT="1"))
    only = only_run(client, "0")
    assert (only.info.run_id, only.info.status) == (run, "FINISHED")
    assert only.data.params["seed"] == "3"
    assert only.data.tags["clear_mlflow.resumed"] == "1"
    rows = {Path(file.path).name for file in client.list_artifacts(run, ROWS_FOLDER)}
    assert rows == {format_row_file_name(i) for i in range(11)}
    assert (folder / "scontrol.log").read_text() == f"requeue {JOB}\n"


@pytest.mark.slow
def test_a_job_that_fails_is_not_queued_again(slurm):
    """Only a stopped job is: an invalid option would fail forever."""
    folder, _, start = slurm
    code, printed = finish(start(SLURM_ARRAY_TASK_ID="many"))
    assert code == 2, printed
    assert "many" in printed
    assert not (folder / "scontrol.log").exists()


def test_the_containers_project_passes_every_parameter():
    project = load_project(ROOT / "examples/docker")
    assert project.docker_env == {"image": "clear_mlflow"}
    # Kubernetes makes a job's name of it: letters, digits and hyphens.
    assert project.name == "clear-mlflow"
    command = project.get_entry_point("main").compute_command({"dataset": "clear10"}, None)
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "clear_mlflow", "train"]
    parsed = main.commands["train"].make_context("train", words[4:])
    assert parsed.params["dataset"] == "clear10"


def test_kubernetes_ranks_come_from_the_job():
    job = yaml.safe_load((ROOT / "examples/kubernetes/job.yaml").read_text())
    assert "name" in job["metadata"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name", "image", "command"} <= set(container)
    assert isinstance(container["env"], list)
