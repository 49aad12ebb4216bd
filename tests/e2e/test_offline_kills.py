"""Offline runs whose processes are killed at random moments end like undisturbed ones."""

import os
import random
import shutil
import signal
import time
from contextlib import suppress

import psutil
import pytest
from copying import describe_run
from forked import PIPED, ForkedPython, environment
from mlflow import MlflowClient
from stored_runs import without_machine_fields

from clear_mlflow.core.untrusted import parse_json_object
from clear_mlflow.store import names
from clear_mlflow.store.offline import format_offline_uri

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("OFFLINE_KILLS", "2"))
SEED = int(os.environ.get("OFFLINE_KILLS_SEED", "4"))
PROGRAM = ("-m", "clear_mlflow")
TRAIN = (
    *PROGRAM,
    "train",
    "--features",
    "pixels",
    "--strategy",
    "replay",
    "--epochs",
    "2",
    "--offline",
)
LOOP = """
import clear_mlflow
with clear_mlflow.track(buckets=6, num_instances=50, seed=1, offline="offline_runs") as run:
    for i in range(7):
        run.log_counts(i, [(7 * i + 3 * k) % 51 for k in range(6)])
"""
TIMED = ("seconds", "speed", "images_per_second")  # in names of metrics that differ between runs


def kill_all(process):
    with suppress(psutil.NoSuchProcess):  # it has just ended
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.send_signal(signal.SIGKILL)
    process.wait()


def run_and_kill(draw, seconds, *words, **options):
    """Start ``python WORDS``, and kill it within some seconds, or never if they are None.

    Returns the exit code.
    """
    process = ForkedPython(*words, **PIPED, **options)
    if seconds is not None:
        deadline = time.monotonic() + draw.uniform(0, seconds)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if process.poll() is None:
            kill_all(process)
    output, _ = process.communicate()
    assert process.returncode <= 0, output
    return process.returncode


def describe(client, run_id):
    """Return rows, metrics and points of a run, without what differs between two machines."""
    described = describe_run(client, run_id)
    rows = {n: parse_json_object(content, 10**6) for n, content in described["rows"].items()}
    if all("cost" in row for row in rows.values()):
        rows = without_machine_fields(rows)
    histories = {
        name: [(step, value) for step, _, value in values]
        for name, values in described["histories"].items()
        if not name.startswith("system/") and not any(word in name for word in TIMED)
    }
    for row in rows.values():
        row["written_at"] = None
    return {"status": described["info"][1], "rows": rows, "points": histories}


def find_run(client):
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(ids, f"tags.`{names.KIND_TAG}` = 'train'")
    assert len(runs) <= 1
    return runs[0] if runs else None


@pytest.mark.parametrize("kind", ["training", "own loop"])
def test_kills_at_random_moments_change_nothing(tmp_path, digits_cache, empty_store, kind):
    """Of the training or loop, of sync, export and import. ``OFFLINE_KILLS=100`` does more."""
    draw, kills = random.Random(f"{SEED} {kind}"), 0

    def record(folder, run_id, seconds):
        """Start or continue the run, and kill it within some seconds. Return the exit code."""
        options = {"cwd": folder, "env": environment(CLEAR_MLFLOW_CACHE=str(folder / "cache"))}
        if kind == "training":
            # Killed before its parameters were stored: nothing was measured, and a resume says so.
            if run_id is not None and not any((folder / "offline_runs").rglob("config.json")):
                shutil.rmtree(folder / "offline_runs")
                run_id = None
            command = TRAIN if run_id is None else (*PROGRAM, "train", "--resume", "offline_runs")
            return run_and_kill(draw, seconds, *command, **options)
        if run_id is not None:
            options["env"]["MLFLOW_RUN_ID"] = run_id
        return run_and_kill(draw, seconds, "-c", LOOP, **options)

    def complete(folder, seconds):
        nonlocal kills
        client = MlflowClient(format_offline_uri(folder / "offline_runs"))
        for attempt in range(20):
            run = find_run(client) if (folder / "offline_runs" / "offline.json").exists() else None
            if run is not None and run.info.status == "FINISHED":
                return client, run.info.run_id
            code = record(folder, run and run.info.run_id, seconds if attempt < 2 else None)
            kills += code < 0
        raise AssertionError("the run never ended")

    def transfer(folder, *command, tries=(0.6, 0.6, None)):
        """Run a command until it has ended, killed twice at most."""
        nonlocal kills
        env = environment(MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
        for seconds in tries:
            code = run_and_kill(draw, seconds, *PROGRAM, *command, cwd=folder, env=env)
            kills += code < 0
            if code == 0:
                return
        raise AssertionError(command)

    still = tmp_path / "still"
    still.mkdir()
    start = time.monotonic()
    expected = describe(*complete(still, None))
    duration = time.monotonic() - start
    for number in range(TIMES):
        folder = tmp_path / str(number)
        folder.mkdir()
        client, run_id = complete(folder, duration)
        assert describe(client, run_id) == expected, number
        (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
        transfer(folder, "sync", "offline_runs")
        transfer(folder, "sync", "offline_runs", tries=(None,))
        target = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        assert describe(target, find_run(target).info.run_id) == expected, number
        bundle = folder / "bundle.tar.xz"
        export = (*PROGRAM, "export", "offline_runs", bundle.name)
        kills += run_and_kill(draw, 0.6, *export, cwd=folder) < 0
        if not bundle.exists():  # it is complete or not there
            assert run_and_kill(draw, None, *export, cwd=folder) == 0
        (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
        transfer(folder, "import", bundle.name)
        assert describe(target, find_run(target).info.run_id)["rows"] == expected["rows"], number
    print(f"{kills} kills of a {kind}, seed {SEED}")
    assert kills >= TIMES
