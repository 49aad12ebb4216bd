"""Matrices read from tags and from artifacts are the same, and a wrong tag is not used."""

import random
import shutil
import time
import tracemalloc
import zlib
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient
from servers import tracking_server
from stored_runs import change, histories, row_texts, rows_folder, stored_run
from trainings import FOUR_BUCKETS

from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import ROWS_FOLDER, Record
from clear_mlflow.core.untrusted import MAX_ROW_BYTES
from clear_mlflow.store.client import map_in_threads
from clear_mlflow.store.rows import (
    hash_rows,
    list_row_sizes,
    pack_matrix_tag,
    read_records,
    read_rows,
    unpack_matrix_tag,
)
from clear_mlflow.store.search import select_runs

ROWS = {name: text.encode() for name, text in row_texts().items()}


def score_run(client, **options):
    runs = select_runs(client, experiment="test")
    return list(rescore_runs(client, runs, **options))


def records(client, **options):
    return list(read_records(client, select_runs(client, experiment="test"), **options))


def test_a_tag_contains_all_rows():
    text = pack_matrix_tag("run", ROWS)
    assert list(unpack_matrix_tag("run", text).items()) == list(ROWS.items())
    assert len(text) < sum(map(len, ROWS.values())) / 2


def test_a_tag_has_at_most_the_length_that_mlflow_stores():
    """MLflow would truncate a tag of more than 8,000 characters silently."""
    contents = (random.Random(0).randbytes(length).hex() for length in range(4900, 5300))
    tags = [pack_matrix_tag("run", {"row_000.json": content.encode()}) for content in contents]
    assert max(len(tag or "") for tag in tags) == 8_000
    assert tags[-1] is pack_matrix_tag("run", {}) is None


def test_the_matrix_tag_of_another_run_is_ignored():
    assert unpack_matrix_tag("another", pack_matrix_tag("run", ROWS)) == {}


@settings(max_examples=200)
@given(data=st.data())
def test_a_modified_matrix_tag_is_ignored(data):
    text = pack_matrix_tag("run", ROWS)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    assert unpack_matrix_tag("run", changed) in ({}, ROWS)
    assert unpack_matrix_tag("run", text[: min(at, len(text) - 10)]) == {}
    assert unpack_matrix_tag("run", data.draw(st.text())) == {}


@pytest.mark.parametrize("packed", [b"null", b"[]", b"{}", b"[" * 9999, b'{"a": 1}', b"\xff"])
def test_a_matrix_tag_of_other_json_is_ignored(packed):
    text = hash_rows("run", {}) + b64encode(zlib.compress(packed)).decode()
    assert unpack_matrix_tag("run", text) == {}
    assert unpack_matrix_tag("run", None) == {}


def test_a_compression_bomb_in_a_tag_takes_no_memory():
    bomb = hash_rows("run", {}) + b64encode(zlib.compress(b" " * 10**8)).decode()
    tracemalloc.start()
    assert unpack_matrix_tag("run", bomb) == {}
    assert tracemalloc.get_traced_memory()[1] < 5 * 10**7
    tracemalloc.stop()


def test_matrices_are_read_from_search_results(store, experiment_id):
    run = stored_run(store, experiment_id)
    (from_rows,) = records(store)
    score_run(store)
    for path in rows_folder(run).iterdir():
        path.unlink()
    (from_tag,) = records(store, read_files=False)
    assert from_tag.matrix.equals(from_rows.matrix)


def test_a_run_without_a_matrix_has_no_record_or_an_error(store, experiment_id):
    store.create_run(experiment_id)
    run = stored_run(store, experiment_id)
    (rows_folder(run) / "row_001.json").write_text("{")
    damaged, empty = records(store)
    assert isinstance(damaged, RecordError)
    assert "row_001.json" in str(damaged)
    assert empty is None


def test_the_matrix_tag_of_an_open_run_is_not_trusted(store, experiment_id):
    """A run that stopped early may be resumed, so its artifacts are read each time."""
    run = stored_run(store, experiment_id, FOUR_BUCKETS[:3])
    score_run(store)
    (rows_folder(run) / "row_003.json").write_text(row_texts()["row_003.json"])
    (record,) = records(store, read_files=False)
    assert record.rows == (0, 1, 2, 3)


def test_local_files_take_precedence_over_the_tag(store, experiment_id):
    run = stored_run(store, experiment_id)
    score_run(store)
    change(rows_folder(run) / "row_004.json", correct=[70, 81, 90, 96])
    (verdict,) = score_run(store)
    assert verdict.action == "scored"
    metrics = store.get_run(run.info.run_id).data.metrics
    assert metrics["renate/average_accuracy"] == pytest.approx((0.70 + 0.81 + 0.90 + 0.96) / 4)


@pytest.mark.parametrize("jobs", [1, 3])
def test_threads_keep_the_order_and_compute_few_items_ahead(jobs):
    taken = []

    def work(i):
        time.sleep(0.002 * (3 - i % 3))
        return i

    items = (taken.append(i) or i for i in range(10_000))
    results: Any = map_in_threads(work, items, jobs)
    assert [next(results) for _ in range(20)] == list(range(20))
    assert len(taken) <= 20 + 4 * jobs
    results.close()
    results = map_in_threads(lambda i: 6 // i, [3, 2, 0, 1], jobs)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.fixture(scope="module")
def server(empty_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    database, artifacts = f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts"
    with tracking_server(folder, database, artifacts=str(artifacts)) as starting:
        yield starting.wait(), artifacts


@pytest.mark.slow
def test_matrices_behind_a_server(store, server, monkeypatch):
    uri, artifacts = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(uri)
    experiment_id = client.create_experiment("test")
    runs, folders = [], []
    for number in range(3):
        runs.append(client.create_run(experiment_id, run_name=str(number)))
        path = runs[-1].info.artifact_uri.removeprefix("mlflow-artifacts:/")
        folders.append(artifacts / path / ROWS_FOLDER)
        folders[-1].mkdir(parents=True)
        for name, text in row_texts().items():
            (folders[-1] / name).write_text(text)
        client.set_terminated(runs[-1].info.run_id)
    assert [v.action for v in score_run(client)] == ["scored"] * 3
    local = stored_run(store, store.get_experiment_by_name("test").experiment_id)
    score_run(store)
    assert histories(client, runs[0].info.run_id) == histories(store, local.info.run_id)
    # The second time, the tags are enough.
    away = artifacts.rename(artifacts.with_name("away"))
    assert [v.action for v in score_run(client)] == ["unchanged"] * 3
    assert all(isinstance(record, Record) for record in records(client))
    away.rename(artifacts)

    file = folders[0] / "row_002.json"
    file.write_bytes(file.read_bytes()[:40])
    file = folders[1] / "row_003.json"
    file.write_text(file.read_text().replace("ab" * 32, "cd" * 32))
    assert [v.action for v in score_run(client)] == ["unchanged"] * 3
    verdict_by_name = {v.run_name: v for v in score_run(client, explicit=True)}
    assert [verdict_by_name[name].action for name in "012"] == ["failed", "failed", "unchanged"]
    assert "row_002.json" in verdict_by_name["0"].detail
    assert "dataset digest" in verdict_by_name["1"].detail


def test_rows_are_read_in_order_and_other_files_are_ignored(store, experiment_id):
    run = stored_run(store, experiment_id)
    folder = rows_folder(run)
    last = (folder / "row_004.json").read_text()
    outside, later = folder.parent / "secret.json", ["row_999.json", "row_1000.json"]
    for path in (outside, *(folder / name for name in later)):
        path.write_text(last)
    (folder / "row_005.json").symlink_to(outside)
    (folder / "notes.txt").write_text("x")
    (folder / "row_0001.json").write_text("{")
    expected = [f"row_00{i}.json" for i in range(5)]
    assert list(list_row_sizes(store, run)) == [*expected, *later]
    for name in later:
        (folder / name).unlink()
    rows = read_rows(store, run)
    assert list(rows) == expected
    assert rows["row_002.json"].to_json() == ROWS["row_002.json"]
    (folder / "row_003.json").write_bytes(b" " * (MAX_ROW_BYTES + 1))
    with pytest.raises(RecordError, match=r"row_003.json has \d+ bytes; expected at most 1 MiB"):
        list_row_sizes(store, run)
