"""The commands as a user types them, in their own processes, on a real store."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from forked import PIPED, ForkedPython, environment, find_training, run_forked
from short_stream import HELD
from stored_runs import build_stored_matrix, only_run, rows_folder, select_scores, wait_for_row
from waiting import LONG, finish, finish_well, wait_until

from clear_mlflow import ClearError, train
from clear_mlflow.metrics import summarize
from clear_mlflow.store import names

STATUS_OF_MLFLOW = ("KILLED", "FAILED")


def mlflow_run(project, *arguments, forked=True, parameters=(), **options):
    """Start ``mlflow run``, forked, or in new interpreters by a real shell."""
    words = ["-m", "mlflow", "run", str(project), "--env-manager", "local", *arguments]
    words += [
        word for name, value in dict(parameters).items() for word in ("-P", f"{name}={value}")
    ]
    words += ["--experiment-name", "test"]
    options |= {"env": environment(), **PIPED}
    if forked:
        return ForkedPython(*words, **options)
    return subprocess.Popen([sys.executable, *words], text=True, **options)


def clear_mlflow(*arguments, experiment="test", **options):
    return run_forked(
        *arguments, env=environment(MLFLOW_EXPERIMENT_NAME=experiment), timeout=LONG, **options
    )


@pytest.mark.slow
def test_mlflow_run_logs_of_the_declared_parameters_what_is_in_force(
    project, store, experiment_id, tmp_path
):
    declared = ("dataset", "data_root", "strategy", "seed")
    extra = {"features": "pixels", "epochs": 1, "seed": 3}
    finish_well(mlflow_run(project, parameters=extra))
    first = only_run(store, experiment_id)
    config = Path(store.download_artifacts(first.info.run_id, "config.json", str(tmp_path)))
    in_force = json.loads(config.read_text())
    assert {name: first.data.params[name] for name in declared} == {
        "dataset": "digits",
        "data_root": "auto",
        "strategy": "naive",
        "seed": "3",
    }
    for name, text in first.data.params.items():
        name = name.removeprefix("used/")
        assert "/" in name or name == "arithmetic" or in_force[name] == text

    finish_well(mlflow_run(project, "-e", "repeat", parameters={"config": config}))
    again = only_run(store, experiment_id, f"attributes.run_id != '{first.info.run_id}'")
    assert {name: again.data.params[name] for name in declared} == {
        name: first.data.params[name] for name in declared
    }
    assert select_scores(again)["clear/accuracy"] == select_scores(first)["clear/accuracy"]

    code, output = finish(mlflow_run(project, parameters={"config": config}))
    assert code != 0
    assert "-e repeat to repeat one" in output


@pytest.mark.slow
def test_mlflow_run_and_evaluate(project, store, experiment_id):
    finish_well(mlflow_run(project))
    run = only_run(store, experiment_id)
    assert run.info.status == "FINISHED"
    matrix = build_stored_matrix(run)
    assert matrix.is_complete
    assert matrix.num_buckets == 10
    assert select_scores(run) == summarize(matrix)

    # What the embedded dataset is there to show.
    scores = select_scores(run)
    assert (
        scores["clear/in_domain_accuracy"]
        > scores["clear/next_domain_accuracy"]
        > scores["clear/forward_transfer"]
    )
    assert scores["renate/forgetting"] > 0.05

    copy = store.create_run(experiment_id)
    shutil.copytree(rows_folder(run), rows_folder(copy))
    finish_well(mlflow_run(project, "-e", "evaluate", parameters={"runs": copy.info.run_id}))
    copied = store.get_run(copy.info.run_id)
    assert select_scores(copied) == select_scores(run)
    (record,) = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = 'evaluate'")
    assert not record.data.metrics


def wait_until_closed(store, run):
    """Wait until the run is closed. The supervisor outlives mlflow run briefly."""

    def find_closed():
        closed = store.get_run(run.info.run_id)
        return None if closed.info.status == "RUNNING" else closed

    return wait_until(find_closed)


def interrupt(process):
    """Press Ctrl-C in a terminal: send SIGINT to the foreground process group."""
    os.killpg(process.pid, signal.SIGINT)


def terminate(process):
    os.killpg(process.pid, signal.SIGTERM)


def kill_training(process):
    find_training(process).kill()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [interrupt, terminate, kill_training])
def test_a_stopped_run_is_scored_and_closed(
    project, store, experiment_id, short_stream, hold, stop
):
    options = {"forked": stop is not interrupt, "start_new_session": True}
    process = mlflow_run(project, parameters={**short_stream, **HELD}, **options)
    run = wait_for_row(store, experiment_id, 2, process)
    stop(process)
    code, output = finish(process)
    assert code != 0
    closed = wait_until_closed(store, run)
    assert f"resume   clear-mlflow train --resume {run.info.run_id}\n" in output
    assert closed.info.status in STATUS_OF_MLFLOW
    assert closed.data.tags[names.ROWS_TAG] == "partial"
    assert closed.data.tags[names.ERROR_TAG]
    matrix = build_stored_matrix(closed)
    assert matrix.num_rows == 2
    assert f"partial: 2 of {matrix.num_buckets} rows" in output
    assert select_scores(closed) == summarize(matrix)


@pytest.mark.slow
@pytest.mark.parametrize(("after", "forked"), [(0.0, False), (1.0, True)])
def test_a_training_stopped_before_its_first_row(
    project, store, experiment_id, short_stream, hold, after, forked
):
    options = {"forked": forked, "start_new_session": True}
    process = mlflow_run(project, parameters={**short_stream, **HELD}, **options)
    wait_until(lambda: store.search_runs([experiment_id]), process)
    wait_until(lambda: any(map(listens, below(process))), process)
    time.sleep(after)
    terminate(process)
    finish(process)
    closed = wait_until_closed(store, only_run(store, experiment_id))
    assert closed.info.status in STATUS_OF_MLFLOW


def below(process):
    with suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def listens(process):
    """Return True if the process is the command and handles signals."""
    with suppress(psutil.Error, FileNotFoundError):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        is_ours = "-m clear_mlflow" in " ".join(process.cmdline()) and process.name() != "bash"
        return is_ours and bool(int(caught[1], 16) & 1 << signal.SIGTERM - 1)
    return False


@pytest.mark.slow
def test_options_override_a_configuration_file(
    project, store, experiment_id, short_stream, tmp_path
):
    """Also an option equal to the default. Both override the environment."""
    file = tmp_path / "config.json"
    parameters = {"seed": "3", "strategy": "replay", "epochs": "1", "features": "pixels"}
    file.write_text(json.dumps({**short_stream, **parameters}))
    options = ("--experiment", "test", "--run-name", "mine", "--seed", "0", "--config", str(file))
    arguments = (*options, "--tag", "paper=draft", "--tag", "a=b=c")
    clear_mlflow("train", *arguments, cwd=project, experiment="another", check=True)
    run = only_run(store, experiment_id)
    tags, params = run.data.tags, run.data.params
    assert (run.info.run_name, tags["paper"], tags["a"]) == ("mine", "draft", "b=c")
    assert (params["seed"], params["strategy"], params["epochs"]) == ("0", "replay", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "rehearse"], "expected one of"),
        # Only the training process notices these.
        (["--dataset", "clear10", "--data-root", "nowhere"], "nowhere"),
        (["--weights", "nowhere.pth"], "nowhere.pth cannot be read: No such file"),
    ],
)
def test_invalid_input_is_one_line_and_exit_code_2(store, experiment_id, arguments, message):
    finished = clear_mlflow("train", *arguments)
    output = finished.stdout + finished.stderr
    assert finished.returncode == 2
    (line,) = [li for li in output.splitlines() if li.startswith("error: ")]
    assert message in line
    assert "Traceback" not in output
    assert not store.search_runs([experiment_id])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "folder"}, "needs its folder"),
        ({"strategy_args": {"lambda": 1}}, "not an argument of strategy naive"),
        ({"strategy": "nowhere:Missing"}, "cannot be loaded"),
        ({"strategy": "slda"}, "learns from stored features"),
        ({"memory": 100}, "memory is 100, but strategy naive does not use it"),
        ({"model": "torch.nn:Flatten"}, "expected a torch.nn.Module with weights"),
        ({"weights": "DEFAULT", "model": "vit_b_16", "image_size": 96}, "pass image_size=224"),
        ({"features": "nowhere"}, "features nowhere do not exist"),
        ({"dataset": "table", "data_root": "tests", "dataset_args": {"table": "no.csv"}}, "no.csv"),
    ],
)
def test_invalid_parameters_are_an_error_before_a_run_is_opened(
    project, store, experiment_id, monkeypatch, options, message
):
    monkeypatch.chdir(project)
    with pytest.raises(ClearError, match=re.escape(message)):
        train(**options)
    assert not store.search_runs([experiment_id])
