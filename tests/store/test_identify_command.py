"""``clear-mlflow identify`` and ``evaluate --metrics published`` on a stored run and a bundle."""

import json

import pytest
from click.testing import CliRunner
from kept_predictions import kept_run

import clear_mlflow
from clear_mlflow.cli import main
from clear_mlflow.metrics import FAMILIES, scores


@pytest.fixture(params=["id", "folder", "archive"])
def source(store, experiment_id, tmp_path, request):
    """A run, and its name on the command line."""
    run = clear_mlflow.load(kept_run(store, experiment_id).info.run_id)
    paths = {"folder": tmp_path / "run", "archive": tmp_path / "runs.tar.xz"}
    if request.param == "id":
        return run.run_id, run
    return str(clear_mlflow.export(run, paths[request.param])), run


@pytest.mark.fast_cases(2)
def test_a_stored_runs_number_is_identified(source):
    """As JSON and as a table, with the formula."""
    name, run = source
    number = f"{run.metrics['renate/backward_transfer'].value * 100:.3f}"
    done = CliRunner().invoke(main, ["identify", name, number, "--json"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["numbers"]
    assert result == json.loads(json.dumps(clear_mlflow.identify(name, [number])[0].to_dict()))
    assert "renate/backward_transfer" in result["matches"][0]["names"]
    table = CliRunner().invoke(main, ["identify", name, number, "12345.6"]).stdout
    assert f"{number}: matches: " in table
    assert "mean over j < last of R[last, j] - R[j, j]" in table
    assert "12345.6: none of " in table


def test_a_file_of_unproven_orientation_is_read_both_ways(tmp_path):
    """The last row and the last column of the file are both tests after the last bucket."""
    path = tmp_path / "m.csv"
    path.write_text("0.9,0.4,0.3\n0.8,0.9,0.5\n0.6,0.7,0.95\n")
    for number in ("0.750", "0.583"):
        (result,) = clear_mlflow.identify(path, [number])
        assert "renate/average_accuracy" in {name for m in result.matches for name in m.names}


def test_a_negative_number_is_a_value(store, experiment_id):
    run = kept_run(store, experiment_id)
    done = CliRunner().invoke(main, ["identify", run.info.run_id, "-0.9999", "-5"])
    assert done.exit_code == 0, done.output
    assert "-0.9999: none of " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["f" * 32, "0.5"], "f" * 32),
        (["missing.csv", "0.5"], "'missing.csv' is not a file"),
        (["RUN", "half"], "expected numbers such as 6.145"),
        (["RUN", "--scal", "percent"], "values contains '--scal'"),
    ],
)
def test_errors_are_one_line(store, experiment_id, arguments, message):
    run = kept_run(store, experiment_id)
    words = [word.replace("RUN", run.info.run_id) for word in arguments]
    done = CliRunner().invoke(main, ["identify", *words])
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_published_variants_are_logged_only_when_chosen(store, experiment_id):
    run = clear_mlflow.load(kept_run(store, experiment_id).info.run_id)
    clear_mlflow.evaluate(run)
    names = {metric.name for metric in FAMILIES["published"]}
    assert names.isdisjoint(store.get_run(run.run_id).data.metrics)
    done = CliRunner().invoke(main, ["evaluate", run.run_id, "--metrics", "published"])
    assert done.exit_code == 0, done.output
    expected = scores(run.matrix, metrics="published").values_by_name
    logged = store.get_run(run.run_id).data.metrics
    assert {name: logged[name] for name in expected} == pytest.approx(expected)
    assert "published/forgetting_with_last" in expected
