"""Which parameters group runs: those that the training described, whatever this version knows."""

import json

import pytest
from comparisons import counts, log_run, log_training

from clear_mlflow.api.compared import build_compared_run
from clear_mlflow.comparison.ranking import get_default_group_by
from clear_mlflow.store.names import PARAMETERS_TAG
from clear_mlflow.store.rows import read_records


@pytest.fixture
def read_runs(store, experiment_id):
    def read():
        stored = store.search_runs([experiment_id])
        pairs = zip(stored, read_records(store, stored), strict=True)
        runs = [build_compared_run(run, record, {}) for run, record in pairs]
        return {run.name: run for run in runs}

    return read


def describe(store, run, **described):
    store.set_tag(run.info.run_id, PARAMETERS_TAG, json.dumps(described))


def test_a_parameter_of_another_version_groups_runs(store, experiment_id, read_runs):
    for name, sharpness in (("a", "0.1"), ("b", "0.1"), ("c", "0.5")):
        run = log_run(store, experiment_id, name, counts(100, 0), strategy="naive", seed=0)
        store.log_param(run.info.run_id, "momentum", "0.9")
        tuned = {"sharpness": sharpness, "momentum": None}
        describe(store, run, tuned=tuned, method={"model": "mlp"}, unlogged={"compile": "off"})
    runs = read_runs()
    assert runs["a"].method_params == {"sharpness": "0.1", "momentum": "not logged", "model": "mlp"}
    assert runs["a"].tuned == {"sharpness", "momentum"}
    assert (runs["a"].labels["compile"], runs["a"].labels["momentum"]) == ("off", "not logged")
    assert get_default_group_by([*runs.values()]) == ("strategy", "dataset", "sharpness")


def test_options_of_the_machine_do_not_group_trainings(store, experiment_id, read_runs):
    parameters = {"strategy": "naive", "dataset": "digits", "seed": "0"}
    for seed, device in enumerate(("cpu", "cuda")):
        options = {**parameters, "seed": str(seed), "device": device, "compile": "off"}
        log_training(store, experiment_id, counts(100, seed), options)
    assert get_default_group_by([*read_runs().values()]) == ("strategy", "dataset")


@pytest.mark.parametrize("tag", [None, "{", "[]", '{"tuned": 1}', '{"tuned": {"lr": [1]}}'])
def test_runs_without_a_description_are_those_of_another_program(
    store, experiment_id, read_runs, tag
):
    run = log_run(store, experiment_id, "theirs", counts(100, 0), strategy="naive", seed=0)
    params = {"lr": "0.1", "num_workers": "4", "out_dir": "/tmp/x", "run_name": "theirs"}
    params |= {"data_seed": "1", "seed": "1", "device": "cuda:1", "output_dir": "runs/1"}
    for name, value in params.items():
        store.log_param(run.info.run_id, name, value)
    if tag is not None:
        store.set_tag(run.info.run_id, PARAMETERS_TAG, tag)
    assert read_runs()["theirs"].method_params == {"lr": "0.1"}


def test_quotes_of_mlflow_run_are_removed_and_used_values_precede(store, experiment_id, read_runs):
    run = log_run(store, experiment_id, "quoted", counts(100, 0), strategy="naive", seed=0)
    values = {"a": "'b c'", "d": "it's", "e": "'f' g", "h": "'i'"}
    for name, value in values.items():
        store.log_param(run.info.run_id, name, value)
    store.log_param(run.info.run_id, "memory", "'auto'")
    store.log_param(run.info.run_id, "used/memory", "300")
    run = read_runs()["quoted"]
    assert values.items() - {("a", "'b c'")} <= run.params.items()
    assert (run.params["a"], run.labels["memory"]) == ("b c", "300")
