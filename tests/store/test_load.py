"""Runs, matrices and comparisons as Python objects, in notebooks, terminals and papers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import invoke
from courses import values
from html_pages import Page
from kept_predictions import kept_run
from stored_runs import stored_run
from trainings import FOUR_BUCKETS, NUM_TEST

import clear_mlflow
from clear_mlflow import AccuracyMatrix
from clear_mlflow.api.train import NotebookProgress, is_notebook
from clear_mlflow.comparison.tables import _format_powers
from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.metrics import summarize
from clear_mlflow.report.page.run_page import render_run_html
from clear_mlflow.report.terminal_tables import describe_retention
from clear_mlflow.store import names


def load_run(run):
    return clear_mlflow.load(run.info.run_id)


def build_tracked_run(store, experiment_id, *rows, **tags):
    run = stored_run(store, experiment_id, *rows, seed=tags["seed"])
    for name, value in tags.items():
        store.set_tag(run.info.run_id, name, value)
    return run


def test_every_public_name_exists():
    """No subpackage replaces a function of the same name when it is imported."""
    assert all(getattr(clear_mlflow, name) is not None for name in clear_mlflow.__all__)
    assert all(callable(getattr(clear_mlflow, name)) for name in clear_mlflow._LAZY_MODULES)


@pytest.fixture
def result(store, experiment_id):
    return load_run(stored_run(store, experiment_id, name="<b>a run</b>"))


def test_a_run_object_has_all_stored_values(trained_runs):
    run = load_run(trained_runs["naive", 0])
    assert run.matrix.num_rows == run.matrix.num_buckets == len(run.curves)
    assert values(run.metrics).items() >= summarize(run.matrix).items()
    final = run.metrics["renate/average_accuracy"]
    assert final.series[run.matrix.num_rows] == final.value
    assert final.interval[0] < final.value < final.interval[1]
    assert final.formula == "mean of R[last, j] over j <= last"
    assert run.predictions.k == run.matrix.num_rows
    assert run.curves[run.matrix.buckets[0]][1] == run.matrix.values[0, 0]
    content = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert content["matrix"]["values"] == run.matrix.values.tolist()
    assert content["metrics"]["renate/average_accuracy"]["value"] == final.value
    assert set(run.to_frame()["metric"]) == set(run.metrics)
    assert run.links == (f"open     clear-mlflow open {run.run_id}",)


def test_runs_are_searched_as_mlflow_searches_them(store, experiment_id, trained_runs):
    store.create_run(experiment_id)
    assert len(clear_mlflow.runs(experiment_id)) == 9
    found = clear_mlflow.runs(experiment_id, filter="tags.seed = '1'")
    assert sorted(run.tags["strategy"] for run in found) == ["naive", "ncm", "replay"]
    with pytest.raises(TrackingError, match="no experiment has the name or id 'other'"):
        clear_mlflow.runs("other")
    with pytest.raises(TrackingError, match="no_such"):
        clear_mlflow.load("no_such_run")


@pytest.mark.parametrize("name", ["/Users/me/paper", "lab/%20 日", "paper.tar.xz"])
def test_an_experiment_may_be_called_like_a_path(store, tmp_path, monkeypatch, name):
    """Unless there is a file or folder of the name."""
    monkeypatch.chdir(tmp_path)
    run_id = stored_run(store, store.create_experiment(name)).info.run_id
    assert [run.run_id for run in clear_mlflow.runs(name)] == [run_id]
    assert len(clear_mlflow.compare(name, log=False).comparison.runs) == 1
    with pytest.raises(ConfigError, match="is neither a bundle nor a folder that contains any"):
        clear_mlflow.runs(Path(name))


def test_a_run_without_rows_is_an_error(store, experiment_id):
    run = load_run(store.create_run(experiment_id))
    with pytest.raises(RecordError, match="contains no rows"):
        run.matrix  # noqa: B018
    assert (
        str(run) == f"{run.name} RUNNING: run {run.run_id} contains no rows of an accuracy matrix"
    )
    assert f">{run}<" in run._repr_html_()
    result = invoke("show", run.run_id)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "contains no rows" in result.stderr


def test_show_begins_with_the_share_that_was_retained(result):
    printed = invoke("show", result.run_id).stdout
    lines = printed.split("\n\n")[1].splitlines()
    assert lines == list(describe_retention(result.matrix))
    assert printed.index(lines[-1]) < printed.index("tested on")


def test_a_notebook_shows_matrix_metrics_and_links(result):
    text = result._repr_html_()
    page = Page(text)
    assert {"script", "b", "style"}.isdisjoint(tag for tag, _ in page.tags)
    cells = re.findall(r"<td style=\"text-align:center[^>]*>(.*?)</td>", text)
    assert cells == [f"{100 * n / NUM_TEST:.1f}" for row in FOUR_BUCKETS for n in row]
    for name, value in values(result.metrics).items():
        assert f"<code>{name}</code></th>" in text
        assert f">{value:.4f}</td>" in text
    assert f"clear-mlflow open {result.run_id}</code>" in text
    # A matrix alone is the same map.
    assert cells == re.findall(r"center[^>]*>(.*?)</td>", result.matrix._repr_html_())


def test_displayed_matrices_and_verdicts_have_the_values(store, experiment_id):
    run = stored_run(store, experiment_id)
    lines = str(load_run(run).matrix).splitlines()
    assert len([line for line in lines if "after" in line]) == len(FOUR_BUCKETS) - 1
    assert f"{100 * FOUR_BUCKETS[-1][0] / NUM_TEST:.1f}" in lines[-1]
    (verdict,) = clear_mlflow.evaluate([run.info.run_id])
    assert run.info.run_id in repr(verdict)
    assert "AccuracyMatrix" not in repr(verdict)


def test_an_address_is_a_link():
    text = render_run_html("a", AccuracyMatrix([[0.5]]), (), ("run      http://server/#/runs/1",))
    assert [a["href"] for tag, a in Page(text).tags if tag == "a"] == ["http://server/#/runs/1"]


def test_print_shows_tables_and_links(store, experiment_id):
    run = load_run(stored_run(store, experiment_id, FOUR_BUCKETS[:2]))
    text = str(run)
    for part in ("after 1", "renate/forgetting", f"clear-mlflow open {run.run_id}"):
        assert part in text
    assert "\x1b" not in text
    assert "needs a past bucket" in text
    assert "needs a past bucket" in run._repr_html_()
    assert run.metrics["renate/forgetting"].reason.startswith("needs a past bucket")


def test_plot_draws_the_heat_map_and_embeds_fonts(result, tmp_path):
    figure = result.plot(width=3.3)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.get_size_inches()[0] == pytest.approx(3.3)
    figure.savefig(tmp_path / "matrix.pdf")
    content = (tmp_path / "matrix.pdf").read_bytes()
    assert b"/Type3" not in content
    assert b"/CIDFontType2" in content


@pytest.mark.slow
def test_runs_are_compared(store, experiment_id):
    first, other = (load_run(kept_run(store, experiment_id)) for _ in range(2))
    for pair in ([first, other], [first, other.run_id]):
        compared = clear_mlflow.compare(pair, group_by=(), log=False)
        assert len(compared.leaderboard()) == 2
        assert compared._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
        assert "challenge" in str(compared)
    assert len(store.search_runs([experiment_id])) == 2
    stored = clear_mlflow.compare(experiment_id, group_by=())
    assert store.get_run(stored.run_id).data.tags[names.KIND_TAG] == names.KIND_COMPARE
    with pytest.raises((ConfigError, TrackingError), match="no_such"):
        clear_mlflow.compare([first, "no_such_run"])


def test_a_comparison_becomes_a_papers_table(store, experiment_id):
    for strategy, less in (("na_ive", 0), ("replay", 10)):
        for seed in range(3):
            rows = [
                [max(0, n - less - (1 + bool(less)) * seed * i) for n in row]
                for i, row in enumerate(FOUR_BUCKETS)
            ]
            build_tracked_run(store, experiment_id, rows, strategy=strategy, seed=seed)
    compared = clear_mlflow.compare(experiment_id, group_by=["strategy"], log=False)
    best, other = compared.comparison.groups
    name = "renate/average_accuracy"
    means = [group.metrics[name].mean for group in (best, other)]
    board = {"group": ["na_ive", "replay"], "seeds": [3, 3], name: means}
    assert compared.leaderboard([name]).to_dict("list") == board
    mean, std = best.metrics[name].mean, best.metrics[name].std
    latex = compared.to_latex([name])
    for part in (
        rf"na\_ive & 3 & ${100 * mean:.1f} \pm {100 * std:.1f}$ \\",
        r"Method & Seeds & \shortstack[r]{Average accuracy \\ (\%) $\uparrow$} \\",
        r"\begin{tabular}{lrr}",
    ):
        assert part in latex
    assert latex.startswith("\\begin{table}\n\\caption{Mean $\\pm$ standard deviation over seeds.")
    assert f"| {mean:.4f} ± {std:.4f} |" in compared.to_markdown([name])
    frame = compared.to_frame()
    (line,) = frame[(frame["group"] == "replay") & (frame["metric"] == name)].to_dict("records")
    assert (line["mean"], line["n"]) == (means[1], 3)
    (verdict,) = compared.verdicts().to_dict("records")
    for column in ("sentence", "p"):
        assert verdict[column] == getattr(compared.comparison.pairs[0], column)
    assert [line.get_label() for line in compared.plot(name).axes[0].lines] == ["na_ive", "replay"]
    with pytest.raises(ConfigError, match="which no run defines"):
        compared.to_latex(["renate/none"])
    json.dumps(compared.to_dict(), allow_nan=False)


@pytest.mark.parametrize("width", [0, -1, 1.5, float("nan"), float("inf")])
def test_an_invalid_figure_width_is_a_one_line_error(width):
    with pytest.raises(ConfigError, match=r"expected at least 2\.7 inches"):
        AccuracyMatrix([[0.5]]).plot(width=width)


def test_latex_writes_powers_of_ten():
    assert _format_powers(r"$3.683e+11 \pm 2e-05$") == (
        r"$3.683 \times 10^{11} \pm 2 \times 10^{-5}$"
    )


@pytest.mark.slow
def test_runs_without_a_strategy_are_compared(store, experiment_id):
    for seed in (0, 1):
        build_tracked_run(store, experiment_id, seed=seed)
    for options in ({}, {"group_by": "auto"}, {"group_by": "dataset"}):
        compared = clear_mlflow.compare(experiment_id, log=False, **options)
        assert compared.comparison.group_by == ("dataset",)
    stored = clear_mlflow.compare(experiment_id, metrics="gem,tic")
    params = store.get_run(stored.run_id).data.params
    assert (params["group_by"], params["metrics"]) == ("dataset", "gem,tic")
    # What was asked for is shown, in a table of its own on a terminal.
    assert {"gem/average_accuracy", "tic/forward_transfer"} <= {*stored.leaderboard()}
    assert "gem/" in str(stored)
    assert max(map(len, str(stored).split("! ")[0].splitlines()[:9])) <= 80
    name = "renate/forgetting"
    assert [*stored.leaderboard(name)] == ["group", "seeds", name]
    first = clear_mlflow.compare([clear_mlflow.runs(experiment_id)[0]], log=False)
    assert {first.to_frame()[end].dtype for end in ("low", "high")} == {np.dtype(float)}
    for options, message in (
        ({"margin": -1}, "margin is -1; expected percentage points above 0"),
        ({"margin": "1"}, "margin is '1'; expected a finite number or None"),
        ({"rank_by": "nope"}, r"rank_by.*'nope', which no run defines"),
    ):
        with pytest.raises(ConfigError, match=message):
            clear_mlflow.compare(experiment_id, log=False, **options)
    with pytest.raises(TrackingError, match="cannot read run 0000"):
        clear_mlflow.runs("0" * 32)
    with pytest.raises(ConfigError, match="runs contains 5; expected runs, their ids, or paths"):
        clear_mlflow.load(5)


def test_an_error_is_one_line_in_a_notebook():
    """IPython asks an error how to display it."""
    error = ConfigError("lr is '-1'; expected a number above 0")
    assert error._render_traceback_() == ["error: lr is '-1'; expected a number above 0"]


def test_the_notebooks_matrix_grows_row_by_row():
    assert not is_notebook()
    for protocol, cells in (("iid", 4), ("streaming", 3)):
        texts = []
        progress = NotebookProgress(protocol)
        progress._display = SimpleNamespace(update=lambda page, to=texts: to.append(page.data))
        progress.bucket_started("<i>", bucket_index=0, num_buckets=4)
        assert "bucket &lt;i&gt;: 1 of 4" in texts[-1]
        keys = ("1", "2", "3", "4")
        progress.row_measured(AccuracyRow(1, keys, tuple(FOUR_BUCKETS[1]), (NUM_TEST,) * 4))
        assert "1 of 4 buckets, on itself 90.0 %" in texts[-1]
        assert (
            len(re.findall(r"<td style=\"text-align:center[^>]*>[0-9.]+</td>", texts[-1])) == cells
        )
        assert '<progress value="1" max="4"' in texts[-1]


@pytest.mark.slow
def test_show_loads_neither_pages_nor_statistics_nor_training():
    """Most of its time is spent on imports."""
    code = "import clear_mlflow.cli.show, clear_mlflow.api.load, sys; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    packages = {name.split(".")[1] for name in loaded if name.startswith("clear_mlflow.")}
    reading = {"api", "cli", "core", "metrics", "process", "report", "scoring", "store"}
    assert packages - {"journal"} == reading  # MLflow itself loads the journal's offline stores
    assert {"clear_mlflow.report.page", "clear_mlflow.scoring.run_log"}.isdisjoint(loaded)
    assert {"torch", "matplotlib"}.isdisjoint(loaded)
