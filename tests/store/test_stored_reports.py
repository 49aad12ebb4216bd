"""The report of a run in a real store: when it is written, and when it is unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from html_pages import Page
from kept_predictions import kept_run, score
from stored_runs import row_texts, rows_folder, stored_run
from trainings import FOUR_BUCKETS, KnownTraining

import clear_mlflow
from clear_mlflow.store import names
from clear_mlflow.tracking.tracked_training import train_in_process


def page_file(run) -> Path:
    return rows_folder(run).parents[1] / names.REPORT_HTML


def read_page_data(run):
    return json.loads(Page(page_file(run).read_text()).scripts[0])


@pytest.mark.slow
def test_a_training_stores_its_report(store, experiment_id):
    train_in_process(store, KnownTraining(FOUR_BUCKETS), {"seed": "7", "epochs": "auto"})
    (run,) = store.search_runs([experiment_id])
    text = page_file(run).read_text()
    for part in ("<dt>epochs</dt>", "<dt>digest</dt>", "<dt>clear_mlflow</dt>", run.info.run_name):
        assert part in text
    assert "requested: auto" in text
    assert "requested: 7" not in text  # what was asked for is what was used
    note = store.get_run(run.info.run_id).data.tags[names.MLFLOW_NOTE].splitlines()
    ids = f"{run.info.experiment_id}/runs/{run.info.run_id}"
    address = f"#/experiments/{ids}/artifacts/report.html?workflowType=machine_learning"
    assert note[2] == f"[**Report**, with every class]({address})"
    assert score(store, run, explicit=True).action == "unchanged"
    before = page_file(run).stat()
    assert score(store, run).action == "unchanged"
    assert page_file(run).stat() == before


def test_a_run_without_a_report_gets_one(store, experiment_id):
    run = kept_run(store, experiment_id)
    score(store, run)
    page_text = page_file(run).read_text()
    assert set(read_page_data(run)["predictions"]["rows"]) == {"0", "1", "2"}
    page_file(run).unlink()
    assert score(store, run).action == "unchanged"  # the tag is trusted
    store.delete_tag(run.info.run_id, names.SCORED_TAG)
    verdict = score(store, run, dry_run=True)
    missing = "the reports, the page, the tag mlflow.clear_mlflow.scored"
    assert f"would write {missing}" in verdict.detail
    assert not page_file(run).exists()
    assert score(store, run).action == "scored"
    assert page_file(run).read_text() == page_text
    assert score(store, run).action == "unchanged"


def test_a_lost_report_is_written_again(store, experiment_id):
    run = stored_run(store, experiment_id)
    score(store, run)
    assert "the run kept none" in page_file(run).read_text()
    page_file(run).unlink()
    assert score(store, run, explicit=True).action == "scored"
    assert page_file(run).exists()


def test_a_description_is_updated_unless_a_person_has_changed_it(store, experiment_id):
    run_id = stored_run(store, experiment_id, FOUR_BUCKETS[:2]).info.run_id

    def description_after_rows(number):
        for name, text in row_texts(FOUR_BUCKETS[:number]).items():
            (rows_folder(store.get_run(run_id)) / name).write_text(text)
        clear_mlflow.evaluate([run_id])
        return store.get_run(run_id).data.tags[names.MLFLOW_NOTE]

    own_description = description_after_rows(2)
    updated = description_after_rows(3)
    assert updated != own_description
    store.set_tag(run_id, names.MLFLOW_NOTE, "Trained for the paper.")
    assert description_after_rows(4) == "Trained for the paper."
    store.set_tag(run_id, names.MLFLOW_NOTE, "")
    assert "Report" in description_after_rows(5)


@pytest.mark.slow
def test_runs_of_earlier_versions_have_no_cost_metrics(store, experiment_id):
    runs = [stored_run(store, experiment_id, seed=seed) for seed in (0, 1)]
    assert {score(store, run).action for run in runs} == {"scored"}
    ids = [run.info.run_id for run in runs]
    assert not [name for name in store.get_run(ids[0]).data.metrics if "cost" in name]
    (cost_line,) = [line for line in page_file(runs[0]).read_text().splitlines() if "cost" in line]
    assert "<dt>cost of its training</dt><dd>not in its rows</dd>" in cost_line
    loaded_run, compared = clear_mlflow.load(ids[0]), clear_mlflow.compare(ids, group_by=["seed"])
    for text in (str(loaded_run), *loaded_run.metrics, str(compared), compared.page()):
        assert "cost" not in text
