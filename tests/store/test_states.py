"""Stored training states: the newest complete one is used, and damage is rejected."""

import hashlib
import json

import pytest
from feature_streams import config, made_up, training
from flushes import record_flushes
from stored_runs import artifact_folder, only_run

from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.states import (
    Manifest,
    list_state_rows,
    read_newest_state,
    remove_states,
    store_state,
)
from clear_mlflow.tracking import training_run
from clear_mlflow.tracking.tracked_training import train_in_process


def manifest(row, content, **changes):
    fields = {"row": row, "written_at": "2026-01-31T12:00:00.000Z", "size": len(content)}
    fields |= {"sha256": hashlib.sha256(content).hexdigest(), "data": {}}
    fields |= {"package_version": "1", "torch_version": "2"}
    return Manifest(**{**fields, **changes})


@pytest.fixture
def run(store, experiment_id):
    return store.get_run(store.create_run(experiment_id).info.run_id)


def test_a_resume_starts_from_the_newest_complete_state(store, run, tmp_path):
    wrong = {3: {"sha256": "0" * 64}, 4: {"size": 3}, 5: {"size": 0}}
    for row in range(1, 6):
        content = b"state %d" % row
        state = manifest(row, content, **wrong.get(row, {}))
        store_state(store, run, state, content)
    folder = artifact_folder(run) / names.STATE_FOLDER
    (folder / "after_006.safetensors").write_bytes(b"no manifest yet")
    (folder / "after_007.safetensors").write_bytes(b"state 2")
    (folder / "after_007.json").write_text((folder / "after_002.json").read_text())
    assert list_state_rows(store, run) == (1, 2, 3, 4, 5, 7)
    state, problems = read_newest_state(store, run, tmp_path)
    assert (state.manifest.row, state.file.read_bytes()) == (2, b"state 2")
    assert [problem.split()[0] for problem in problems] == [
        *("after_007.json", "after_005.json", "after_004.safetensors", "after_003.safetensors")
    ]
    remove_states(store, run, before=5)
    assert list_state_rows(store, run) == (5, 7)
    (folder / ".after_008.json.0123456789abcdef.part").write_text("{")  # of a process killed there
    remove_states(store, run)
    assert not folder.exists()
    assert read_newest_state(store, run, tmp_path) == (None, [])


def test_other_files_next_to_states_are_ignored(store, run, tmp_path):
    store_state(store, run, manifest(1, b"state"), b"state")
    folder = artifact_folder(run) / names.STATE_FOLDER
    for number in range(1001):
        (folder / f"note_{number}.txt").write_text("")
    state, problems = read_newest_state(store, run, tmp_path)
    assert (state.manifest.row, problems) == (1, [])
    remove_states(store, run)
    assert list_state_rows(store, run) == ()
    assert len(list(folder.iterdir())) == 1001


def test_a_state_is_stored_before_its_manifest(store, run, tmp_path, monkeypatch):
    """So that an interruption leaves no partial state."""
    stored = []

    def cut_off(folder, name, content):
        if stored:
            raise OSError("cut off")
        stored.append(name)
        write_file(folder, name, content)

    write_file = ArtifactFolder.write_file
    monkeypatch.setattr(ArtifactFolder, "write_file", cut_off)
    with pytest.raises(TrackingError, match="cut off"):
        store_state(store, run, manifest(1, b"s"), b"s")
    assert stored == ["after_001.safetensors"]
    assert list_state_rows(store, run) == ()
    assert read_newest_state(store, run, tmp_path) == (None, [])


@pytest.mark.parametrize("change", [{"format": 2}, {"row": "1"}, {"data": [1]}, {"row": None}])
def test_an_invalid_manifest_is_rejected(change):
    content = {**json.loads(manifest(1, b"s").to_json()), **change}
    with pytest.raises(RecordError, match="is not a manifest of a training state"):
        Manifest.from_json(json.dumps(content), source="m")


def test_a_state_is_flushed_before_it_counts(store, run, monkeypatch):
    """Its content and then its name: a power cut may follow."""
    flushed = record_flushes(monkeypatch)
    store_state(store, run, manifest(1, b"state"), b"state")
    folder = artifact_folder(run) / names.STATE_FOLDER
    assert [path.parent for path in flushed].count(folder) == 2
    assert [path for path in flushed if path == folder] == [folder, folder]
    assert folder != flushed[0]


def test_a_state_is_deleted_only_after_the_next_one_is_stored(
    store, experiment_id, own_cache, monkeypatch
):
    stored = []

    def store_and_list(client, run, state, content):
        stored.append(list_state_rows(client, run))
        store_state(client, run, state, content)
        stored.append(list_state_rows(client, run))

    monkeypatch.setattr(training_run, "store_state", store_and_list)
    settings = config(strategy="naive", epochs=1, predictions="none", resumable="on")
    train_in_process(store, training(settings, made_up()), {})
    assert only_run(store, experiment_id).info.status == "FINISHED"
    assert stored == [(), (0,), (0,), (0, 1), (1,), (1, 2)]
