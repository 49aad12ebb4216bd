"""Runs on custom streams: what is stored, and that one stream gives one matrix."""

import json
import re
from dataclasses import replace
from datetime import date

import pytest
from own_streams import YEARS, write_years
from stored_runs import artifact_folder, load_rows, only_training

import clear_mlflow
from clear_mlflow.core.record import RowRecord, assemble
from clear_mlflow.store import names

MODULE = """
from clear_mlflow.data import Entry, build_index

def photos(root, *, times: int = 1):
    found = sorted(root.glob("train/*/*/*.png"))
    return build_index([Entry(p, p.parts[-2], p.parts[-3]) for p in found], root=root)
"""
SMALL = {"model": "small_cnn", "image_size": 8, "epochs": 1, "batch_size": 8}
SMALL |= {"device": "cpu", "precision": "off", "log_models": "last"}


@pytest.fixture
def root(tmp_path, own_cache):
    write_years(tmp_path / "yearbook", train=4, test=2)
    return tmp_path / "yearbook"


@pytest.mark.slow
def test_a_run_records_its_dataset(store, experiment_id, root):
    parameters = {"dataset": "folder", "data_root": root, "dataset_args": {"licence": "CC BY 4.0"}}
    clear_mlflow.train(**parameters, **SMALL)
    run = only_training(store, experiment_id)
    record = assemble(load_rows(run))
    assert (record.dataset.name, record.matrix.buckets) == ("yearbook", YEARS)
    assert record.is_complete
    assert run.info.run_name == "naive yearbook seed 0"
    tags = {"dataset": "yearbook", "dataset_digest": record.dataset.digest}
    assert tags.items() <= run.data.tags.items()
    (entry,) = run.inputs.dataset_inputs
    assert entry.dataset.name == "yearbook"
    assert json.loads(entry.dataset.source) == {"uri": str(root)}
    assert json.loads(entry.dataset.profile)["licence"] == "CC BY 4.0"
    params = {"dataset": "folder", "dataset/name": "yearbook"}
    params["asked/dataset_args"] = "licence=CC BY 4.0"
    params["dataset_args"] = "name=yearbook,licence=CC BY 4.0,order=none"
    assert params.items() <= run.data.params.items()


def test_curves_are_drawn_at_the_buckets_dates(store, experiment_id, tmp_path, own_cache):
    write_years(tmp_path / "gaps", buckets=("2001", "2002", "2006"), train=4, test=2)
    clear_mlflow.train(dataset="folder", data_root=tmp_path / "gaps", **SMALL)
    run = only_training(store, experiment_id)
    rows = load_rows(run)
    for row in rows.values():
        assert row.extra["bucket_times"] == ["2001-01-01", "2002-01-01", "2006-01-01"]
    assert assemble(rows).dataset.times == (date(2001, 1, 1), date(2002, 1, 1), date(2006, 1, 1))
    page = (artifact_folder(run) / names.REPORT_HTML).read_text()
    assert ">bucket date</text>" in page
    ticks = re.findall(r'<text x="([0-9.]+)"[^>]*>(20\d\d)</text>', page)[:3]
    assert [year for _, year in ticks] == ["2001", "2002", "2006"]
    first, second, third = (float(x) for x, _ in ticks)
    assert (third - second) / (second - first) == pytest.approx(1461 / 365, rel=0.01)
    broken = next(iter(rows.values()))
    for dates in (["2001-01-01"], ["2002-01-01", "2001-01-01", "2006-01-01"], [1, 2, 3], "x"):
        text = replace(broken, extra={**broken.extra, "bucket_times": dates}).to_json()
        assert RowRecord.from_json(text, source="a row").dataset.times == ()


def test_a_run_on_a_function_has_its_name_and_arguments(store, experiment_id, root, monkeypatch):
    (root.parent / "of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(root.parent)
    parameters = {"dataset": "of_mine:photos", "data_root": root, "dataset_args": {"times": 2}}
    clear_mlflow.train(**parameters, **SMALL)
    run = only_training(store, experiment_id)
    assert run.info.run_name == "naive photos seed 0"
    assert run.data.params["dataset/times"] == "2"


@pytest.mark.slow
def test_embedded_datasets_record_their_licence(store, experiment_id, own_cache):
    clear_mlflow.train(dataset="digits-writers", features="pixels", epochs=1)
    (entry,) = only_training(store, experiment_id).inputs.dataset_inputs
    assert json.loads(entry.dataset.profile)["licence"] == "CC BY 4.0"
    assert json.loads(entry.dataset.source) == {"uri": "embedded"}
