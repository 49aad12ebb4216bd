"""Every command that examples/README.md shows is run, in its order; the server's file is read."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from forked import environment, run_shell
from mlflow import MlflowClient
from mlflow.cli import cli as mlflow_command
from mlflow_stores import copy_store
from released_layout import write_released

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "examples" / "README.md").read_text()
LINES = [
    line
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.S | re.M)
    for line in block.splitlines()
]
# What trains with CLEAR's own recipe, on a machine that has a server: said in full, run in short.
SHORTER = {
    "bash examples/clear10.sh DIR": "SEEDS=0 bash examples/clear10.sh DIR --epochs 1 --device cpu",
    "clear-mlflow train": "clear-mlflow train --features pixels --epochs 1",
}
# Shells out to what CI has no right to change, or is parsed below; test_paper.py runs the sweep.
OUTSIDE = ("createdb", "pip install", "mlflow server", "export ", "clear-mlflow sweep")
COMMANDS = [line for line in LINES if not line.startswith(OUTSIDE)]
# Read below, in test_paper.py, test_results.py (borders.yaml), test_clusters.py (Docker, Slurm,
# Kubernetes) and test_notebook.py.
ELSEWHERE = {
    *(
        "sweep.yaml",
        "borders.yaml",
        "notebook.ipynb",
        "server/docker-compose.yaml",
        "slurm/train.sbatch",
    ),
    *("docker/MLproject", "kubernetes/job.yaml"),
}
COMPOSE = yaml.safe_load((ROOT / "examples" / "server" / "docker-compose.yaml").read_text())


@pytest.fixture(scope="module")
def folder(empty_store, tmp_path_factory):
    """A small dataset, and one store for all commands."""
    folder = tmp_path_factory.mktemp("examples")
    client = MlflowClient(copy_store(empty_store, folder))
    # Experiments that the examples open have their artifacts here, too, and not in the checkout.
    for name in ("test", "clear10", "theirs and mine"):
        client.create_experiment(name, artifact_location=(folder / name).as_uri())
    write_released(folder / "data", buckets=("1", "2"), size=(32, 32), train=2, test=1)
    # In place of our program, in bash: state what would be called.
    program = folder / "bin" / "clear-mlflow"
    program.parent.mkdir()
    program.write_text('#!/usr/bin/env bash\nprintf "%q " clear-mlflow "$@"\necho\n')
    program.chmod(0o755)
    return folder


def run(command, folder):
    command = SHORTER.get(command, command).replace("DIR", str(folder / "data"))
    variables = environment(
        MLFLOW_TRACKING_URI=f"sqlite:///{folder / 'mlflow.db'}",
        MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING="false",
        MLFLOW_EXPERIMENT_NAME="clear10" if "clear10" in command else "test",
    )
    variables["PATH"] = f"{folder / 'bin'}{os.pathsep}{variables['PATH']}"
    done = run_shell(command, cwd=ROOT, env=variables, timeout=500)
    if "bash" not in command:
        return done.stdout
    return "".join(run(line, folder) for line in done.stdout.splitlines())


def test_the_page_lists_every_example():
    """An unlisted example would not be run."""
    files = {
        path.relative_to(ROOT / "examples").as_posix()
        for path in (ROOT / "examples").rglob("*")
        if path.name not in ("__init__.py", "README.md")
        and path.suffix not in (".json", ".pyc")
        and path.is_file()
    }
    table = set(re.findall(r"^\| \[\S+\]\((\S+)\) \|", PAGE, re.M))
    assert table == files
    for name in files - ELSEWHERE:
        assert any(f"examples/{name}" in command for command in COMMANDS), name
    assert set(SHORTER) <= set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", dict.fromkeys(SHORTER.get(c, c) for c in COMMANDS))
def test_command(folder, command):
    output = run(command, folder)
    assert output
    if "import_and_compare" in command:  # six seeds of each, one test set: a verdict, no warning
        assert "6 imported" in output
        assert "mine is significantly better than theirs" in output
        assert "! " not in output
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    for stored_run in client.search_runs(ids):
        assert stored_run.info.status == "FINISHED"
        assert stored_run.data.tags.get("clear_mlflow.rows", "complete") == "complete"


def test_the_compose_file_is_complete():
    services = COMPOSE["services"]
    server = mlflow_command.commands["server"]
    (server_command,) = (shlex.split(line) for line in LINES if line.startswith("mlflow server"))
    for words in (server_command, services["mlflow"]["command"]):
        options = server.make_context("server", list(words[2:]), resilient_parsing=False).params
        assert options["backend_store_uri"].startswith("postgresql+psycopg2://")
        assert options["artifacts_destination"].startswith("s3://")
    for service in services.values():
        assert not service.get("image", ":1").endswith(("latest", "/"))
        assert set(service.get("depends_on", ())) <= set(services)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name or "SECRET" in name:
                assert re.fullmatch(r"\$\{\w+:\?.*\}", value)
    pins = (ROOT / "constraints.txt").read_text()
    pinned = re.search(r"^mlflow==(\S+)$", pins, re.M)[1]
    assert f"mlflow=={pinned} " in services["mlflow"]["build"]["dockerfile_inline"]
