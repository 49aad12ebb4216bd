"""``clear-mlflow identify`` and ``evaluate --metrics published`` on a stored run and a bundle."""

import json
from pathlib import Path

import pytest
from commands import invoke, run_command

import clear_mlflow
from clear_mlflow.metrics import FAMILIES, scores


@pytest.fixture
def run(trained_runs):
    return clear_mlflow.load(trained_runs["replay", 0].info.run_id)


@pytest.fixture(params=["id", "folder", "archive"])
def source(run, tmp_path, request):
    if request.param == "id":
        return run.run_id
    path = tmp_path / ("run" if request.param == "folder" else "runs.tar.xz")
    return str(clear_mlflow.export(run, path))


@pytest.mark.fast_cases(2)
def test_a_stored_runs_number_is_identified(source, run):
    number = f"{run.metrics['renate/backward_transfer'].value * 100:.3f}"
    done = invoke("identify", source, number, "--json")
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["numbers"]
    assert result == json.loads(json.dumps(clear_mlflow.identify(source, [number])[0].to_dict()))
    assert "renate/backward_transfer" in result["matches"][0]["names"]
    table = invoke("identify", source, number, "12345.6", "-0.9999").stdout
    assert f"{number}: matches: " in table
    assert "mean over j < last of R[last, j] - R[j, j]" in table
    assert "12345.6: none of " in table
    assert "-0.9999: none of " in table


def test_a_file_of_unproven_orientation_is_read_both_ways(tmp_path):
    """The last row and the last column of the file are both tests after the last bucket."""
    path = tmp_path / "m.csv"
    path.write_text("0.9,0.4,0.3\n0.8,0.9,0.5\n0.6,0.7,0.95\n")
    for number in ("0.750", "0.583"):
        (result,) = clear_mlflow.identify(path, [number])
        assert "renate/average_accuracy" in {name for m in result.matches for name in m.names}


def test_the_number_of_a_log_is_identified(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("CIL: [42.9]\nmean 1\nCIL: [48.4, 67.3]\n")
    rows = r"CIL: \[(.*)\]"
    done = invoke("identify", path, "57.85", "--rows", rows, "--scale", "percent", "--json")
    (result,) = json.loads(done.stdout)["numbers"]
    assert "renate/average_accuracy" in result["matches"][0]["names"]
    expected = clear_mlflow.identify(path, ["57.85"], rows=rows, scale="percent")[0].to_dict()
    assert result == json.loads(json.dumps(expected))
    done = invoke("identify", path, "57.85", "--rows", "CIL")
    assert done.output.startswith("error: --rows is 'CIL'; expected a regular expression")


def test_a_mean_over_the_files_of_several_seeds_is_identified(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["s0.csv", "s1.csv", "7.csv"]
    for name, last in zip(names, (61.1, 63.4, 66.2), strict=True):
        Path(name).write_text(f"80.3,0\n{last},90.7\n")
    options = ["--scale", "percent", "--future", "not-tested"]
    done = invoke("identify", *names, "-16.73 +- 2.55", "77.13", *options)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if "mean of 3" in line]
    assert done.stdout.startswith("-16.73 +- 2.55: matches: ")
    assert lines[0][:2] == ["renate/backward_transfer,", "gem/backward_transfer"]
    assert "standard deviation (n - 1)" in done.stdout
    other = invoke("identify", *names, "16.99", "--json", *options)
    (result,) = json.loads(other.stdout)["numbers"]
    assert result["matches"] == []
    assert result["nearest"]["matrix"] == "mean of 3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "0.5 +- 0.1"], "a mean over seeds; pass a matrix for each seed"),
        (["RUN", "missing.csv", "0.5"], "'missing.csv' is not a file"),
        (["RUN"], "without a published number after it; pass"),
        (["f" * 32, "0.5"], "f" * 32),
        (["missing.csv", "0.5"], "'missing.csv' is not a file"),
        (["RUN", "half"], "then numbers such as 6.145"),
        (["RUN", "--scal", "percent"], "no such option '--scal'"),
    ],
)
def test_errors_are_one_line(run, arguments, message):
    words = [word.replace("RUN", run.run_id) for word in arguments]
    done = invoke("identify", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_published_variants_are_logged_only_when_chosen(store, run):
    names = {metric.name for metric in FAMILIES["published"]}
    assert names.isdisjoint(store.get_run(run.run_id).data.metrics)
    run_command("evaluate", run.run_id, "--metrics", "published")
    expected = scores(run.matrix, metrics="published").values_by_name
    logged = store.get_run(run.run_id).data.metrics
    assert {name: logged[name] for name in expected} == pytest.approx(expected)
    assert "published/forgetting_with_last" in expected
