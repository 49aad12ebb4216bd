"""Trainings that predict batches before training on them, killed at random moments and resumed."""

import os
import random
import time

import psutil
import pytest
from forked import Forked, environment, find_training
from short_stream import options
from stored_runs import artifact_folder, history, only_run, read_comparable_rows, wait_for_row
from waiting import finish, finish_well, wait_until

from clear_mlflow.core.batch_record import PREQUENTIAL_FILE, PrequentialRecord

KILLS = int(os.environ.get("PREQUENTIAL_KILLS", "4"))  # of each of two runs
PARAMETERS = {"dataset": "weather", "protocol": "streaming", "strategy": "replay", "memory": "50"}
PARAMETERS |= {"epochs": "2", "batch_size": "2", "lr": "0.05", "device": "cpu"}
PARAMETERS |= {"time_order": "on", "prequential": "0,1,100", "optimizer_state": "keep"}


def start(project, *arguments):
    return Forked("train", *arguments, env=environment(), cwd=project)


def read_file(run):
    return (artifact_folder(run) / "predictions" / PREQUENTIAL_FILE).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_runs_have_the_file_of_an_uninterrupted_run(project, store, experiment_id, seed):
    draws = random.Random(seed)
    finish_well(start(project, *options(PARAMETERS)))
    uninterrupted = only_run(store, experiment_id)
    process = start(project, *options(PARAMETERS))
    is_new = f"attributes.run_id != '{uninterrupted.info.run_id}'"
    run_id = wait_until(lambda: store.search_runs([experiment_id], is_new))[0].info.run_id
    row = 0
    for _ in range(KILLS):
        row = draws.randint(row + 1, min(row + 3, 8))
        wait_for_row(store, experiment_id, row, process, run_id)
        time.sleep(draws.uniform(0, 0.3))
        kills_supervisor = draws.random() < 0.5
        try:
            training = find_training(process)
            (process if kills_supervisor else training).kill()
            training.wait(30)
        except (AssertionError, psutil.NoSuchProcess):
            pass  # on a busy machine, it has ended by itself
        code, _ = finish(process)
        if code == 0 or row == 8:
            break
        process = start(project, "--resume", run_id)
    finish(process)
    finish_well(start(project, "--resume", run_id))
    run = store.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert read_comparable_rows(run) == read_comparable_rows(uninterrupted)
    assert read_file(run) == read_file(uninterrupted)
    assert PrequentialRecord.load(artifact_folder(run) / "predictions" / PREQUENTIAL_FILE).k == 8
    assert history(store, run_id) == history(store, uninterrupted.info.run_id)
