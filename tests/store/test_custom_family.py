"""An unknown family of metrics works everywhere without a change of this package."""

import re

import pytest
from commands import invoke
from compare_command import compare, load_comparison
from comparisons import NUM_TEST, counts, log_run

from clear_mlflow.store import names

pytestmark = pytest.mark.slow

FAMILY = """
import numpy as np
from clear_mlflow.metrics import Metric
from clear_mlflow.metrics._metric import require_trained, select_values

def late_learning(matrix):
    require_trained(matrix, 2, "a second trained bucket")
    new = select_values(matrix, np.eye(*matrix.values.shape, dtype=np.bool_))
    return float(new[-1] - new[0])

def worst(matrix):
    raise KeyError("no such")

METRICS = (Metric(name="evenness/late", function=late_learning, higher_is_better=False),)
answers = Metric(name="mylab/answers", function=worst, needs="predictions")
"""


@pytest.fixture(autouse=True)
def family(tmp_path, monkeypatch):
    (tmp_path / "evenness.py").write_text(FAMILY)
    monkeypatch.chdir(tmp_path)


def invoke_with(*arguments, metric="evenness:METRICS"):
    return invoke(*arguments, "--metrics", metric)


def test_a_custom_family_is_scored_reported_and_compared(store, experiment_id):
    runs = {}
    for strategy, rise in (("naive", 2), ("replay", 15)):
        for seed in range(3):
            correct = counts(100, seed)
            for i in range(1, 5):
                correct[i][i - 1] += rise * i
            run = log_run(store, experiment_id, strategy, correct, strategy=strategy, seed=seed)
            runs[run.info.run_id] = [correct[i][i - 1] / NUM_TEST for i in range(1, 5)]
    done = invoke_with("evaluate", "--runs", "test")
    assert done.exit_code == 0, done.output
    for run_id, diagonal in runs.items():
        steps = {m.step: m.value for m in store.get_metric_history(run_id, "evenness/late")}
        assert steps == pytest.approx({k: diagonal[k - 1] - diagonal[0] for k in (2, 3, 4)})
        note = store.get_run(run_id).data.tags["mlflow.note.content"]
        (line,) = [line for line in note.splitlines() if "evenness/late" in line]
        assert line.endswith("| lower is better |")
    result = invoke_with("evaluate", run_id)
    assert re.search(r"evenness/late +0\.\d{4} +lower is better", result.output), result.output

    options = ("--rank-by", "evenness/late", "--metrics", "evenness:METRICS")
    _, content = compare(store, experiment_id, *options)
    comparison, folder = load_comparison(store, experiment_id)
    assert comparison.data.params["metrics"] == "evenness:METRICS"
    assert [group["name"] for group in content["groups"]] == ["naive", "replay"]
    assert {test["metric"] for test in content["verdicts"]} == {"evenness/late"}
    assert "evenness/late" in (folder / names.COMPARISON_PAGE).read_text()


def test_a_failing_run_is_left_out_of_a_comparison_and_reported(store, experiment_id):
    for seed in (0, 1):
        log_run(store, experiment_id, "naive", counts(120, seed), strategy="naive", seed=seed)
    output, _ = compare(store, experiment_id, "--metrics", "evenness:worst")
    assert "evenness/worst is left out of 2 of 2 runs: evenness:worst raised KeyError" in output
    done = invoke_with("compare", "--runs", "test", metric="evenness:answers")
    assert done.exit_code == 2
    assert "metric mylab/answers is computed from predictions" in done.output
