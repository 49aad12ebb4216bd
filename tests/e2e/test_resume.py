"""Interrupted runs are resumed, in their own processes, on a real store."""

import json
import signal

import pytest
from forked import Forked, environment, find_training, run_shell
from interrupted_runs import interrupted, snapshot, train_elsewhere
from row_points import collect_points
from safetensors.numpy import load_file
from short_stream import BUCKETS, options
from stored_runs import (
    artifact_folder,
    history,
    only_run,
    read_comparable_rows,
    read_stored_rows,
    rows_folder,
    wait_for_row,
)
from waiting import LONG, finish, finish_well, wait_until

from clear_mlflow import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.predictions import format_predictions_file_name
from clear_mlflow.core.record import parse_row_index
from clear_mlflow.metrics import summarize
from clear_mlflow.store import names

__all__ = ["interrupted"]
# A network, replayed images, and an optimiser that goes on from bucket to bucket.
PARAMETERS = {"strategy": "replay", "optimizer_state": "keep", "log_models": "last"}
PARAMETERS |= {"model": "small_cnn", "image_size": "32", "epochs": "6", "batch_size": "4"}
PARAMETERS |= {"device": "cpu"}


def start(project, *arguments, **variables):
    return Forked("train", *arguments, env=environment(**variables), cwd=project)


def read_tensors(run, folder):
    # Not their bytes: in which order safetensors writes what it tells of a file is chance.
    return {
        path.name: {name: value.tobytes() for name, value in load_file(path).items()}
        for path in (artifact_folder(run) / folder).glob("*.safetensors")
    }


def kill_supervisor(process):
    training = find_training(process)
    process.kill()
    training.wait(30)  # it ends by itself


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
    finish_well(start(project, *arguments))
    whole = only_run(store, experiment_id)
    assert not (artifact_folder(whole) / "training_state").exists()

    process = start(project, *arguments)
    is_new = f"attributes.run_id != '{whole.info.run_id}'"
    run_id = wait_until(lambda: store.search_runs([experiment_id], is_new))[0].info.run_id
    for row, stop in enumerate((kill_supervisor, kill_training, terminate), 1):
        wait_for_row(store, experiment_id, row, process, run_id)
        stop(process)
        code, output = finish(process)
        assert code != 0
        run = store.get_run(run_id)
        assert run.info.status == ("RUNNING" if stop is kill_supervisor else "KILLED"), output
        kept = sorted(path.name for path in artifact_folder(run).glob("training_state/*.json"))
        assert 1 <= len(kept) <= 2
        assert kept[-1] >= f"after_{row - 1:03}.json"  # that of the row may be on its way
        if stop is kill_training:  # by a scheduler: the same command again, with the run's id
            process = start(project, *arguments, MLFLOW_RUN_ID=run_id)
        else:
            process = start(project, "--resume", run_id)
    finish_well(process)

    run = store.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert read_comparable_rows(run) == read_comparable_rows(whole)
    assert history(store, run_id) == history(store, whole.info.run_id)
    for folder in ("predictions", "models"):
        assert read_tensors(run, folder) == read_tensors(whole, folder)
    resumes = [f"resumed/{number}" for number in (1, 2, 3)]
    assert run.data.params == whole.data.params | {name: run.data.params[name] for name in resumes}
    assert run.data.tags[names.RESUMES_TAG] == "3"
    assert run.data.tags.keys().isdisjoint([names.ERROR_TAG, names.PROCESS_TAG])
    assert run.data.tags["mlflow.note.content"]
    assert not list(artifact_folder(run).glob("training_state/*"))
    assert len(store.search_runs([experiment_id])) == 2

    assert "there is nothing to resume" in finish_well(start(project, "--resume", run_id))
    after = store.get_run(run_id)
    assert (after.data.tags, after.info.status) == (run.data.tags, "FINISHED")


@pytest.mark.program
def test_two_concurrent_resumes(project, interrupted):
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
    client, run_id = interrupted
    command = f"mlflow run '{project}' --env-manager local -e resume -P resume={run_id}"
    run_shell(f"{command} --experiment-name test", timeout=LONG)
    resumed = client.get_run(run_id)
    assert resumed.info.status == "FINISHED"
    assert len(read_stored_rows(resumed)) == BUCKETS + 1
    is_other = f"attributes.run_id != '{run_id}'"
    other = only_run(client, resumed.info.experiment_id, is_other)
    assert other.info.status == "FINISHED"
    assert other.data.tags[names.KIND_TAG] == names.KIND_RESUME
    assert other.data.tags[names.RESUMED_TAG] == run_id
    assert names.ROWS_TAG not in other.data.tags


def test_an_invalid_resume_is_one_line_and_changes_nothing(project, interrupted):
    client, run_id = interrupted
    before = snapshot(client, run_id)
    code, output = finish(start(project, "--resume", run_id, "--epochs", "5", "--device", "auto"))
    assert code == 2
    assert "epochs is 5 and the run has 15" in output
    assert "device" not in output
    assert "Traceback" not in output
    assert snapshot(client, run_id) == before


@pytest.mark.parametrize("option", ["MLFLOW_RUN_ID", "--resume"])
def test_without_waiting_a_resume_exits_with_75_to_be_started_again(project, interrupted, option):
    """Schedulers' scripts know this exit code. The run is unchanged."""
    client, run_id = interrupted
    train_elsewhere(client, run_id)
    before = snapshot(client, run_id)
    by_id = option == "MLFLOW_RUN_ID"
    arguments, variables = ((), {option: run_id}) if by_id else ([option, run_id], {})
    code, output = finish(start(project, *arguments, "--if-held", "leave", **variables))
    assert code == 75, output
    assert "start the same command again later" in output
    assert snapshot(client, run_id) == before


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_a_process_elsewhere(project, interrupted):
    client, run_id = interrupted
    train_elsewhere(client, run_id)
    before = snapshot(client, run_id)
    process = start(project, "--resume", run_id)
    for line in process.stdout:
        if "waiting up to 180 s" in line:
            break
    terminate(process)
    code, output = finish(process)
    assert code == 128 + signal.SIGTERM, output
    assert snapshot(client, run_id) == before


def test_a_stored_row_is_not_replaced_by_a_different_measurement(project, interrupted):
    """After a kill between a row and its state, on a device with other rounding.

    The stored row is scored, and training continues.
    """
    client, run_id = interrupted
    run = client.get_run(run_id)
    rows = rows_folder(run)
    # The state before the last one is there, too, if the kill came before it was deleted.
    states = artifact_folder(run).glob("training_state/*.json")
    last_row = max(json.loads(state.read_text())["row"] for state in states)
    for file in rows.glob("row_*.json"):  # a row whose state was on its way
        if parse_row_index(file.name) > last_row:
            file.unlink()
    # Row 4, say, as a device measured it that this one is not: with the counts of the row before.
    content = json.loads((rows / f"row_{last_row:03}.json").read_text())
    content |= {"row": last_row + 1, "trained_through": str(last_row + 1)}
    (rows / f"row_{last_row + 1:03}.json").write_text(json.dumps(content))
    before = {file.name: file.read_bytes() for file in rows.iterdir()}

    output = finish_well(start(project, "--resume", run_id))
    assert f"row {last_row + 1} of run {run_id} was measured again and differs" in output
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert {file: (rows / file).read_bytes() for file in before} == before
    # What is scored is what is stored, in the series too.
    stored = read_stored_rows(run).values()
    assert len(stored) == BUCKETS + 1
    matrix = AccuracyMatrix.from_rows(
        AccuracyRow(r["row"], r["buckets"], r["correct"], r["num_instances"]) for r in stored
    )
    assert summarize(matrix).items() <= run.data.metrics.items()
    points = history(client, run_id)
    expected = collect_points(matrix)
    first = content["correct"][0] / content["num_instances"][0]
    assert expected["test_accuracy/bucket_01"][last_row + 1] == first
    for name, steps in expected.items():
        assert points[name] == sorted(steps.items())
    # The predictions of the row that was measured now are not those of the stored one.
    assert format_predictions_file_name(last_row + 1) not in read_tensors(run, "predictions")
    assert format_predictions_file_name(last_row + 2) in read_tensors(run, "predictions")


@pytest.mark.slow
def test_a_stopped_ensemble_names_the_member_to_resume(project, store, experiment_id, short_stream):
    arguments = options({**short_stream, **PARAMETERS})
    process = start(project, *arguments, "--seeds", "3,4")
    of_seed = "tags.seed = '4'"
    (run,) = wait_until(lambda: store.search_runs([experiment_id], of_seed), process)
    run_id = run.info.run_id
    wait_for_row(store, experiment_id, 2, process, run_id)
    terminate(process)
    code, output = finish(process)
    assert code == 143, output
    assert output.index("seed 3") < output.index("seed 4")
    assert "1 member: seed 3" in output  # the completed one
    assert f"resume   clear-mlflow train --resume {run_id}\n" in output
    finish_well(start(project, "--resume", run_id))
    finish_well(start(project, *arguments, "--seed", "4"))
    resumed = store.get_run(run_id)
    is_other = f"{of_seed} AND attributes.run_id != '{run_id}'"
    assert resumed.info.status == "FINISHED"
    uninterrupted = only_run(store, experiment_id, is_other)
    assert read_comparable_rows(resumed) == read_comparable_rows(uninterrupted)
