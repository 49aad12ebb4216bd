"""What an interrupted run is resumed from, and what makes that impossible."""

import dataclasses
import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
from commands import run_command
from damaged_journals import DAMAGES
from interrupted_runs import (
    format_foreign_lease,
    interrupted,
    prepare_parameters,
    snapshot,
    train_elsewhere,
)
from one_line_errors import check_error
from short_stream import short_stream
from stored_runs import artifact_folder, change, rows_folder

from clear_mlflow.core.errors import ClearError, ConfigError, DataError, TrackingError
from clear_mlflow.journal.run_folder import RunFolder, get_unsent_root
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.store import names
from clear_mlflow.tracking.resume import (
    check_data,
    check_parameters,
    describe_data,
    read_resume_point,
    resolve_resume_parameters,
    take_over,
)
from clear_mlflow.tracking.tracked_training import end_complete_run

__all__ = ["interrupted", "short_stream"]
IN_TRAINING = "another process trains into run"


def test_changed_parameters_and_data_are_rejected(interrupted, tmp_path):
    point = read_resume_point(*interrupted, tmp_path)
    for overrides, message in (
        ({"epochs": "5", "seed": "0"}, "epochs is 5 and the run has 15"),
        ({"seed": "1", "lr": "0.5"}, "lr is 0.5 and the run has 1.0; seed is 1 and the run has 0"),
        ({"strategy": "replay"}, "strategy is replay and the run has linear"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            resolve_resume_parameters(point, overrides)
    # Another text for the same number; auto says nothing.
    overrides = {"device": "auto", "lr": "1.0", "batch_size": "auto"}
    parameters = resolve_resume_parameters(point, overrides).as_text()
    check_parameters(point, TrainConfig.resolve({**parameters, "device": "cuda"}))
    with pytest.raises(ConfigError, match="batch_size is 3 and the run has 512"):
        check_parameters(point, TrainConfig.resolve({**parameters, "batch_size": "3"}))
    dataset = prepare_parameters(parameters).dataset
    check_data(point, dataclasses.replace(dataset, source="elsewhere"))
    with pytest.raises(DataError, match="digest is sha256:0 and the run has sha256:"):
        check_data(point, dataclasses.replace(dataset, digest="sha256:0"))


def test_an_earlier_state_replaces_a_damaged_one(interrupted, tmp_path, capfd):
    client, run_id = interrupted
    folder = artifact_folder(client.get_run(run_id)) / names.STATE_FOLDER
    (manifest,) = folder.glob("*.json")
    state = manifest.with_suffix(".safetensors")
    good, row = state.read_bytes(), json.loads(manifest.read_text())["row"]
    newer = folder / f"after_{row + 1:03}.safetensors"
    newer.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    change(shutil.copy(manifest, newer.with_suffix(".json")), row=row + 1)
    point = read_resume_point(client, run_id, tmp_path)
    assert point.state.manifest.row == row
    assert f"{newer.name} is damaged" in capfd.readouterr().err
    state.write_bytes(good[: len(good) // 2])
    with pytest.raises(TrackingError, match="all of its training states are damaged"):
        read_resume_point(client, run_id, tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c, i, _: c.set_tag(i, names.VERSION_TAG, "99.1"), "with clear_mlflow 99.1 and"),
        (lambda c, i, files: shutil.rmtree(files / names.STATE_FOLDER), "no training state"),
        (lambda c, i, files: (files / "config.json").write_text('{"epochs": 5}'), "is damaged"),
        (lambda c, i, files: (files / "config.json").unlink(), "lacks config.json"),
        (lambda c, i, _: c.set_tag(i, names.KIND_TAG, names.KIND_ENSEMBLE), "it is ensemble, not"),
        (lambda c, i, _: c.delete_run(i), "it is deleted"),
        (lambda c, i, _: train_elsewhere(c, i), IN_TRAINING),
    ],
)
def test_a_run_that_cannot_be_resumed_has_a_reason(interrupted, tmp_path, spoil, message):
    client, run_id = interrupted
    spoil(client, run_id, artifact_folder(client.get_run(run_id)))
    with pytest.raises(ClearError, match=message):
        read_resume_point(client, run_id, tmp_path)


@pytest.mark.parametrize("run_id", ["0" * 32, "../../etc"])
def test_an_unknown_run_is_not_resumed(store, tmp_path, run_id):
    with pytest.raises(TrackingError, match="no such run"):
        read_resume_point(store, run_id, tmp_path)


def test_the_lease_of_a_process_counts_more_than_its_reservation(interrupted, tmp_path):
    client, run_id = interrupted
    point = read_resume_point(client, run_id, tmp_path)
    lease = format_foreign_lease()
    client.log_param(run_id, "resumed/1", lease)
    train_elsewhere(client, run_id, lease)
    with pytest.raises(TrackingError, match=IN_TRAINING):
        take_over(client, point)


def test_a_recent_reservation_blocks_until_its_process_has_resumed(interrupted, tmp_path):
    client, run_id = interrupted
    point = read_resume_point(client, run_id, tmp_path)
    client.log_param(run_id, "resumed/1", format_foreign_lease(-60, token="1" * 16))
    client.set_tag(run_id, names.RESUMES_TAG, "1")
    client.log_param(run_id, "resumed/2", format_foreign_lease(token="2" * 16))
    with pytest.raises(TrackingError, match=IN_TRAINING):
        take_over(client, point)
    client.set_tag(run_id, names.RESUMES_TAG, "2")
    take_over(client, point)
    assert client.get_run(run_id).data.tags[names.RESUMES_TAG] == "3"


def test_a_reservation_of_a_dead_process_blocks_nobody(interrupted, tmp_path):
    """A parameter cannot be deleted, so it would block the run forever."""
    client, run_id = interrupted
    client.log_param(run_id, "resumed/1", format_foreign_lease(60 * 24 * 365))
    client.log_param(
        run_id, "resumed/77", format_foreign_lease()
    )  # and no process counts like this
    client.set_tag(run_id, names.RESUMES_TAG, "-1")
    take_over(client, read_resume_point(client, run_id, tmp_path))
    data = client.get_run(run_id).data
    assert (data.tags[names.RESUMES_TAG], "resumed/2" in data.params) == ("2", True)


def test_only_a_run_without_a_second_row_starts_again(interrupted, tmp_path):
    """Its first state is stored while bucket 2 is trained. Later rows without one are an error."""
    client, run_id = interrupted
    run = client.get_run(run_id)
    shutil.rmtree(artifact_folder(run) / names.STATE_FOLDER)
    client.delete_tag(run_id, names.MATRIX_TAG)  # which would tell that rows are gone
    with pytest.raises(TrackingError, match="rows 0 to 2 and no training state"):
        read_resume_point(client, run_id, tmp_path)
    for row in (2, 1):
        (rows_folder(run) / f"row_{row:03d}.json").unlink()
        point = read_resume_point(client, run_id, tmp_path)
        assert (point.state, sorted(point.records)) == (None, list(range(row)))
    change(artifact_folder(run) / "config.json", resumable="off")
    with pytest.raises(TrackingError, match="rows 0 to 0 and no training state"):
        read_resume_point(client, run_id, tmp_path)


@pytest.fixture
def unsent_folder(interrupted, own_cache):
    client, run_id = interrupted
    row = rows_folder(client.get_run(run_id)) / "row_002.json"
    journal = RunFolder.create(get_unsent_root() / run_id, run_id, client.tracking_uri)
    journal.append(f"accuracy_matrix/rows/{row.name}", row.read_bytes())
    journal.close()
    return journal.folder


def test_unsent_rows_are_sent_before_a_resume(interrupted, unsent_folder, tmp_path):
    client, run_id = interrupted
    run = client.get_run(run_id)
    row = rows_folder(run) / "row_002.json"
    text = row.read_text()
    row.unlink()
    assert 2 in read_resume_point(client, run_id, tmp_path).records
    assert row.read_text() == text
    assert not unsent_folder.exists()
    # A sweep reads what its worker resumes.
    tags = client.get_run(run_id).data.tags
    assert tags.get(names.HOLDER_TAG) == run.data.tags.get(names.HOLDER_TAG)


def test_a_locked_run_folder_means_that_the_run_is_in_training(
    interrupted, unsent_folder, tmp_path
):
    client, run_id = interrupted
    folder = RunFolder.reopen(unsent_folder)
    with pytest.raises(TrackingError, match=f"{IN_TRAINING} {run_id} now"):
        read_resume_point(client, run_id, tmp_path)
    folder.close()
    assert 2 in read_resume_point(client, run_id, tmp_path).records


@pytest.mark.parametrize("damage", DAMAGES)
def test_nothing_in_a_run_folder_is_trusted(interrupted, unsent_folder, tmp_path, damage):
    client, run_id = interrupted
    before = snapshot(client, run_id)
    DAMAGES[damage](unsent_folder)
    received = shutil.copytree(unsent_folder, tmp_path / "received")
    if damage != "end":  # how a training ended says nothing to the one that resumes
        with pytest.raises(ClearError):
            read_resume_point(client, run_id, tmp_path)
    (_,) = run_command("sync", received, code=2).splitlines()
    assert unsent_folder.exists()
    assert snapshot(client, run_id) == before


def test_a_run_folder_of_another_run_is_not_sent(interrupted, unsent_folder, tmp_path):
    client, run_id = interrupted
    before = snapshot(client, run_id)
    change(unsent_folder / "run.json", run_id="0" * 32)
    with pytest.raises(TrackingError, match=f"what was measured for run {'0' * 32}"):
        read_resume_point(client, run_id, tmp_path)
    assert unsent_folder.exists()
    assert snapshot(client, run_id) == before


def test_a_changed_run_is_rejected(interrupted, tmp_path):
    client, run_id = interrupted
    point = read_resume_point(client, run_id, tmp_path)
    next(artifact_folder(client.get_run(run_id)).glob("training_state/*.json")).unlink()
    with pytest.raises(TrackingError, match="was resumed by another process"):
        take_over(client, point)
    assert client.get_run(run_id).info.status == "KILLED"


def test_a_run_that_has_ended_is_not_ended_again(store, trained_runs, tmp_path):
    run = trained_runs["ncm", 0]
    result = end_complete_run(store, read_resume_point(store, run.info.run_id, tmp_path))
    assert str(result.note).endswith("contains all of its rows; there is nothing to resume")
    assert store.get_run(run.info.run_id).info.end_time == run.info.end_time


def test_a_complete_run_that_was_killed_is_ended(store, trained_runs, tmp_path):
    run_id = trained_runs["ncm", 0].info.run_id
    store.set_terminated(run_id, "KILLED")
    draft = artifact_folder(trained_runs["ncm", 0]) / ".config.json.0a1b.part"
    draft.write_text("{")
    result = end_complete_run(store, read_resume_point(store, run_id, tmp_path))
    assert (result.exit_code, store.get_run(run_id).info.status) == (0, "FINISHED")
    assert not draft.exists()
    assert str(result.note).endswith("there is nothing to resume")


FUNCTION = """
from clear_mlflow.data import Entry, build_index

CHANGE = None

def make(root, *, first: int = 2004):
    values = [[i % 7 + i / 100, i % 3] for i in range(80)]
    days = [f"{first + i // 20}-{1 + i * 7 % 12:02d}-17" for i in range(80)]
    entries = [Entry(i, "ab"[i % 2], day[:4], time=day) for i, day in enumerate(days)]
    if CHANGE == "value":
        values[3][0] += 1
    elif CHANGE == "label":
        entries[7] = entries[7]._replace(class_name="a")
    elif CHANGE == "bucket":
        entries[7] = entries[7]._replace(bucket="2005")
    elif CHANGE == "fewer":
        del entries[7]
    elif CHANGE == "names":
        entries = [e._replace(class_name=e.class_name.upper()) for e in entries]
    elif CHANGE == "times":
        entries[7] = entries[7]._replace(time="2004-12-31")
    elif CHANGE == "order":
        entries = entries[::-1]
    options = {"standardise": "none"} if CHANGE == "inputs" else {}
    return build_index(entries, root=".", vectors=values, **options)
"""


@pytest.mark.parametrize("time_order", ["off", "on"])
def test_a_function_that_returns_other_data_cannot_be_resumed_with(
    tmp_path, monkeypatch, own_cache, time_order
):
    (tmp_path / "changing_photos.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    parameters = {"dataset": "changing_photos:make", "features": "vectors", "device": "cpu"}
    parameters |= {"time_order": time_order, "epochs": "1"}
    stored = describe_data(prepare_parameters(parameters).dataset)
    manifest = SimpleNamespace(data=json.loads(json.dumps(stored)))
    run = SimpleNamespace(info=SimpleNamespace(run_id="0" * 32))
    point = SimpleNamespace(state=SimpleNamespace(manifest=manifest), run=run)
    module = sys.modules.pop("changing_photos")
    monkeypatch.setitem(sys.modules, "changing_photos", module)
    for fault in (None, "order", "value", "label", "bucket", "fewer", "names", "times", "inputs"):
        monkeypatch.setattr(module, "CHANGE", fault)
        dataset = prepare_parameters(parameters).dataset
        if fault in (None, "order") or (fault == "times" and time_order == "off"):
            check_data(point, dataset)
        else:
            name = {"times": "time_order_digest", "inputs": "features_digest"}.get(fault, "digest")
            check_error(DataError, f"{name} is sha256:", check_data, point, dataset)
