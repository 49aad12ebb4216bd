"""Ensembles in MLflow: the run of each seed, and their parent run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from itertools import compress

import mlflow
import pytest
from feature_streams import config, train_rows
from feature_streams import training as build_training
from forked import run_forked
from stored_runs import artifact_folder

import clear_mlflow
from clear_mlflow.core.errors import ConfigError, DivergedError, TrainingError
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.learning.measured import Measurement, ignore
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config
from clear_mlflow.store import names
from clear_mlflow.tracking.tracked_training import train_in_process

pytestmark = pytest.mark.slow

# Metrics that differ between two trainings with the same seed.
CHANGING = {"cost/seconds", "cost/device_seconds", "cost/test_seconds", names.CURVE_SPEED}
ASKED = {"features": "made_up", "epochs": "7", "seeds": "4,2", "batch_size": "6"}


def find_runs(store, experiment_id):
    runs = store.search_runs([experiment_id])
    is_parent = [run.data.tags[names.KIND_TAG] == names.KIND_ENSEMBLE for run in runs]
    (parent,) = compress(runs, is_parent)
    return parent, {int(run.data.tags["seed"]): run for run in runs if run is not parent}


def read_rows(run) -> list[tuple[int, ...]]:
    """Return the correct counts per bucket and row, read with json only."""
    files = sorted(artifact_folder(run).glob("accuracy_matrix/rows/*.json"))
    return [tuple(json.loads(file.read_text())["correct"]) for file in files]


def list_files(run) -> set[str]:
    folder = artifact_folder(run)
    paths = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    return {path for path in paths if not path.startswith("images/")}


@pytest.fixture
def finished(store, experiment_id):
    train_in_process(store, build_training(config(**ASKED)), ASKED)
    return find_runs(store, experiment_id)


def test_each_member_is_recorded_as_it_would_be_alone(finished, store, experiment_id):
    _, members = finished
    assert set(members) == {4, 2}
    alone_asked = {**ASKED, "seed": "2", "seeds": "none"}
    train_in_process(store, build_training(config(**alone_asked)), alone_asked)
    alone = store.search_runs([experiment_id], max_results=1)[0]  # the newest
    member = members[2]
    assert (member.info.run_name, member.info.status) == (alone.info.run_name, "FINISHED")
    assert member.data.params == alone.data.params
    # These tell the moment at which a row was written or a run opened, or which run it is below.
    changing = {"mlflow.parentRunId", names.NOTE_TAG, "mlflow.note.content", names.HOLDER_TAG}
    changing |= {names.MATRIX_TAG, names.SCORED_TAG}
    for entries, other, left_out in (
        (member.data.metrics, alone.data.metrics, CHANGING),
        (member.data.tags, alone.data.tags, changing),
    ):
        assert {name: value for name, value in entries.items() if name not in left_out} == {
            name: value for name, value in other.items() if name not in left_out
        }
    assert names.CURVE_LOSS in member.data.metrics
    assert read_rows(member) == read_rows(alone) == train_rows(config(**alone_asked))
    assert read_rows(members[4]) == train_rows(config(**{**ASKED, "seeds": "none", "seed": 4}))
    assert list_files(member) == list_files(alone)
    folder = artifact_folder(member) / "predictions"
    images = EvaluationSet.load(folder / "evaluation_set.safetensors")
    for row, correct in enumerate(read_rows(member)):
        predictions = RowPredictions.load(folder / f"row_{row:03d}.safetensors")
        assert predictions.count_correct(images) == correct


def test_the_parent_run_has_the_summary_and_no_rows(finished):
    parent, members = finished
    assert {run.data.tags["mlflow.parentRunId"] for run in members.values()} == {parent.info.run_id}
    for name in members[4].data.metrics:
        if name.startswith(("clear/", "renate/")):
            values = [run.data.metrics[name] for run in members.values()]
            assert parent.data.metrics[f"mean/{name}"] == pytest.approx(sum(values) / 2)
            assert parent.data.metrics[f"std/{name}"] == pytest.approx(statistics.stdev(values))
    assert any(name.startswith("std/clear/") for name in parent.data.metrics)
    assert parent.info.run_name == "naive digits 2 seeds"
    assert parent.info.status == "FINISHED"
    assert parent.data.params["seeds"] == "4,2"
    assert parent.data.tags["seeds"] == "4,2"
    assert parent.data.tags[names.MEMBERS_TAG] == "2"
    assert not (artifact_folder(parent) / "accuracy_matrix").exists()
    assert (artifact_folder(parent) / "config.json").is_file()
    assert not {names.PROCESS_TAG, names.ERROR_TAG, names.ROWS_TAG} & parent.data.tags.keys()


class Breaking:
    """A training with two seeds. The second raises an error after row 1."""

    def __init__(self, error, training=None):
        self._error = error
        self._training = training or build_training(config(**ASKED))
        self.config, self.dataset = self._training.config, self._training.dataset

    def for_member(self, member) -> Breaking:
        return Breaking(self._error, self._training.for_member(member))

    def rows(self, on_message=ignore) -> Iterator[Measurement]:
        for measured in self._training.rows(on_message):
            if measured.row.row == 2 and self.config.seed == 2:
                raise self._error
            yield measured


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TrainingError("the disk is full"), "FAILED"),
        (DivergedError("the loss is not finite"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
)
def test_an_error_ends_the_ensemble_but_not_the_members_before_it(
    store, experiment_id, error, status
):
    with pytest.raises(type(error)):
        train_in_process(store, Breaking(error), ASKED)
    parent, members = find_runs(store, experiment_id)
    for run in (parent, members[2]):
        assert run.info.status == status
        assert (str(error) or type(error).__name__) in run.data.tags[names.ERROR_TAG]
        assert names.PROCESS_TAG not in run.data.tags
        assert (names.DIVERGED_TAG in run.data.tags) == isinstance(error, DivergedError)
    assert [len(read_rows(members[seed])) for seed in (4, 2)] == [4, 2]
    assert [members[seed].data.tags[names.ROWS_TAG] for seed in (4, 2)] == ["complete", "partial"]
    assert members[4].info.status == "FINISHED"
    assert names.ERROR_TAG not in members[4].data.tags
    assert all("clear/in_domain_accuracy" in run.data.metrics for run in members.values())
    assert not any(name.startswith("mean/") for name in parent.data.metrics)
    assert mlflow.active_run() is None


def test_seeds_after_an_error_have_no_run(store, experiment_id):
    """An empty run would look like one that failed."""
    training = build_training(config(**{**ASKED, "seeds": "2,4"}))
    with pytest.raises(TrainingError):
        train_in_process(store, Breaking(TrainingError("stop"), training), {})
    assert set(find_runs(store, experiment_id)[1]) == {2}


def test_an_active_run_becomes_the_parent(store):
    with mlflow.start_run(run_name="mine") as active:
        train_in_process(store, build_training(config(**ASKED)), ASKED)
        assert mlflow.active_run().info.run_id == active.info.run_id
    parent, members = find_runs(store, active.info.experiment_id)
    assert parent.info.run_id == active.info.run_id
    assert parent.info.run_name == "mine"
    assert {run.info.status for run in members.values()} == {"FINISHED"}


def test_runs_by_seed_from_python(store):
    parameters = {"features": "pixels", "epochs": 2, "seeds": [1, 0], "device": "cpu"}
    runs = clear_mlflow.train_ensemble(**parameters)
    assert list(runs) == [1, 0]
    assert runs[1].matrix.num_rows == 10
    with pytest.raises(ConfigError, match="call train_ensemble, or pass seed=N"):
        clear_mlflow.train(**parameters)
    with pytest.raises(ConfigError, match=r"pass seeds=\[0, 1, 2\], or call train"):
        clear_mlflow.train_ensemble(features="pixels")


def test_the_command_trains_members_in_one_supervised_process(store, experiment_id):
    options = ["--features", "pixels", "--epochs", "2", "--seeds", "0,5", "--device", "cpu"]
    done = run_forked("train", *options, check=True, timeout=180)
    parent, members = find_runs(store, experiment_id)
    assert set(members) == {0, 5}
    assert all(len(read_rows(run)) == 11 for run in members.values())
    assert {run.info.status for run in (parent, *members.values())} == {"FINISHED"}
    parameters = dict(zip(options[::2], options[1::2], strict=True))
    alone = TrainConfig.resolve(
        {**{name[2:]: text for name, text in parameters.items() if name != "--seeds"}, "seed": "5"}
    )
    expected = [
        m.row.correct for m in prepare_training(resolve_config(alone), TrainingProgress()).rows()
    ]
    assert read_rows(members[5]) == expected
    assert done.stderr.count("bucket 10/10") == 2
    assert "2 members: seeds 0, 5" in done.stdout
    assert f"{parent.data.metrics['mean/clear/in_domain_accuracy']:.4f}" in done.stdout
    flops = members[5].data.metrics["cost/training_flops"]
    (line,) = [line for line in done.stdout.splitlines() if "cost/training_flops" in line]
    of_members = [f"{flops:.3e}"] * 2
    assert line.split() == ["cost/training_flops", f"{flops:.3e}", "0", *of_members]
