"""Untrusted files: no links out, no imports by name, no unlimited memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import invoke
from stored_runs import change, row_texts, rows_folder, stored_run
from stored_values import build_images

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.record import RowRecord
from clear_mlflow.core.untrusted import MAX_ROW_BYTES
from clear_mlflow.learning.checkpoint import _get_random_states, _set_random_states
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import read_config_file
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.tracking.resume import ResumePoint, resolve_resume_parameters


def evaluate(run) -> str:
    return invoke("evaluate", "--runs", run.info.run_id).output


def test_reading_a_row_stops_at_the_size_limit(tmp_path):
    for root, name, problem in (
        (Path("/dev"), "zero", "not a regular file"),
        (tmp_path, "row.json", "row.json is larger than 1 MiB"),
    ):
        (tmp_path / "row.json").touch()
        os.truncate(tmp_path / "row.json", 2**40)
        run = SimpleNamespace(info=SimpleNamespace(run_id="run", artifact_uri=root.parent.as_uri()))
        folder = ArtifactFolder(SimpleNamespace(tracking_uri=""), run, root.name)
        with pytest.raises(RecordError, match=problem):
            folder.read_files([name], MAX_ROW_BYTES)


def test_a_row_of_very_many_buckets_is_rejected(store, experiment_id):
    """Its matrix would take forty gigabytes."""
    text = json.loads(row_texts()["row_002.json"])
    keys = [str(j) for j in range(20_000)]
    text |= {"buckets": keys, "correct": [1] * len(keys), "num_instances": [2] * len(keys)}
    with pytest.raises(RecordError, match="buckets has 20,000 keys; expected 1 to 1000"):
        RowRecord.from_json(json.dumps({**text, "row": 1}), source="row_001.json")
    run = stored_run(store, experiment_id)
    change(rows_folder(run) / "row_002.json", buckets=keys)
    assert "expected 1 to 1000" in evaluate(run)


def test_very_many_classes_are_bounded():
    assert len(build_images((1, 1), [0, 1], map(str, range(5000))).class_names) == 5000
    with pytest.raises(RecordError, match="classes; expected"):
        build_images((1, 1), [0, 1], map(str, range(9_000_000)))


@pytest.fixture
def trap(tmp_path, monkeypatch) -> Path:
    owned = tmp_path / "owned"
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "trap_module.py").write_text(f"open({str(owned)!r}, 'w')\nclass Strategy: ...\n")
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("trap_module", None)
    return owned


@pytest.mark.parametrize("name", ["strategy", "dataset"])
def test_a_stored_run_names_no_module_to_import_for_its_resume(store, experiment_id, trap, name):
    parameters = {name: "trap_module:Strategy"}
    run, config = stored_run(store, experiment_id), TrainConfig.resolve(parameters)
    point = ResumePoint(run, config, {}, frozenset(), (), None, frozenset())
    requests = [{}, {"strategy": "auto"}]
    for requested in requests[: 1 + (name == "strategy")]:
        with pytest.raises(ConfigError, match="not imported unless you name it, too") as error:
            resolve_resume_parameters(point, requested)
        assert f"{name}=trap_module:Strategy if you know it" in str(error.value)
    assert getattr(resolve_resume_parameters(point, parameters), name) == "trap_module:Strategy"
    assert not trap.exists()


def test_reading_a_configuration_stops_at_the_size_limit(tmp_path):
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config_file(Path("/dev/zero"))
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_config_file(path)
    path.write_text('{"seed": "1", "seed": "2"}')
    with pytest.raises(ConfigError, match="twice; expected each once"):
        read_config_file(path)


@pytest.mark.parametrize("position", [-1, 625, 10**6])
def test_an_invalid_generator_state_is_rejected(position):
    """The library accepts it, and later crashes the process."""
    states = _get_random_states()
    generator_name, keys, _, *rest = states["numpy"]
    with pytest.raises(ValueError, match="numpy's generator is at"):
        _set_random_states({**states, "numpy": (generator_name, keys, position, *rest)})
    _set_random_states(states)


MEGABYTES = r"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
from clear_mlflow.core.anytime import parse_anytime_file_name
from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.record import parse_row_index
from clear_mlflow.core.text import one_line
from clear_mlflow.core.untrusted import parse_json
from clear_mlflow.importers import FORMATS, ResultFile, parse_runs
from clear_mlflow.journal.run_folder import _ENTRY

reads = [mask_credentials, one_line, parse_row_index, parse_anytime_file_name, _ENTRY.fullmatch]
reads.append(lambda text: parse_json(text, 2**22))
for name in FORMATS:
    reads.append(lambda text, name=name: parse_runs(ResultFile("a", text.encode()), name))
for unit in ["a", ":", "@", "/", "a:", "://", "[", "'", "0", "0.", " a", ","]:
    text = unit * (10**6 // len(unit)) + "@!"  # an @ makes what is before it a password
    for read in reads:
        try:
            read(text)
        except ClearError:
            pass
print("done")
"""


@pytest.mark.slow
def test_parsing_time_does_not_grow_quadratically():
    """For repetitions of a few characters, through all parsers of foreign text.

    In a process that is ended after two minutes of computing: 32 kB once took 24 s.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEGABYTES], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.stdout == "done\n", done.stderr[-2000:]
