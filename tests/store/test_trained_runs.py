"""What a training gives back: a matrix that notebooks and terminals can show, and its run."""

from __future__ import annotations

import re

import numpy as np
import pytest
from html_pages import Page
from kept_predictions import kept_run
from stored_runs import stored_run
from trainings import FOUR_BUCKETS, NUM_TEST

from clear_mlflow import AccuracyMatrix, summarize
from clear_mlflow.api.live import NotebookProgress, in_notebook
from clear_mlflow.api.run import TrainedRun
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.scoring.scores import score


def trained(store, run):
    return TrainedRun.of(store, score(store, run.info.run_id))


@pytest.fixture
def result(store, experiment_id):
    return trained(store, stored_run(store, experiment_id, name="<b>a run</b>"))


def test_it_is_the_matrix(result):
    """As before it had a run: whatever takes a matrix takes it."""
    expected = AccuracyMatrix(
        np.array(FOUR_BUCKETS[1:]) / NUM_TEST,
        np.array(FOUR_BUCKETS[0]) / NUM_TEST,
        [NUM_TEST] * 4,
    )
    assert result.equals(expected)
    assert summarize(result) == result.metrics
    assert result.after(2).num_rows == 2
    assert repr(result) == f"TrainedRun('<b>a run</b>', {result.run_id}, 4 of 4)"
    assert isinstance(result, AccuracyMatrix)


def test_a_notebook_shows_matrix_metrics_and_links(result):
    text = result._repr_html_()
    page = Page(text)
    assert {"script", "b", "style"}.isdisjoint(tag for tag, _ in page.tags)
    cells = re.findall(r"<td style=\"text-align:center[^>]*>(.*?)</td>", text)
    assert cells == [f"{100 * n / NUM_TEST:.1f}" for row in FOUR_BUCKETS for n in row]
    for name, value in result.metrics.items():
        assert f"<code>{name}</code></th>" in text
        assert f">{value:.4f}</td>" in text
    assert f"clear-mlflow open {result.run_id}</code>" in text
    # Of a store that is a server, an address that a person can follow.
    object.__setattr__(result, "links", ("run      http://server/#/runs/1",))
    tags = Page(result._repr_html_()).tags
    assert [a["href"] for tag, a in tags if tag == "a"] == ["http://server/#/runs/1"]


def test_print_shows_tables_and_links(store, experiment_id):
    """And why a metric has no value, as a notebook does."""
    result = trained(store, stored_run(store, experiment_id, FOUR_BUCKETS[:2]))
    text = str(result)
    for told in ("after 1", "renate/forgetting", f"clear-mlflow open {result.run_id}"):
        assert told in text
    assert "\x1b" not in text
    assert "needs a past bucket" in text
    assert "needs a past bucket" in result._repr_html_()


def test_the_picture_is_the_heat_map(result):
    """A notebook asks an object for its PNG; no pyplot is needed."""
    figure = result.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_two_runs_are_compared(store, experiment_id):
    """By object or by id; nothing is stored."""
    one, other = (trained(store, kept_run(store, experiment_id)) for _ in range(2))
    count = len(store.search_runs([experiment_id]))
    for compared in (one.compare(other), one.compare(other.run_id)):
        assert len(compared.comparison.subjects) == 2
        assert compared._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
        assert "clear/challenge" in str(compared) or "challenge" in str(compared)
    assert len(store.search_runs([experiment_id])) == count
    with pytest.raises(ConfigError, match="a comparison needs another"):
        one.compare(one)
    with pytest.raises((ConfigError, TrackingError), match="no_such"):
        one.compare("no_such_run")


def test_an_error_is_one_line_in_a_notebook():
    """IPython asks an error for what it shows."""
    error = ConfigError("lr is '-1'; expected a number above 0")
    assert error._render_traceback_() == ["error: lr is '-1'; expected a number above 0"]


class Shown:
    """Stands for the output of a notebook's cell."""

    def __init__(self):
        self.texts = []

    def update(self, content):
        self.texts.append(content.data)


def test_the_matrix_grows_row_by_row():
    """Each row is shown when it is measured, under streaming without what is no evidence."""
    assert not in_notebook()
    for protocol, cells in (("iid", 4), ("streaming", 3)):
        progress, shown = NotebookProgress(protocol), Shown()
        progress._handle = shown
        progress.bucket_started("<i>", position=0, num_buckets=4)
        assert "bucket &lt;i&gt;: 1 of 4" in shown.texts[-1]
        keys = ("1", "2", "3", "4")
        progress.row_measured(AccuracyRow(1, keys, tuple(FOUR_BUCKETS[1]), (NUM_TEST,) * 4))
        assert "1 of 4 buckets, on itself 90.0 %" in shown.texts[-1]
        found = re.findall(r"<td style=\"text-align:center[^>]*>([0-9.]+)</td>", shown.texts[-1])
        assert len(found) == cells
        assert '<progress value="1" max="4"' in shown.texts[-1]
