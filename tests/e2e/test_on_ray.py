"""Runs scored by Ray's workers, against the same done in this process."""

import pytest
from click.testing import CliRunner
from stored_runs import histories, rows_folder, stored_run

from clear_mlflow.cli import main
from clear_mlflow.store import names

RUNS = 55  # more than a batch


@pytest.fixture
def twins(store):
    """Two experiments of the same runs; the last of each is damaged."""
    found = {}
    for experiment in ("here", "on_ray"):
        experiment_id = store.create_experiment(
            experiment, store.get_experiment_by_name("test").artifact_location
        )
        runs = [
            stored_run(store, experiment_id, [*row_texts_of(i)], name=f"run {i}", seed=i)
            for i in range(RUNS)
        ]
        (rows_folder(runs[-1]) / "row_001.json").write_text("{")
        found[experiment] = runs
    return found


def row_texts_of(i):
    """Counts of 100: four rows that differ from run to run."""
    return [[(10 * row + 7 * i + 3 * bucket) % 101 for bucket in range(3)] for row in range(4)]


def test_workers_write_what_this_process_writes(store, twins):
    """Every point of every series, every tag and every verdict; and the second time nothing."""
    told = {}
    for experiment, more in (("here", []), ("on_ray", ["--engine", "ray", "--jobs", "2"])):
        result = CliRunner().invoke(main, ["evaluate", "--experiment", experiment, *more])
        assert result.exit_code == 2, result.output
        told[experiment] = result.output
    for output in told.values():
        assert f"1 failed, {RUNS - 1} scored" in output
        assert "row_001" in output
    for here, there in zip(twins["here"], twins["on_ray"], strict=True):
        one, other = (store.get_run(run.info.run_id) for run in (here, there))
        assert histories(store, one.info.run_id) == histories(store, other.info.run_id)
        assert one.data.tags.keys() == other.data.tags.keys()
        for tag in (names.ROWS_TAG, names.VERSIONS_TAG):
            assert one.data.tags.get(tag) == other.data.tags.get(tag)

    arguments = ["evaluate", "--experiment", "on_ray", "--engine", "ray", "--dry-run"]
    second = CliRunner().invoke(main, arguments)
    assert f"1 failed, {RUNS - 1} unchanged" in second.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--engine", "ray", "--from-models"], "pass engine=local"),
        (["--address", "auto"], "pass engine=ray with it"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "cannot reach a Ray cluster"),
    ],
)
def test_what_does_not_go_together_is_told_in_one_line(store, arguments, told):
    """Exit code 2."""
    result = CliRunner().invoke(main, ["evaluate", "--only", "unscored", *arguments])
    assert result.exit_code == 2
    assert told in result.output
