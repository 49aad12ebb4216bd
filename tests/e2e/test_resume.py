"""Interrupted runs are resumed, in their own processes, on a real store."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from courses import series
from damaged_journals import DAMAGES
from forked import Forked, environment, find_training, run_shell
from msgspec import structs
from safetensors.numpy import load_file
from short_stream import BUCKETS, options
from stored_runs import history, read_stored_rows, wait_for_row, without_machine_fields

from clear_mlflow import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.errors import ClearError, ConfigError, DataError, RecordError, TrackingError
from clear_mlflow.core.predictions import predictions_file_name
from clear_mlflow.core.record import parse_row_index
from clear_mlflow.journal.run_folder import RunFolder, default_root
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import check, prepare
from clear_mlflow.metrics import summarize
from clear_mlflow.scoring.run_log import collect_series
from clear_mlflow.store import names
from clear_mlflow.store.lease import format_lease
from clear_mlflow.store.names import MATRIX_TAG
from clear_mlflow.tracking.resume import (
    check_data,
    check_parameters,
    read_resume_point,
    resolve_resume_parameters,
    take_over,
)
from clear_mlflow.tracking.tracked_training import train_in_process

LONG = 240  # seconds: a bound, not a measurement
# A network, replayed images, and an optimiser that goes on from bucket to bucket.
PARAMETERS = {
    "strategy": "replay",
    "optimizer_state": "keep",
    "model": "small_cnn",
    "image_size": "32",
    "epochs": "6",
    "batch_size": "4",
    "device": "cpu",
    "log_models": "last",
}


def start(project, *arguments, **variables):
    return Forked(
        "train",
        *arguments,
        env=environment(**variables),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process):
    output, _ = process.communicate(timeout=LONG)
    return process.returncode, output


def artifacts(run):
    return Path(run.info.artifact_uri.removeprefix("file://"))


def read_tensors(run, folder):
    """Return what was sent for each row, without anything derived from it."""
    files = (artifacts(run) / folder).iterdir()
    # Not their bytes: in which order safetensors writes what it tells of a file is chance.
    return {
        path.name: {name: value.tobytes() for name, value in load_file(path).items()}
        for path in files
        if path.suffix == ".safetensors"
    }


def kill_supervisor(process):
    process.kill()


def kill_training(process):
    find_training(process).kill()


def terminate(process):
    process.send_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_run_killed_again_and_again_is_resumed(project, store, experiment_id, short_stream):
    """The result of kills, stops and restarts equals an uninterrupted run.

    Rows (except times), points, predictions and the last model are equal; a training state is
    stored only until training is complete.
    """
    arguments = options({**short_stream, **PARAMETERS})
    code, output = finish(start(project, *arguments))
    assert code == 0, output
    (whole,) = store.search_runs([experiment_id])
    assert not (artifacts(whole) / "training_state").exists()

    process = start(project, *arguments)
    until = time.monotonic() + LONG
    while len(runs := store.search_runs([experiment_id])) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    (run_id,) = {run.info.run_id for run in runs} - {whole.info.run_id}
    steps = [(1, kill_supervisor), (2, kill_training), (3, terminate)]
    for row, stop in steps:
        wait_for_row(store, experiment_id, row, process, run_id)
        stop(process)
        code, output = finish(process)
        assert code != 0
        run = store.get_run(run_id)
        assert run.info.status == ("RUNNING" if stop is kill_supervisor else "KILLED"), output
        kept = sorted(path.name for path in artifacts(run).glob("training_state/*.json"))
        assert 1 <= len(kept) <= 2
        assert kept[-1] >= f"after_{row - 1:03}.json"  # that of the row may be on its way
        if stop is kill_training:  # by a scheduler: the same command again, with the run's id
            process = start(project, *arguments, MLFLOW_RUN_ID=run_id)
        else:
            process = start(project, "--resume", run_id)
    code, output = finish(process)
    assert code == 0, output

    run = store.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert without_machine_fields(read_stored_rows(run)) == without_machine_fields(
        read_stored_rows(whole)
    )
    assert history(store, run_id) == history(store, whole.info.run_id)
    for folder in ("predictions", "models"):
        assert read_tensors(run, folder) == read_tensors(whole, folder)
    assert run.data.params == {**whole.data.params} | {
        name: run.data.params[name] for name in ("resumed/1", "resumed/2", "resumed/3")
    }
    assert run.data.tags[names.RESUMES_TAG] == "3"
    assert names.ERROR_TAG not in run.data.tags
    assert names.PROCESS_TAG not in run.data.tags
    assert run.data.tags["mlflow.note.content"]
    assert not list(artifacts(run).glob("training_state/*"))
    assert len(store.search_runs([experiment_id])) == 2

    before = store.get_run(run_id)
    code, output = finish(start(project, "--resume", run_id))
    assert code == 0
    assert "there is nothing to resume" in output
    after = store.get_run(run_id)
    assert (after.data.tags, after.info.status) == (before.data.tags, "FINISHED")


@pytest.fixture
def interrupted(store, experiment_id, short_stream, monkeypatch, fill_once):
    """A run that was stopped after row 2 of 4 with its state: the client and the run's id."""
    parameters = {**short_stream, "features": "pixels", "strategy": "linear", "epochs": "15"}

    def train():
        training = prepare(
            check(TrainConfig.resolve({**parameters, "device": "cpu"})), TrainingProgress()
        )
        rows = type(training).rows

        def until_stopped(self, on_curve, on_test, on_state):
            for measured in rows(self, on_curve, on_test, on_state):
                if measured.row.row == 3:  # by now the state after row 2 is handed over
                    raise KeyboardInterrupt
                yield measured

        with monkeypatch.context() as patch:
            patch.setattr(type(training), "rows", until_stopped)
            with pytest.raises(KeyboardInterrupt):
                train_in_process(store, training, parameters)
        (run,) = store.search_runs([experiment_id])
        return run.info.run_id

    return store, fill_once(store, train)


def snapshot(client, run_id):
    """Return everything that a rejected command must not change."""
    run = client.get_run(run_id)
    files = {str(path): path.read_bytes() for path in artifacts(run).rglob("*") if path.is_file()}
    return run.info.status, run.data.tags, run.data.params, files


@pytest.mark.program
def test_two_concurrent_resumes(project, interrupted):
    """One continues to the end. The other is rejected, or finds a complete run."""
    client, run_id = interrupted
    processes = [start(project, "--resume", run_id) for _ in range(2)]
    results = [finish(process) for process in processes]
    refused = ("another process trains into run", "was gone on with", "nothing to resume")
    (refusal,) = (end for end in results if any(words in end[1] for words in refused))
    assert refusal[0] == (0 if refused[-1] in refusal[1] else 2), results
    results.remove(refusal)
    assert results[0][0] == 0, results
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert len(read_stored_rows(run)) == BUCKETS + 1
    assert run.data.tags[names.RESUMES_TAG] == "1"


@pytest.mark.slow
def test_mlflow_run_resumes_another_run(project, interrupted):
    """The run that mlflow run opens is tagged, closed, and skipped by evaluate."""
    client, run_id = interrupted
    done = run_shell(
        f"mlflow run '{project}' --env-manager local -P resume={run_id} --experiment-name test",
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    resumed = client.get_run(run_id)
    assert resumed.info.status == "FINISHED"
    assert len(read_stored_rows(resumed)) == BUCKETS + 1
    (second_run,) = [
        run for run in client.search_runs([resumed.info.experiment_id]) if run.info.run_id != run_id
    ]
    assert second_run.info.status == "FINISHED"
    assert second_run.data.tags[names.KIND_TAG] == names.KIND_RESUME
    assert second_run.data.tags[names.RESUMED_TAG] == run_id
    assert names.ROWS_TAG not in second_run.data.tags


def test_an_invalid_resume_is_one_line_and_changes_nothing(project, interrupted):
    """Exit code 2, no traceback, the same status."""
    client, run_id = interrupted
    before = snapshot(client, run_id)
    code, output = finish(start(project, "--resume", run_id, "--epochs", "5", "--device", "auto"))
    assert code == 2
    assert "epochs is 5 and the run has 15" in output
    assert "device" not in output
    assert "Traceback" not in output
    assert snapshot(client, run_id) == before


def test_changed_parameters_and_data_are_rejected(interrupted, tmp_path):
    """The error names the difference with both values. Device and folder may differ."""
    point = read_resume_point(*interrupted, tmp_path)
    for overrides, message in (
        ({"epochs": "5", "seed": "0"}, "epochs is 5 and the run has 15"),
        ({"seed": "1", "lr": "0.5"}, "lr is 0.5 and the run has 1.0; seed is 1 and the run has 0"),
        ({"strategy": "replay"}, "strategy is replay and the run has linear"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            resolve_resume_parameters(point, overrides)
    # Another text for the same number; auto says nothing.
    overrides = {"device": "auto", "lr": "1.0", "batch_size": "auto"}
    parameters = resolve_resume_parameters(point, overrides).as_text()
    check_parameters(point, TrainConfig.resolve({**parameters, "device": "cuda"}))
    with pytest.raises(ConfigError, match="batch_size is 3 and the run has 512"):
        check_parameters(point, TrainConfig.resolve({**parameters, "batch_size": "3"}))
    metadata = prepare(check(TrainConfig.resolve(parameters)), TrainingProgress()).metadata
    check_data(point, dataclasses.replace(metadata, source="elsewhere"))
    with pytest.raises(DataError, match="digest is sha256:0 and the run has sha256:"):
        check_data(point, dataclasses.replace(metadata, digest="sha256:0"))


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_another_version_is_rejected(interrupted, tmp_path):
    client, run_id = interrupted
    client.set_tag(run_id, "clear_mlflow.version", "99.1")
    with pytest.raises(TrackingError, match=r"trained with clear_mlflow 99\.1"):
        read_resume_point(client, run_id, tmp_path)


def test_an_earlier_state_replaces_a_damaged_one(interrupted, tmp_path, capfd):
    """The damaged one is named. Without another one, the run is rejected and unchanged."""
    client, run_id = interrupted
    folder = artifacts(client.get_run(run_id)) / "training_state"
    (manifest,) = folder.glob("*.json")
    good = manifest.with_suffix(".safetensors").read_bytes()
    row = json.loads(manifest.read_text())["row"]
    newer = folder / f"after_{row + 1:03}.safetensors"
    newer.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    shutil.copy(manifest, newer.with_suffix(".json"))
    rewrite(newer.with_suffix(".json"), lambda content: content.update(row=row + 1))
    point = read_resume_point(client, run_id, tmp_path)
    assert point.state.manifest.row == row
    assert f"{newer.name} is damaged" in capfd.readouterr().err
    manifest.with_suffix(".safetensors").write_bytes(good[: len(good) // 2])
    with pytest.raises(TrackingError, match="all of its training states are damaged"):
        read_resume_point(client, run_id, tmp_path)


def test_runs_that_cannot_be_resumed_have_a_reason(interrupted, tmp_path):
    """No such run, no training, no parameters, no state."""
    client, run_id = interrupted
    run = client.get_run(run_id)

    def check_refused(error_class, message, which=run_id):
        with pytest.raises(error_class, match=message) as problem:
            read_resume_point(client, which, tmp_path)
        assert isinstance(problem.value, ClearError)

    check_refused(TrackingError, "no such run", "0" * 32)
    check_refused(TrackingError, "no such run", "../../etc")
    shutil.rmtree(artifacts(run) / "training_state")
    check_refused(TrackingError, "rows 0 to .* and no training state")
    (artifacts(run) / "config.json").write_text('{"epochs": 5}')
    check_refused(RecordError, "config.json of run .* is damaged")
    (artifacts(run) / "config.json").unlink()
    check_refused(TrackingError, "lacks config.json")
    client.set_tag(run_id, names.KIND_TAG, names.KIND_ENSEMBLE)
    check_refused(TrackingError, "it is ensemble, not a training")
    client.delete_run(run_id)
    check_refused(TrackingError, "it is deleted")


def test_a_run_in_training_is_rejected(interrupted, tmp_path):
    """While its process is alive. The reservation of another process takes precedence."""
    client, run_id = interrupted
    point = read_resume_point(client, run_id, tmp_path)
    elsewhere = json.loads(format_lease()) | {"host": "another"}
    client.log_param(run_id, "resumed/1", json.dumps(elsewhere))
    train_elsewhere(client, run_id, json.dumps(elsewhere))
    client.update_run(run_id, status="RUNNING")
    with pytest.raises(TrackingError, match="another process trains into run"):
        take_over(client, point)
    with pytest.raises(TrackingError, match="another process trains into run"):
        read_resume_point(client, run_id, tmp_path)


def test_a_recent_reservation_blocks_until_its_process_has_resumed(interrupted, tmp_path):
    """Then the tag counts it, and the next interruption may follow at once."""
    client, run_id = interrupted
    point = read_resume_point(client, run_id, tmp_path)
    client.log_param(run_id, "resumed/1", format_foreign_lease(-60, token="1" * 16))
    client.set_tag(run_id, names.RESUMES_TAG, "1")
    client.log_param(run_id, "resumed/2", format_foreign_lease(0, token="2" * 16))
    with pytest.raises(TrackingError, match="another process trains into run"):
        take_over(client, point)
    client.set_tag(run_id, names.RESUMES_TAG, "2")
    take_over(client, point)
    assert client.get_run(run_id).data.tags[names.RESUMES_TAG] == "3"


def test_only_a_run_without_a_second_row_starts_again(interrupted, tmp_path):
    """Its first state is stored while bucket 2 is trained. Later rows without one are an error."""
    client, run_id = interrupted
    folder = artifacts(client.get_run(run_id))
    shutil.rmtree(folder / "training_state")
    client.delete_tag(run_id, MATRIX_TAG)  # which would tell that rows are gone
    with pytest.raises(TrackingError, match="rows 0 to 2 and no training state"):
        read_resume_point(client, run_id, tmp_path)
    for row in (2, 1):
        (folder / "accuracy_matrix" / "rows" / f"row_{row:03d}.json").unlink()
        point = read_resume_point(client, run_id, tmp_path)
        assert (point.state, sorted(point.records)) == (None, list(range(row)))
        if row == 2:
            config = (folder / "config.json").read_text()
            (folder / "config.json").write_text(
                config.replace('"resumable": "on"', '"resumable": "off"')
            )
            with pytest.raises(TrackingError, match="rows 0 to 1 and no training state"):
                read_resume_point(client, run_id, tmp_path)
            (folder / "config.json").write_text(config)


def train_elsewhere(client, run_id, lease):
    """Act as a process of another machine that takes over the run."""
    client.set_tag(run_id, names.PROCESS_TAG, lease)
    client.set_tag(run_id, names.HOLDER_TAG, lease)


def format_foreign_lease(minutes, **changes):
    """Return the lease of another machine, renewed so many minutes from now."""
    at = datetime.now(timezone.utc) + timedelta(minutes=minutes)
    return json.dumps(
        json.loads(format_lease()) | {"host": "another", "renewed_at": at.isoformat()} | changes
    )


def test_a_reservation_of_a_dead_process_blocks_nobody(interrupted, tmp_path):
    """A parameter cannot be deleted, so it would block the run forever."""
    client, run_id = interrupted
    client.log_param(run_id, "resumed/1", format_foreign_lease(60 * 24 * 365))
    client.log_param(
        run_id, "resumed/77", format_foreign_lease(0)
    )  # and no process counts like this
    client.set_tag(run_id, names.RESUMES_TAG, "-1")
    take_over(client, read_resume_point(client, run_id, tmp_path))
    run = client.get_run(run_id)
    assert run.data.tags[names.RESUMES_TAG] == "2"
    assert "resumed/2" in run.data.params


@pytest.fixture
def unsent_folder(interrupted, tmp_path, monkeypatch):
    """The run folder of a dead process, with row 2, which the run has, too."""
    client, run_id = interrupted
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    row = artifacts(client.get_run(run_id)) / "accuracy_matrix" / "rows" / "row_002.json"
    journal = RunFolder.create(default_root() / run_id, run_id, client.tracking_uri)
    journal.append("accuracy_matrix/rows/row_002.json", row.read_bytes())
    journal.close()
    return journal.folder


def held_elsewhere(client, run_id):
    """A run with the lease of a process on another machine."""
    client.update_run(run_id, status="RUNNING")
    train_elsewhere(client, run_id, format_foreign_lease(0))
    return snapshot(client, run_id)


@pytest.mark.parametrize("option", ["MLFLOW_RUN_ID", "--resume"])
def test_without_waiting_a_resume_exits_with_75_to_be_started_again(project, interrupted, option):
    """Schedulers' scripts know this exit code. The run is unchanged."""
    client, run_id = interrupted
    before = held_elsewhere(client, run_id)
    by_id = option == "MLFLOW_RUN_ID"
    arguments, variables = ((), {option: run_id}) if by_id else ([option, run_id], {})
    code, output = finish(start(project, *arguments, "--if-held", "leave", **variables))
    assert code == 75, output
    assert "start the same command again later" in output
    assert snapshot(client, run_id) == before


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_a_process_elsewhere(project, interrupted):
    """At once, before a scheduler kills it."""
    client, run_id = interrupted
    before = held_elsewhere(client, run_id)
    process = start(project, "--resume", run_id)
    for line in process.stdout:
        if "waiting up to 180 s" in line:
            break
    terminate(process)
    code, output = finish(process)
    assert code == 128 + signal.SIGTERM, output
    assert snapshot(client, run_id) == before


def test_unsent_rows_are_sent_before_a_resume(interrupted, unsent_folder, tmp_path):
    """The row is stored, the run folder is gone, and another process may take over the run."""
    client, run_id = interrupted
    run = client.get_run(run_id)
    row = artifacts(run) / "accuracy_matrix" / "rows" / "row_002.json"
    text = row.read_text()
    row.unlink()
    assert 2 in read_resume_point(client, run_id, tmp_path).records
    assert row.read_text() == text
    assert not unsent_folder.exists()
    # A sweep reads what its worker resumes.
    assert client.get_run(run_id).data.tags.get(names.HOLDER_TAG) == run.data.tags.get(
        names.HOLDER_TAG
    )


def test_a_locked_run_folder_means_that_the_run_is_in_training(
    interrupted, unsent_folder, tmp_path
):
    """Also if the run's tags do not show it yet."""
    client, run_id = interrupted
    folder = RunFolder.reopen(unsent_folder)
    try:
        with pytest.raises(TrackingError, match=f"another process trains into run {run_id} now"):
            read_resume_point(client, run_id, tmp_path)
    finally:
        folder.close()
    assert 2 in read_resume_point(client, run_id, tmp_path).records


def test_unsent_rows_are_checked_before_a_resume_sends_them(interrupted, unsent_folder, tmp_path):
    """As by sync: errors are one line, and run folder and run are unchanged.

    A repeated row must not replace the first one; a folder may be renamed by whoever copied it.
    """
    client, run_id = interrupted
    good = shutil.copytree(unsent_folder, tmp_path / "good")
    before = snapshot(client, run_id)

    def claim_other_run(journal):
        rewrite(journal / "run.json", lambda content: content.update(run_id="0" * 32))

    # How a training ended says nothing to the one that resumes.
    for damage in (claim_other_run, *(DAMAGES[name] for name in DAMAGES.keys() - {"end"})):
        shutil.rmtree(unsent_folder)
        damage(shutil.copytree(good, unsent_folder))
        with pytest.raises((TrackingError, RecordError)) as refusal:
            read_resume_point(client, run_id, tmp_path)
        if damage is claim_other_run:
            assert f"what was measured for run {'0' * 32}" in str(refusal.value)
        assert unsent_folder.exists()
        assert snapshot(client, run_id) == before


def test_a_changed_run_is_rejected(interrupted, tmp_path):
    """Another process has continued it since it was read."""
    client, run_id = interrupted
    point = read_resume_point(client, run_id, tmp_path)
    next(artifacts(client.get_run(run_id)).glob("training_state/*.json")).unlink()
    with pytest.raises(TrackingError, match="was resumed by another process"):
        take_over(client, point)
    assert client.get_run(run_id).info.status == "KILLED"


def test_a_stored_row_is_not_replaced_by_a_different_measurement(project, interrupted):
    """After a kill between a row and its state, on a device with other rounding.

    The stored row is scored, and training continues.
    """
    client, run_id = interrupted
    run = client.get_run(run_id)
    rows = artifacts(run) / "accuracy_matrix" / "rows"
    # The state before the last one is there, too, if the kill came before it was deleted.
    states = artifacts(run).glob("training_state/*.json")
    last_row = max(json.loads(state.read_text())["row"] for state in states)
    for file in rows.glob("row_*.json"):  # a row whose state was on its way
        if parse_row_index(file.name) > last_row:
            file.unlink()
    # Row 4, say, as a device measured it that this one is not: with the counts of the row before.
    content = json.loads((rows / f"row_{last_row:03}.json").read_text())
    content |= {"row": last_row + 1, "trained_through": str(last_row + 1)}
    name = f"row_{last_row + 1:03}.json"
    (rows / name).write_text(json.dumps(content))
    before = {file.name: file.read_bytes() for file in rows.iterdir()}

    code, output = finish(start(project, "--resume", run_id))
    assert code == 0, output
    assert f"row {last_row + 1} of run {run_id} was measured again and differs" in output
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert {file: (rows / file).read_bytes() for file in before} == before
    assert len(list(rows.iterdir())) == BUCKETS + 1
    # What is scored is what is stored, in the series too.
    stored = {f.name: json.loads(f.read_text()) for f in rows.iterdir()}
    matrix = AccuracyMatrix.from_rows(
        AccuracyRow(r["row"], r["buckets"], r["correct"], r["num_instances"])
        for r in stored.values()
    )
    assert summarize(matrix).items() <= run.data.metrics.items()
    points = history(client, run_id)
    expected = collect_series(matrix, series(matrix))
    first = content["correct"][0] / content["num_instances"][0]
    assert expected["test_accuracy/bucket_01"][last_row + 1] == first
    assert {name: sorted(steps.items()) for name, steps in expected.items()} == {
        name: points[name] for name in expected
    }
    # The predictions of the row that was measured now are not those of the stored one.
    assert predictions_file_name(last_row + 1) not in read_tensors(run, "predictions")
    assert predictions_file_name(last_row + 2) in read_tensors(run, "predictions")


def test_a_stored_row_of_other_images_is_not_a_rounding_difference(interrupted, tmp_path):
    """It is an error, and the run is unchanged."""
    point = read_resume_point(*interrupted, tmp_path)
    row = point.records[2].row
    assert point.find_stored_row(row) == row
    assert point.find_stored_row(structs.replace(row, row=4)) is None
    other = structs.replace(row, num_instances=(row.num_instances[0] + 1, *row.num_instances[1:]))
    with pytest.raises(TrackingError, match=r"row 2 of run .* not the same test images"):
        point.find_stored_row(other)


@pytest.mark.slow
def test_a_stopped_ensemble_names_the_member_to_resume(project, store, experiment_id, short_stream):
    """The resumed member has the rows of a training with its seed."""
    arguments = options({**short_stream, **PARAMETERS})
    process = start(project, *arguments, "--seeds", "3,4")
    deadline = time.monotonic() + LONG
    runs_by_seed = {}
    while "4" not in runs_by_seed and time.monotonic() < deadline:
        time.sleep(0.1)
        runs_by_seed = {
            run.data.tags.get("seed"): run for run in store.search_runs([experiment_id])
        }
    run_id = runs_by_seed["4"].info.run_id
    wait_for_row(store, experiment_id, 2, process, run_id)
    terminate(process)
    code, output = finish(process)
    assert code == 143, output
    assert output.index("seed 3") < output.index("seed 4")
    assert f"resume   clear-mlflow train --resume {run_id}\n" in output
    code, output = finish(start(project, "--resume", run_id))
    assert code == 0, output
    code, output = finish(start(project, *arguments, "--seed", "4"))
    assert code == 0, output
    resumed = store.get_run(run_id)
    (uninterrupted,) = (
        run
        for run in store.search_runs([experiment_id], "tags.seed = '4'")
        if run.info.run_id != run_id
    )
    assert resumed.info.status == "FINISHED"
    assert without_machine_fields(read_stored_rows(resumed)) == without_machine_fields(
        read_stored_rows(uninterrupted)
    )
