"""Runs with row artifacts only, as another program could have stored them."""

import json
from pathlib import Path

from stored_values import row_record
from trainings import FOUR_BUCKETS, NUM_TEST
from waiting import wait_until

from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import RowRecord, format_row_file_name
from clear_mlflow.store import names

DIGEST = "sha256:" + "ab" * 32


def only_run(client, experiment_id, condition=""):
    (run,) = client.search_runs([experiment_id], condition)
    return run


def only_training(client, experiment_id):
    return only_run(client, experiment_id, f"tags.`{names.KIND_TAG}` = 'train'")


def artifact_folder(run):
    return Path(run.info.artifact_uri.removeprefix("file://"))


def rows_folder(run):
    return artifact_folder(run) / "accuracy_matrix" / "rows"


def load_rows(run):
    files = sorted(rows_folder(run).iterdir())
    return {file.name: RowRecord.from_json(file.read_text(), source=file.name) for file in files}


def read_stored_rows(run):
    files = sorted(rows_folder(run).glob("row_*.json"))  # none before the first is stored
    return {file.name: json.loads(file.read_text()) for file in files}


def build_stored_matrix(run):
    """Return the matrix of a run, rebuilt from the row files by nothing but json."""
    rows = list(read_stored_rows(run).values())
    fractions = [
        [c / n for c, n in zip(row["correct"], row["num_instances"], strict=True)] for row in rows
    ]
    num_instances = rows[0]["num_instances"]
    return AccuracyMatrix(fractions[1:], initial=fractions[0], num_instances=num_instances)


def select_scores(run):
    return {k: v for k, v in run.data.metrics.items() if k.startswith(("clear/", "renate/"))}


def without_machine_fields(rows):
    """Remove fields that differ between machines, which leaves most costs."""
    times = {"seconds", "device_seconds", "test_seconds", "peak_bytes"}
    return {
        name: {**row, "written_at": None, "cost": {**row["cost"], **dict.fromkeys(times)}}
        for name, row in rows.items()
    }


def read_comparable_rows(run):
    """Return a run's rows without fields that differ between machines."""
    return without_machine_fields(read_stored_rows(run))


def wait_for_row(client, experiment_id, row, process, run_id=None):
    """Wait until a row is stored. Return its run, by default the newest."""

    def find_run():
        runs = client.search_runs([experiment_id]) if run_id is None else [client.get_run(run_id)]
        is_stored = runs and (rows_folder(runs[0]) / f"row_{row:03}.json").exists()
        return runs[0] if is_stored else None

    return wait_until(find_run, process)


def row_texts(correct=FOUR_BUCKETS, *, seed=7, digest=DIGEST):
    buckets = tuple(str(j + 1) for j in range(len(correct[0])))
    return {
        format_row_file_name(i): row_record(
            AccuracyRow(i, buckets, tuple(counts), (NUM_TEST,) * len(buckets)),
            dataset={"digest": digest},
            seed=seed,
            written_at=f"2026-01-31T{i // 60:02d}:{i % 60:02d}:00.123+00:00",
        )
        .to_json()
        .decode()
        for i, counts in enumerate(correct)
    }


def stored_run(client, experiment_id, correct=FOUR_BUCKETS, *, name=None, **options):
    run = client.create_run(experiment_id, run_name=name)
    rows_folder(run).mkdir(parents=True)
    for file, text in row_texts(correct, **options).items():
        (rows_folder(run) / file).write_text(text)
    client.set_terminated(run.info.run_id)
    return client.get_run(run.info.run_id)


def change(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def history(store, run_id):
    """Return every metric's steps, with duplicates. Values of speeds and times are left out."""
    run = store.get_run(run_id)
    of_machine = (names.CURVE_SPEED, "cost/seconds")
    return {
        name: sorted(
            (m.step, 0 if name in of_machine else m.value)
            for m in store.get_metric_history(run_id, name)
        )
        for name in run.data.metrics
        if not name.startswith("system/")
    }


def histories(client, run_id):
    """Return every point of a run in a store: metric to (step, time, value)."""
    metrics = client.get_run(run_id).data.metrics
    return {
        name: sorted(
            (m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, name)
        )
        for name in metrics
    }
