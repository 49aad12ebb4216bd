"""Runs copied from one store to another: equal, once, also after interruptions."""

import itertools
import json
import shutil
import time
import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import mlflow
import pytest
from click.testing import CliRunner
from copying import check_equal, copy_all, describe_run, list_sources, track_loop
from forked import run_python
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from servers import tracking_server
from stored_runs import change, read_stored_rows, row_texts, rows_folder, stored_run
from trainings import FOUR_BUCKETS

import clear_mlflow
from clear_mlflow.cli import main
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.client import connect_store, switch_store
from clear_mlflow.store.lease import build_lease_tags, format_lease
from clear_mlflow.store.rows import read_rows
from clear_mlflow.tracking.copy_runs import COPIED, FAILED, IN_USE, STORED, UPDATED, RunCopier
from clear_mlflow.tracking.lifecycle import create_run
from clear_mlflow.tracking.run_sources import open_sources

SCRIPT = Path(__file__).parents[1] / "support" / "copying.py"


@pytest.fixture
def target(empty_store, tmp_path):
    """The tracking URI of another store with an experiment for copies."""
    folder = tmp_path / "target"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    uri = f"sqlite:///{folder}/mlflow.db"
    location = (folder / "artifacts").as_uri()
    MlflowClient(uri).create_experiment("copies", artifact_location=location)
    return uri


def read_copies(target):
    client = MlflowClient(target)
    experiment = client.get_experiment_by_name("copies")
    return client.search_runs([experiment.experiment_id]) if experiment else []


def store_finished_run(store, experiment_id):
    run_id = stored_run(store, experiment_id, FOUR_BUCKETS).info.run_id
    score(store, run_id)
    store.set_terminated(run_id)
    return run_id


@pytest.mark.slow
def test_a_copy_equals_its_source_and_is_made_once(store, target):
    run_id = track_loop(tags={"note": "mine"})
    (copied,) = copy_all(store.tracking_uri, target)
    assert (copied.source, copied.action) == (run_id, COPIED)
    check_equal(store, run_id, target, copied.run_id)

    before = describe_run(MlflowClient(target), copied.run_id)
    (again,) = copy_all(store.tracking_uri, target)
    assert (again.action, again.run_id) == (STORED, copied.run_id)
    assert describe_run(MlflowClient(target), copied.run_id) == before
    assert len(read_copies(target)) == 1


@pytest.mark.slow
def test_a_copy_behind_a_server_equals_its_source(store, empty_store, tmp_path):
    run_id = track_loop()
    database = tmp_path / "server.db"
    shutil.copy(empty_store, database)
    with tracking_server(
        tmp_path, f"sqlite:///{database}", artifacts=str(tmp_path / "served")
    ) as server:
        target = server.wait()
        (copied,) = copy_all(store.tracking_uri, target)
        check_equal(store, run_id, target, copied.run_id)
        assert copy_all(store.tracking_uri, target)[0].action == STORED
        # And back into a third store, where it is a copy of the first run.
        third = tmp_path / "third.db"
        shutil.copy(empty_store, third)
        (returned,) = copy_all(target, f"sqlite:///{third}")
        check_equal(store, run_id, f"sqlite:///{third}", returned.run_id)
        # The first store has the run itself.
        (original,) = copy_all(target, store.tracking_uri)
        assert (original.action, original.run_id) == (STORED, run_id)


@pytest.mark.slow
def test_a_copy_that_is_killed_is_continued(store, target):
    run_id = track_loop()
    arguments = (str(SCRIPT), store.tracking_uri, target, "killed")
    number = 1
    while (killed := run_python(*arguments, str(number))).returncode == 9:
        assert len(read_copies(target)) == (number > 1)
        number += 2
    assert killed.returncode == 0, killed.stderr
    assert number > 12
    (copied,) = copy_all(store.tracking_uri, target)
    assert len(read_copies(target)) == 1
    check_equal(store, run_id, target, copied.run_id)


@pytest.mark.slow
def test_two_processes_at_once_make_one_copy(store, target):
    run_id = track_loop()
    together = run_python(str(SCRIPT), store.tracking_uri, target, "together", check=True)
    assert together.stdout.strip() == "True", together.stderr
    (copy,) = read_copies(target)
    check_equal(store, run_id, target, copy.info.run_id)


@pytest.mark.slow
def test_a_continued_run_updates_its_copy(store, target, monkeypatch):
    run_id = track_loop(1)
    (first,) = copy_all(store.tracking_uri, target)
    before = describe_run(store, run_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    mlflow.set_tracking_uri(store.tracking_uri)
    track_loop()
    (updated,) = copy_all(store.tracking_uri, target)
    assert (updated.action, updated.run_id) == (UPDATED, first.run_id)
    check_equal(store, run_id, target, first.run_id)
    assert describe_run(store, run_id)["info"] != before["info"]


@pytest.mark.parametrize("name", [".artifact.uploading.0", ".row_003.json.0a1b.part"])
def test_a_copy_that_an_ended_process_made_is_continued(store, target, experiment_id, name):
    run = stored_run(store, experiment_id, FOUR_BUCKETS[:3])
    (first,) = copy_all(store.tracking_uri, target)
    copies = MlflowClient(target)
    ended = {**json.loads(format_lease()), "token": "of another process"}
    copies.set_tag(first.run_id, names.HOLDER_TAG, json.dumps(ended))
    draft = rows_folder(copies.get_run(first.run_id)) / name
    draft.write_text("{")
    (rows_folder(run) / "row_003.json").write_text(row_texts()["row_003.json"])
    store.log_text(run.info.run_id, "mine", "notes/a.txt")
    (updated,) = copy_all(store.tracking_uri, target)
    assert (updated.action, updated.run_id) == (UPDATED, first.run_id)
    assert [file.path for file in copies.list_artifacts(first.run_id, "notes")] == ["notes/a.txt"]
    assert read_stored_rows(copies.get_run(first.run_id)) == read_stored_rows(run)
    assert not draft.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"correct": [1, 1, 1]},
        {"dataset": {"name": "own", "digest": "sha256:" + "cd" * 32}},
        {"dataset": {"name": "other", "digest": "sha256:" + "ab" * 32}},
    ],
)
def test_a_row_with_other_numbers_is_not_replaced(store, target, changes):
    run_id = track_loop()
    (copied,) = copy_all(store.tracking_uri, target)
    before = describe_run(MlflowClient(target), copied.run_id)
    row = rows_folder(store.get_run(run_id)) / "row_002.json"
    change(row, **changes)
    store.set_tag(run_id, "changed", "yes")
    (refused,) = copy_all(store.tracking_uri, target)
    assert refused.action == FAILED
    assert "row_002.json is stored with other numbers" in refused.detail
    assert describe_run(MlflowClient(target), copied.run_id) == before


def test_a_row_that_a_copy_lacks_is_copied_again(store, target, experiment_id):
    run_id = store_finished_run(store, experiment_id)
    (copied,) = copy_all(store.tracking_uri, target)
    (rows_folder(MlflowClient(target).get_run(copied.run_id)) / "row_002.json").unlink()
    store.set_tag(run_id, "changed", "yes")
    (again,) = copy_all(store.tracking_uri, target)
    assert (again.action, again.run_id) == (UPDATED, copied.run_id)
    check_equal(store, run_id, target, copied.run_id)


@pytest.mark.parametrize("last_write", ["log_batch", "set_terminated"])
def test_a_copy_is_completed_after_a_kill_at_its_end(store, target, experiment_id, last_write):
    run_id = store_finished_run(store, experiment_id)
    (copied,) = copy_all(store.tracking_uri, target)
    copies = MlflowClient(target)
    ended = {**json.loads(format_lease()), "pid": 2**31 - 1, "token": "of another process"}
    for tag in (names.PROCESS_TAG, names.HOLDER_TAG):
        copies.set_tag(copied.run_id, tag, json.dumps(ended))
    if last_write == "log_batch":
        copies.update_run(copied.run_id, status="RUNNING")
    (again,) = copy_all(store.tracking_uri, target)
    assert (again.action, again.run_id) == (COPIED, copied.run_id)
    check_equal(store, run_id, target, copied.run_id)
    assert copy_all(store.tracking_uri, target)[0].action == STORED


def test_a_copy_that_evaluate_closed_is_completed(store, target, experiment_id):
    run_ids = [store_finished_run(store, experiment_id) for _ in range(2)]
    store.set_terminated(run_ids[1], "KILLED")
    copies = {result.source: result.run_id for result in copy_all(store.tracking_uri, target)}
    for copy_id in copies.values():
        MlflowClient(target).set_terminated(copy_id, "KILLED")
    outcomes = {r.source: r.action for r in copy_all(store.tracking_uri, target)}
    assert outcomes == {run_ids[0]: COPIED, run_ids[1]: STORED}
    check_equal(store, run_ids[0], target, copies[run_ids[0]])


def test_a_process_that_was_killed_before_it_deleted_a_duplicate(store, target, experiment_id):
    run_id = store_finished_run(store, experiment_id)
    switch_store(target)
    client = connect_store(opens_run=False)

    class KilledCopier(RunCopier):
        """Copier that sees no copies, and deletes none."""

        def _find_copies(self, experiment_id, source_id):
            return []

    for _ in range(2):
        list(KilledCopier(client, "copies").copy_runs(list_sources(store.tracking_uri)))
    kept_id = min(copy.info.run_id for copy in read_copies(target))
    assert len(read_copies(target)) == 2
    (result,) = copy_all(store.tracking_uri, target)
    assert (result.action, result.run_id) == (STORED, kept_id)
    assert [copy.info.run_id for copy in read_copies(target)] == [kept_id]
    check_equal(store, run_id, target, kept_id)


@pytest.mark.parametrize("years", [-1, 1])
@pytest.mark.parametrize("is_alive", [True, False])
@pytest.mark.parametrize("is_duplicate", [True, False])
def test_a_machine_with_a_wrong_clock_keeps_the_copy_that_it_writes(
    store, target, experiment_id, monkeypatch, years, is_alive, is_duplicate
):
    """It is watched until it renews its lease. Three minutes without that, and it is dead."""
    run_id = store_finished_run(store, experiment_id)
    complete_ids = set()
    if is_duplicate:
        complete_ids = {result.run_id for result in copy_all(store.tracking_uri, target)}
    start, pauses = time.monotonic(), []

    def format_other_lease():
        renewed_at = datetime.now(timezone.utc) + timedelta(365 * years, sum(pauses))
        fields = {"host": "elsewhere", "token": "other", "renewed_at": renewed_at.isoformat()}
        return json.dumps({**json.loads(format_lease()), **fields})

    copies = MlflowClient(target)
    copies_id = copies.get_experiment_by_name("copies").experiment_id
    tags = dict.fromkeys((names.HOLDER_TAG, names.PROCESS_TAG), format_other_lease())
    tags[names.COPIED_FROM_TAG] = run_id
    info = store.get_run(run_id).info
    other = copies.create_run(copies_id, info.start_time, tags, info.run_name)
    other_id = other.info.run_id

    def sleep(seconds):
        pauses.append(seconds)
        if is_alive and len(pauses) == 6:
            copies.set_tag(other_id, names.PROCESS_TAG, format_other_lease())

    monkeypatch.setattr(time, "monotonic", lambda: start + sum(pauses))
    monkeypatch.setattr(time, "sleep", sleep)
    (result,) = copy_all(store.tracking_uri, target)
    assert sum(pauses) == (30 if is_alive else 180)
    kept_ids = {copy.info.run_id for copy in read_copies(target)}
    if is_alive:
        assert kept_ids == {*complete_ids, other_id}
        assert result.action == (STORED if is_duplicate else IN_USE)
    else:
        assert kept_ids == (complete_ids or {other_id})
        assert result.action == (STORED if is_duplicate else COPIED)
        check_equal(store, run_id, target, *kept_ids)


def test_copies_take_few_requests(store, target, experiment_id, monkeypatch):
    monkeypatch.setattr("clear_mlflow.tracking.copy_runs._SEARCH_SECONDS", 1e9)
    monkeypatch.setattr("clear_mlflow.store.lease.CHECK_SECONDS", 1e9)
    for _ in range(8):
        store_finished_run(store, experiment_id)
    sources = list_sources(store.tracking_uri)
    switch_store(target)
    client = connect_store(opens_run=False)
    calls = Counter()

    def count(name, call):
        def call_counted(*arguments, **keywords):
            calls[name] += 1
            return call(*arguments, **keywords)

        return call_counted

    for name in ("create_run", "log_batch", "log_inputs", "set_terminated", "delete_tag"):
        monkeypatch.setattr(client, name, count(name, getattr(client, name)))
    for name in ("search_runs", "get_run", "set_tag", "update_run", "search_experiments"):
        monkeypatch.setattr(client, name, count(name, getattr(client, name)))
    results = list(RunCopier(client, "copies").copy_runs(sources))
    assert [result.action for result in results] == [COPIED] * 8
    per_run = Counter(create_run=1, log_batch=2, set_terminated=1, delete_tag=1, get_run=2)
    expected = {name: 8 * number for name, number in per_run.items()}
    assert calls == {**expected, "search_runs": 2}
    calls.clear()
    assert {r.action for r in RunCopier(client, "copies").copy_runs(sources)} == {STORED}
    assert calls == {"search_runs": 1}


def test_a_run_in_training_waits_and_an_abandoned_one_is_killed(store, target, experiment_id):
    run_id = create_run(store, experiment_id, "live", build_lease_tags())
    (live,) = copy_all(store.tracking_uri, target)
    assert (live.action, live.run_id) == (IN_USE, None)
    lease = build_lease_tags()[names.PROCESS_TAG]
    for tag in (names.PROCESS_TAG, names.HOLDER_TAG):
        store.set_tag(
            run_id, tag, lease.replace('"host": "', '"host": "other-').replace("202", "201")
        )
    (dead,) = copy_all(store.tracking_uri, target)
    assert (dead.action, dead.detail) == (COPIED, "0 rows, KILLED")
    assert MlflowClient(target).get_run(dead.run_id).info.status == "KILLED"


def test_children_follow_their_parent(store, target):
    with mlflow.start_run(run_name="parent") as parent, mlflow.start_run(nested=True):
        mlflow.log_param("x", 1)
    results = {r.source: r.run_id for r in copy_all(store.tracking_uri, target)}
    parent_copy = results.pop(parent.info.run_id)
    (child_copy,) = results.values()
    tags = MlflowClient(target).get_run(child_copy).data.tags
    assert tags[MLFLOW_PARENT_RUN_ID] == parent_copy


class LateCopier(RunCopier):
    """Copier that does not see the copies that exist when it looks first."""

    def __init__(self, client):
        super().__init__(client, "copies")
        self.late = set()

    def _find_copies(self, experiment_id, source_id):
        copies = super()._find_copies(experiment_id, source_id)
        if source_id not in self.late:
            self.late.add(source_id)
            return []
        return copies


class OvertakenCopier(LateCopier):
    """Copier that another machine overtakes each time it has looked for a parent.

    That machine creates a copy of the parent, too, and deletes all others.
    """

    def __init__(self, client, parent, times):
        super().__init__(client)
        self.parent, self.times = parent, times

    def _find_parent(self, experiment_id, source_id):
        parent_id = super()._find_parent(experiment_id, source_id)
        if parent_id is not None and self.times:
            self.times -= 1
            list(LateCopier(self.client).copy_runs([self.parent]))
        return parent_id


@pytest.fixture
def family(store, target):
    with mlflow.start_run(run_name="parent"), mlflow.start_run(nested=True):
        mlflow.log_param("x", 1)
    sources = sorted(list_sources(store.tracking_uri), key=lambda s: s.run.info.start_time)
    switch_store(target)
    return connect_store(opens_run=False), *sources


def order_run_ids(monkeypatch, step):
    ids = itertools.count(2**127, step)
    monkeypatch.setattr("uuid.uuid4", lambda: uuid.UUID(int=next(ids)))


def check_family(target):
    copies = {run.info.run_id: run.data.tags for run in read_copies(target)}
    parent_ids = [tags.get(MLFLOW_PARENT_RUN_ID) for tags in copies.values()]
    assert len(copies) == 2
    assert [parent_id in copies for parent_id in parent_ids if parent_id] == [True]


@pytest.mark.parametrize("step", [1, -1])
def test_a_machine_that_another_overtakes_keeps_one_family(family, target, monkeypatch, step):
    client, *sources = family
    order_run_ids(monkeypatch, step)
    overtaken = set()

    class Overtaken(RunCopier):
        """Copier that is overtaken once for each run."""

        def _find_copies(self, experiment_id, source_id):
            copies = super()._find_copies(experiment_id, source_id)
            if source_id not in overtaken:
                overtaken.add(source_id)
                list(RunCopier(client, "copies").copy_runs(sources))
            return copies

    results = list(Overtaken(client, "copies").copy_runs(sources))
    assert not [result.detail for result in results if result.action == FAILED]
    check_family(target)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_child_whose_parent_is_deleted_at_any_moment_gets_another(
    family, target, monkeypatch, times
):
    client, parent, child = family
    order_run_ids(monkeypatch, -1)
    copier = OvertakenCopier(client, parent, times)
    results = list(copier.copy_runs([parent, child]))
    assert [result.action for result in results] == [COPIED] * 2
    assert copier.times == 0
    check_family(target)


def test_a_child_of_a_duplicate_is_not_moved_to_a_deleted_parent(family, target, monkeypatch):
    client, parent, child = family
    order_run_ids(monkeypatch, -1)
    list(RunCopier(client, "copies").copy_runs([parent, child]))
    copier = OvertakenCopier(client, parent, times=1)  # when it moves the child
    assert [result.action for result in copier.copy_runs([parent])] == [COPIED]
    assert copier.times == 0
    check_family(target)


def test_a_process_that_was_killed_before_it_looked_for_the_parent(family, target, monkeypatch):
    client, parent, child = family
    order_run_ids(monkeypatch, -1)

    class KilledCopier(OvertakenCopier):
        """Copier that ends once the child is copied."""

        def _delete_duplicates(self, source, result):
            if source is child:
                raise KeyboardInterrupt
            return super()._delete_duplicates(source, result)

    with pytest.raises(KeyboardInterrupt):
        list(KilledCopier(client, parent, times=1).copy_runs([parent, child]))
    results = list(RunCopier(client, "copies").copy_runs([parent, child]))
    assert [result.action for result in results] == [STORED] * 2
    check_family(target)


@pytest.mark.slow
def test_a_copy_is_resumed_compared_and_scored_like_any_run(store, target):
    run_id = track_loop()
    other_id = track_loop(seed=1, strategy="naive")
    copies = {r.source: r.run_id for r in copy_all(store.tracking_uri, target)}
    compared = clear_mlflow.compare([copies[run_id], copies[other_id]])
    assert len(compared.comparison.groups) == 2


@pytest.mark.slow
def test_import_copies_runs_of_another_store(store, target, monkeypatch):
    run_id, other_id = track_loop(), track_loop(seed=1)
    switch_store(target)
    words = ["import", "--from", store.tracking_uri, "--experiment", "copies", "--json"]

    def read_outcomes(*names):
        result = CliRunner().invoke(main, [*words, *names])
        assert result.exit_code == 0, result.output
        return {f["file"]: f["outcome"] for f in json.loads(result.stdout)["files"]}

    monkeypatch.setenv("MLFLOW_TRACKING_URI", target)
    assert read_outcomes(run_id[:8]) == {run_id: "imported"}
    assert read_outcomes("test") == {run_id: "there already", other_id: "imported"}
    for copy in read_copies(target):
        check_equal(store, copy.data.tags[names.COPIED_FROM_TAG], target, copy.info.run_id)
    missing = CliRunner().invoke(main, ["import", "--from", "sqlite:////nowhere/mlflow.db"])
    assert "does not exist" in missing.stderr


@pytest.mark.slow
def test_an_mlruns_folder_is_copied_from_wherever_it_is(target, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    run = stored_run(client, client.create_experiment("his"), name="his run")
    client.set_tag(run.info.run_id, names.KIND_TAG, names.KIND_TRAIN)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    moved = (tmp_path / "mlruns").rename(tmp_path / "moved")
    switch_store(target)
    copier = RunCopier(connect_store(opens_run=False), "copies")
    (copied,) = copier.copy_runs(open_sources(str(moved)))
    assert copied.action == COPIED, copied.detail
    assert len(read_rows(MlflowClient(target), read_copies(target)[0])) == 5
