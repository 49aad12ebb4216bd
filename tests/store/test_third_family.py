"""A family of metrics that this project has never heard of: everything takes it without an edit."""

import csv
import importlib
import io
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from comparisons import counts, log_run, row_records

from clear_mlflow.cli import main
from clear_mlflow.core.record import assemble, row_file_name
from clear_mlflow.store import names

FAMILY = '''
"""How evenly a model knows what it was trained on."""

import numpy as np

from clear_mlflow.metrics import Metric
from clear_mlflow.metrics._base import cells_where, need_trained


def spread(matrix):
    """Range of the accuracies on the buckets trained on."""
    need_trained(matrix, 1, "a trained bucket")
    learned = cells_where(matrix, np.tri(*matrix.values.shape, dtype=np.bool_))
    return float(learned.max() - learned.min())


METRICS = (Metric(name="evenness/spread", function=spread, higher_is_better=False),)
'''
WIDTH = 4


@pytest.fixture
def family(tmp_path, monkeypatch):
    """The family as a user has it: a module in the folder that they work in."""
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "evenness.py").write_text(FAMILY)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("evenness")
    sys.modules.pop("evenness")


def invoke(*arguments):
    return CliRunner().invoke(main, [*arguments, "--metric", "evenness:METRICS"])


def by_loops(matrix, k):
    """The family of the run cut off after *k* buckets, cell by cell."""
    learned = [matrix.values[i, j] for i in range(k) for j in range(i + 1)]
    return {"evenness/spread": max(learned) - min(learned)}


def record_of(correct):
    rows = row_records(correct)
    return assemble({row_file_name(row.row.row): row for row in rows})


def of_family(run):
    return {k: v for k, v in run.data.metrics.items() if k.startswith("evenness/")}


@pytest.mark.usefixtures("family")
def test_scores_reports_and_pages_take_it(store, experiment_id):
    """Stored with a value per step, in the run's description, ranked, charted and tested."""
    runs = {}
    # The smaller the level, the less of a range is left below it: naive is the more even one.
    for strategy, level in (("naive", 60), ("replay", 190)):
        for seed in range(3):
            correct = counts(level, seed)
            # Forgetting: the older a bucket, the further the last rows have fallen.
            for i, row in enumerate(correct[1:]):
                for j in range(i):
                    row[j] -= (i - j) * level // 10
            run = log_run(store, experiment_id, strategy, correct, strategy=strategy, seed=seed)
            runs[run.info.run_id] = record_of(correct).matrix
    done = invoke("evaluate", "--experiment", "test")
    assert done.exit_code == 0, done.output
    for run_id, matrix in runs.items():
        run = store.get_run(run_id)
        assert of_family(run) == pytest.approx(by_loops(matrix, WIDTH))
        for name in of_family(run):
            steps = {m.step: m.value for m in store.get_metric_history(run_id, name)}
            expected = {k: by_loops(matrix, k)[name] for k in range(1, WIDTH + 1)}
            assert steps == pytest.approx(expected)
        (line,) = [
            line
            for line in run.data.tags["mlflow.note.content"].splitlines()
            if "evenness&#47;spread" in line
        ]
        assert line.endswith("| lower is better |")
    shown = invoke("evaluate", "--run-id", run_id)
    assert re.search(r"evenness/spread +0\.\d{4} +lower is better", shown.output), shown.output

    done = invoke("compare", "--experiment", "test", "--rank-by", "evenness/spread")
    assert done.exit_code == 0, done.output
    (comparison,) = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = 'compare'")
    assert comparison.data.params["metric"] == "evenness:METRICS"
    folder = Path(comparison.info.artifact_uri.removeprefix("file://"))
    lines = list(csv.DictReader(io.StringIO((folder / names.LEADERBOARD_CSV).read_text())))
    assert [line["group"] for line in lines] == ["naive", "replay"]  # the smaller spread leads
    told = json.loads((folder / names.COMPARED_JSON).read_text())
    assert {test["metric"] for test in told["verdicts"]} == {"evenness/spread"}
    page = (folder / names.COMPARISON_PAGE).read_text()
    assert "evenness/spread" in page


def test_what_fails_is_left_out_of_a_comparison_and_told(store, experiment_id, family):
    """In a warning, with the first reason; a metric of predictions is no metric to compare by."""
    for seed in (0, 1):
        log_run(store, experiment_id, "naive", counts(120, seed), strategy="naive", seed=seed)
    lab = Path(family.__file__).parent
    (lab / "broken.py").write_text(
        "from clear_mlflow.metrics.from_predictions import PredictionMetric\n"
        "def worst(matrix):\n    raise KeyError('no such')\n"
        "answers = PredictionMetric(name='mylab/answers', function=worst)\n"
    )
    done = CliRunner().invoke(main, ["compare", "--experiment", "test", "--metric", "broken:worst"])
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert "broken/worst is left out of 2 of 2 runs: broken:worst raised KeyError" in told
    done = CliRunner().invoke(
        main, ["compare", "--experiment", "test", "--metric", "broken:answers"]
    )
    assert done.exit_code == 2
    assert "metric mylab/answers is computed from predictions" in done.output
