"""What works beside MLflow alone: the pages, and the commands that do not train."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "only_beside_mlflow.py"

PAGES = """
import os
from comparisons import counts, log_run
from mlflow import MlflowClient

client = MlflowClient(os.environ["_MLFLOW_SERVER_FILE_STORE"])
experiment_id = client.create_experiment("light")
for name, level in (("naive", 120), ("replay", 160)):
    for seed in range(3):
        log_run(client, experiment_id, name, counts(level, seed), strategy=name, seed=seed)

from clear_mlflow.server.mlflow_app import create_app

asked = create_app().test_client()
assert asked.get("/clear/").status_code == 200
page = asked.get("/clear/compare", query_string={"experiment_id": experiment_id})
assert page.status_code == 200, page.text
assert "6 runs in 2 groups by strategy and dataset" in page.text
"""

COMMANDS = """
from pathlib import Path

import mlflow
from kept_predictions import kept_run

import clear_mlflow
from clear_mlflow.cli import main

experiment_id = mlflow.set_experiment("light").experiment_id
for seed in range(2):
    with clear_mlflow.track(buckets=3, num_instances=100, dataset="mine", seed=seed) as run:
        for i in range(4):
            run.log_row(i, [10 + 20 * i + seed, 20 + 10 * i, 30])
kept = [kept_run(mlflow.MlflowClient(), experiment_id, probs=True).info.run_id for _ in range(2)]
Path("matrix.csv").write_text("0.9,0.5\\n0.8,0.9\\n")
main(["import", "matrix.csv", "--dataset", "other", "--seed", "0"], standalone_mode=False)
main(["evaluate", "--experiment", "light"], standalone_mode=False)
scored = mlflow.get_run(kept[0]).data.metrics
assert {"clear/in_domain_accuracy", "calibration/expected_calibration_error"} <= scored.keys()
main(["compare", "--experiment", "light", "--group-by", "dataset"], standalone_mode=False)
main(["compare", "--run-id", ",".join(kept), "--group-by", "none"], standalone_mode=False)
"""

TRAIN = """
from clear_mlflow.cli import main

main(["train", "--dataset", "digits"])
"""


@pytest.fixture
def run(tmp_path):
    """Run code with what is named and MLflow's own installed, in a folder and store of its own."""

    def ran(extras, code):
        store = f"sqlite:///{tmp_path / 'mlflow.db'}"
        environment = {
            "PYTHONPATH": ":".join(map(str, (SCRIPT.parents[2], SCRIPT.parent))),
            "PATH": "",
            "HOME": str(tmp_path),
            "MLFLOW_TRACKING_URI": store,
            "_MLFLOW_SERVER_FILE_STORE": store,
            "_MLFLOW_SGI_NAME": "gunicorn",
            "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
        }
        return subprocess.run(
            [sys.executable, str(SCRIPT), extras, code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return ran


def test_the_pages_need_mlflow_alone(run):
    """Neither what trains, nor what draws on terminals, nor what reads predictions."""
    done = run("", PAGES)
    assert done.returncode == 0, done.stderr


def test_commands_need_mlflow_alone(run):
    """track, evaluate, import and compare, of runs with and without predictions; no table of it."""
    done = run("", COMMANDS)
    assert done.returncode == 0, done.stderr
    assert "\n1 imported\n" in done.stdout
    assert re.search(r"^2 scored, 3 unchanged; \d+ metric values logged$", done.stdout, re.M)
    assert done.stdout.count("comparison.html") == 2
    missing = "no tables are shown: they need rich (pip install rich)"
    assert done.stderr.count(missing) == 4


def test_what_needs_more_says_which_package(run):
    """Training: one line, before anything is begun."""
    done = run("", TRAIN)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert lines == ["error: psutil is not installed, and this needs it: pip install psutil"]
