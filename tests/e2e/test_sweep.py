"""Sweeps: killed, failing, stopped and continued."""

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from commands import run_command
from mlflow.entities import ViewType
from short_stream import BUCKETS
from stored_runs import artifact_folder, read_comparable_rows, read_stored_rows
from sweeps import (
    FOUR,
    NEEDS_RAY,
    QUICK,
    SLOWER,
    assert_every_run_is_there_once,
    find_runs,
    grid,
    run_sweep,
    start_sweep,
    wait_for_a_row,
)
from waiting import LONG, finish, finish_well, wait_until

from clear_mlflow.store import names
from clear_mlflow.store.client import resolve_store_uri
from clear_mlflow.sweeps.grid import read_grid

__all__ = ["grid"]
# .ci/nightly has those of a cluster killed at random, too.
ENGINES = os.environ.get("CLEAR_MLFLOW_KILLED_ON", "local").split()


def workers(process):
    killable, children = [], []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    for child in children:
        try:
            command_line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        of_ray = "ray::train_into" in command_line or "process.child" in command_line
        # What a sweep of this machine starts leads its own session, also what is forked.
        if of_ray or (os.getsid(child.pid) == child.pid and "/ray/" not in command_line):
            killable.append(child)
    return killable


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_sweep_with_random_kills_trains_every_run_once(
    store, experiment_id, grid, hold, monkeypatch, engine
):
    hold.unlink()
    monkeypatch.setenv("CLEAR_TESTS_PAUSE", "0.4")
    rng = random.Random(engine)
    path = grid(FOUR)
    process = start_sweep(path, "--engine", engine, "--jobs", "2", "--retries", "4")
    killed = 0
    until = time.monotonic() + LONG
    while killed < 2 and process.poll() is None and time.monotonic() < until:
        if workers(process):
            time.sleep(rng.uniform(0.2, 1.5))  # a moment of a training, whichever
            candidates = workers(process)
            # It may end by itself between the look and the kill.
            with suppress(psutil.NoSuchProcess):
                if candidates:
                    rng.choice(candidates).kill()
                    killed += 1
        time.sleep(0.05)
    output = finish_well(process)
    assert killed, output
    assert_every_run_is_there_once(store, experiment_id, path)

    before = [run.info.run_id for run in store.search_runs([experiment_id])]
    assert "4 done before" in run_sweep(path, "--engine", engine)
    assert [run.info.run_id for run in store.search_runs([experiment_id])] == before


def sweep_killed_at_row(store, experiment_id, grid, hold, row):
    """Kill every process of a sweep when a run has stored a row.

    Return that run. Afterwards, no training is held.
    """
    process = start_sweep(grid)
    of_sweep = f"tags.`{names.SWEEP_RUN_TAG}` != ''"

    def find_run():
        runs = store.search_runs([experiment_id], of_sweep)
        return next((r for r in runs if f"row_{row:03}.json" in read_stored_rows(r)), None)

    run_id = wait_until(find_run, process).info.run_id
    killable = workers(process)
    process.kill()
    for worker in killable:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
    psutil.wait_procs(killable, timeout=LONG)
    finish(process)
    hold.unlink()
    return store.get_run(run_id)


@pytest.mark.slow
def test_two_sweeps_share_runs_and_train_each_once(store, experiment_id, grid, hold, tmp_path):
    quick, held, other_held = {"strategy": "slda", "seed": 0}, {"seed": 1}, {"seed": 2}
    second_path = grid({"fixed": SLOWER, "runs": [other_held, quick, held]})
    second_path = second_path.rename(tmp_path / "second.yaml")
    first_path = grid({"fixed": SLOWER, "runs": [quick, held]})
    second = start_sweep(second_path)
    wait_for_a_row(store, experiment_id, second)  # by now, it has read that the others are missing
    first = start_sweep(first_path)
    wait_for_a_row(store, experiment_id, first, "params.seed = '1'")
    hold.unlink()
    finish_well(first)
    code, output = finish(second)
    assert code in (0, 2), output  # 2 if it ended before the first sweep did

    runs = store.search_runs([experiment_id], f"tags.`{names.SWEEP_RUN_TAG}` != ''", ViewType.ALL)
    trained = [run for run in runs if read_stored_rows(run)]
    states = [(r.data.params["strategy"], r.data.params["seed"], r.info.status) for r in trained]
    expected = [("held:Naive", "1"), ("held:Naive", "2"), ("slda", "0")]
    assert sorted(states) == [(*run, "FINISHED") for run in expected]
    assert {run.info.lifecycle_stage for run in trained} == {"active"}
    assert all(run.data.tags[names.ROWS_TAG] == "complete" for run in trained)
    run_sweep(second_path)


@pytest.mark.slow
def test_a_killed_sweep_continues_within_its_parent_run(
    store, experiment_id, grid, hold, monkeypatch
):
    path = grid({"fixed": QUICK, "grid": {"strategy": ["held:Replay", "held:Ncm"]}})
    killed = sweep_killed_at_row(store, experiment_id, path, hold, 2)  # a state is complete by then
    before = read_stored_rows(killed)
    assert 3 <= len(before) <= BUCKETS
    output = run_sweep(path)
    (resumed_line,) = [line for line in output.splitlines() if "(resumed)" in line]
    assert killed.info.run_id in resumed_line
    assert_every_run_is_there_once(store, experiment_id, path)
    run = store.get_run(killed.info.run_id)
    after = read_stored_rows(run)
    assert len(after) == BUCKETS + 1
    assert {name: after[name] for name in before} == before
    assert run.data.tags[names.RESUMES_TAG] == "1"

    undisturbed = store.create_experiment("undisturbed")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "undisturbed")
    run_sweep(grid({"fixed": QUICK, "grid": {"strategy": ["held:Replay"]}}))
    _, below, _ = find_runs(store, undisturbed)
    (undisturbed_run,) = below[run.data.tags[names.SWEEP_RUN_TAG]]
    assert read_comparable_rows(undisturbed_run) == read_comparable_rows(run)
    # How fast it was is the machine's.
    for of_machine in (names.CURVE_SPEED, "cost/seconds"):
        assert min(run.data.metrics.pop(of_machine) for run in (undisturbed_run, run)) > 0
    assert undisturbed_run.data.metrics == pytest.approx(run.data.metrics, abs=0)


def cut_short(state):
    state.write_bytes(state.read_bytes()[:-1])


def change_data_digest(manifest):
    """Change the digest, which only the training process compares."""
    text = manifest.read_text()
    digest = json.loads(text)["data"]["digest"]
    manifest.write_text(text.replace(digest, digest[:-4] + "0000"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "spoil", "reason"),
    [
        ("*.safetensors", cut_short, "all of its training states are damaged"),
        ("*.json", change_data_digest, "cannot be resumed with this dataset"),
    ],
)
def test_a_run_that_cannot_be_resumed_starts_again(
    store, experiment_id, grid, hold, files, spoil, reason
):
    path = grid({"fixed": QUICK, "grid": {"strategy": ["held:Replay"]}})
    killed = sweep_killed_at_row(store, experiment_id, path, hold, 2)
    states = list((artifact_folder(killed) / names.STATE_FOLDER).glob(files))
    assert states
    for state in states:
        spoil(state)
    (line,) = [line for line in run_sweep(path).splitlines() if "from its beginning" in line]
    assert reason in line
    assert_every_run_is_there_once(store, experiment_id, path)
    assert store.get_run(killed.info.run_id).info.lifecycle_stage == "deleted"


@pytest.mark.slow
def test_a_failed_run_is_reported_and_stops_no_other(store, experiment_id, grid):
    diverging = {"lr": "1e30", "weight_decay": "1", "strategy": "naive"}
    path = grid({"fixed": QUICK, "runs": [{"strategy": "ncm"}, diverging]})
    output = run_sweep(path, "--jobs", "2", code=2)
    assert "1 done, 1 failed" in output
    parent, below, (comparison,) = find_runs(store, experiment_id)
    assert parent.info.status == "FAILED"
    assert comparison.data.tags[names.COMPARED_COUNT_TAG] == "2"  # one that diverged counts, too
    by_status = {run.info.status: run for (run,) in below.values()}
    failed = by_status["FAILED"]
    assert failed.data.tags[names.DIVERGED_TAG] == "true"
    assert "row_000.json" in read_stored_rows(failed)
    (error_line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert failed.data.tags[names.ERROR_TAG] in error_line
    assert failed.info.run_id in error_line
    states = json.loads((artifact_folder(parent) / names.SWEEP_RUNS_JSON).read_text())
    assert Counter(run["state"] for run in states) == {"done": 1, "failed": 1}
    assert "2 runs, of which 1 would be started" in run_sweep(path, "--dry-run")


@pytest.mark.slow
def test_jobs_is_the_number_of_concurrent_runs(store, experiment_id, grid, hold):
    process = start_sweep(grid({"fixed": SLOWER, "grid": {"seed": [0, 1]}}), "--jobs", "2")
    for seed in (0, 1):
        wait_for_a_row(store, experiment_id, process, f"params.seed = '{seed}'")
    hold.unlink()
    assert "2 done" in finish_well(process)


@pytest.mark.slow
def test_a_sweep_of_several_seeds(store, experiment_id, grid):
    fixed = {**QUICK, "seeds": "0,1", "split": "validation", "memory": 10}
    path = grid({"fixed": fixed, "grid": {"strategy": ["naive", "cumulative"]}})
    output = run_sweep(path, "--jobs", "2")
    by_kind = {}
    for run in store.search_runs([experiment_id]):
        by_kind.setdefault(run.data.tags[names.KIND_TAG], []).append(run)
    (parent,), (comparison,) = by_kind[names.KIND_SWEEP], by_kind[names.KIND_COMPARE]
    trained = by_kind[names.KIND_TRAIN]
    for run in trained:
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert sorted((run.data.params["strategy"], run.data.params["seed"]) for run in trained) == [
        *(("cumulative", "0"), ("cumulative", "1"), ("naive", "0"), ("naive", "1"))
    ]
    assert comparison.data.tags[names.COMPARED_COUNT_TAG] == "4"
    assert "± standard deviation" in output  # the leaderboard
    assert f"compared in run {comparison.info.run_id}" in output
    page = artifact_folder(comparison) / names.COMPARISON_PAGE
    assert f"page     {page}" in output
    assert page.is_file()
    chosen = page.with_name(names.CHOSEN)
    assert f"{experiment_id} clear-mlflow sweep --grid {chosen}" in output
    planned = Counter((r.config.strategy, r.config.split) for r in read_grid(chosen).runs)
    assert planned == {("naive", "auto"): 5, ("cumulative", "auto"): 5}
    assert "4 runs, of which 0 would be started" in run_sweep(path, "--dry-run")


@pytest.mark.program
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=NEEDS_RAY)])
def test_a_stopped_sweep_is_scored_and_continues(store, experiment_id, grid, hold, engine):
    path = grid({"fixed": SLOWER, "grid": {"seed": [0, 1]}})
    process = start_sweep(path, "--engine", engine, "--jobs", "1")
    wait_for_a_row(store, experiment_id, process)
    os.killpg(process.pid, signal.SIGINT)
    code, output = finish(process)
    assert code == 130, output
    assert "the same command does the rest" in output
    parent, below, compared = find_runs(store, experiment_id)
    assert parent.info.status == "KILLED"
    assert not compared
    stopped = [run for runs in below.values() for run in runs]
    assert stopped
    for run in stopped:
        assert run.info.status == "KILLED"
        assert run.data.tags[names.ERROR_TAG]
        assert names.PROCESS_TAG not in run.data.tags
    assert any(run.data.tags.get(names.ROWS_TAG) == "partial" for run in stopped)
    assert "2 runs, of which 2 would be started" in run_sweep(path, "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "grid is none"),
        (["--jobs", "0"], "jobs is 0"),
        (["--retries", "-1"], "retries is -1"),
        (["--cpus", "x"], "cpus is 'x'"),
        (["--engine", "ray", "--gpus", "1.5"], "gpus is 1.5"),
        (["--gpus", "1"], "--gpus is 1.0, which applies only to Ray"),
        (["--group-by", ","], "--group-by is ','"),
    ],
)
def test_invalid_options_are_reported_before_anything_starts(store, grid, hold, arguments, message):
    grid_option = ["--grid", str(grid(FOUR))] if arguments else []
    (line,) = run_command("sweep", *grid_option, *arguments, code=2).splitlines()
    assert message in line


def test_a_relative_store_is_made_absolute(tmp_path, monkeypatch):
    """A worker in another folder would open another database."""
    monkeypatch.chdir(tmp_path)
    assert resolve_store_uri("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db"
    assert resolve_store_uri("sqlite:////b/a.db") == "sqlite:////b/a.db"
