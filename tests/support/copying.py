"""A small custom loop, everything that a store has of a run, and processes that copy.

``python copying.py SOURCE TARGET killed N`` copies all runs of a store and ends, as by SIGKILL,
before the Nth write to the target's database or folder. ``python copying.py SOURCE TARGET
together`` has two processes copy, each of which looks for copies before the other has created one.
"""

import os
import sys

import numpy as np
import sqlalchemy
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from sqlalchemy import event
from stored_runs import histories

import clear_mlflow
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.scoring.run_log import read_scores
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import connect_store, set_up_mlflow, switch_store
from clear_mlflow.store.rows import read_row_files
from clear_mlflow.tracking.copy_runs import RunCopier
from clear_mlflow.tracking.run_sources import RunSource

BUCKETS, PER_BUCKET = 3, 20
FOLDERS = ("", PREDICTIONS_FOLDER, "anytime_accuracy")
# They name processes, ids or a moment of the one store.
STORE_TAGS = {
    names.COPIED_FROM_TAG,
    names.COPIED_STATE_TAG,
    names.HOLDER_TAG,
    names.MATRIX_TAG,
    names.MLFLOW_NOTE,
    names.NOTE_TAG,
    names.SCORED_TAG,
    MLFLOW_PARENT_RUN_ID,
}


def track_loop(num_rows=BUCKETS, *, seed=0, **options):
    """Track a loop with predictions, costs and tests within buckets. Return its run id."""
    draws = np.random.default_rng(seed)
    labels = [draws.integers(0, 4, PER_BUCKET).tolist() for _ in range(BUCKETS)]
    options = {"strategy": "replay", "seed": seed, "params": {"lr": 0.1}, **options}
    with clear_mlflow.track(buckets=BUCKETS, test_labels=labels, **options) as run:
        for row in range(num_rows + 1):
            predictions = [draws.integers(0, 4, PER_BUCKET) for _ in range(BUCKETS)]
            if row:
                counts = draws.integers(0, PER_BUCKET, BUCKETS).tolist()
                run.log_test(row, counts, test=1, num_tests=1, step=1, num_steps=2)
            run.log_predictions(row, predictions, cost={"training_flops": 10**9 * row})
    return run.run_id


def describe_run(client, run_id):
    """Return all that a copy has in common with its source."""
    run = client.get_run(run_id)
    data, info = run.data, run.info
    files: dict[str, object] = {}
    for folder in (ArtifactFolder(client, run, name) for name in FOLDERS):
        sizes = [name for name in folder.list_sizes() if name != names.REPORT_HTML]
        files |= folder.read_files(sizes, 10**7)
    return {
        "info": (info.run_name, info.status, info.start_time, info.end_time),
        "params": data.params,
        "tags": {key: value for key, value in data.tags.items() if key not in STORE_TAGS},
        "histories": histories(client, run_id),
        "inputs": [dict(entry.dataset) for entry in run.inputs.dataset_inputs],
        "rows": read_row_files(client, run),
        "files": files,
    }


def check_equal(store, run_id, target, copy_id):
    """Check that a copy has everything of its source, and that scoring it changes nothing."""
    client = MlflowClient(target)
    assert describe_run(client, copy_id) == describe_run(store, run_id)
    copy = client.get_run(copy_id)
    scores, source_scores = read_scores(client, copy), read_scores(store, store.get_run(run_id))
    assert scores.changes.is_empty
    assert scores.results.values_by_name == source_scores.results.values_by_name
    assert copy.data.tags[names.COPIED_FROM_TAG] == run_id
    assert names.PROCESS_TAG not in copy.data.tags


def list_sources(uri):
    client = MlflowClient(uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return [RunSource(client, run) for run in client.search_runs(ids)]


def copy_all(source, target, copier=RunCopier):
    switch_store(target)
    return list(copier(connect_store(opens_run=False), "copies").copy_runs(list_sources(source)))


def copy_until_killed(source, target, last_write):
    """Copy all runs, and end before a write to the target."""
    writes, folder = 0, target.removeprefix("sqlite:///").rpartition("/")[0]

    def count_write():
        nonlocal writes
        writes += 1
        if writes == last_write:
            os._exit(9)

    def watch_statement(connection, cursor, statement, *_):
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            count_write()

    def watch_files(name, arguments):
        if name == "os.rename" and os.fsdecode(arguments[1]).startswith(folder):
            count_write()

    event.listen(sqlalchemy.Engine, "before_cursor_execute", watch_statement)
    sys.addaudithook(watch_files)
    copy_all(source, target)


class PatientCopier(RunCopier):
    """Copier that, once it has looked for copies, waits until another one has."""

    barrier: tuple[int, int] | None = None  # a pipe to write to, and one to read from

    def _find_copies(self, *arguments):
        copies = super()._find_copies(*arguments)
        if self.barrier is not None:
            os.write(self.barrier[0], b".")
            os.read(self.barrier[1], 1)
            self.barrier = None
        return copies


def copy_together(source, target):
    """Copy all runs in two processes at once. Return True if both succeed."""
    (first_read, first_write), (second_read, second_write) = os.pipe(), os.pipe()
    child = os.fork()
    PatientCopier.barrier = (first_write, second_read) if child else (second_write, first_read)
    has_failed = any(
        result.action == "failed" for result in copy_all(source, target, PatientCopier)
    )
    if not child:
        os._exit(has_failed)
    return not has_failed and os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    set_up_mlflow()
    source, target, task, *numbers = sys.argv[1:]
    if task == "killed":
        copy_until_killed(source, target, int(numbers[0]))
    else:
        print(copy_together(source, target))
