"""``pip install -U`` beside a training: what it uses is loaded in its first bucket."""

from __future__ import annotations

import subprocess
import sys

import pytest
from released_layout import write_released

from clear_mlflow.store.rows import read_rows

_TRAINING = """
import importlib.metadata, sys
import clear_mlflow
from clear_mlflow.runs.training_run import TrainingRun

OPTIONAL = ("pyspark", "tabulate")  # MLflow and pandas look whether they are there

class Replaced:
    def find_spec(self, name, path=None, target=None):
        if name not in OPTIONAL:
            print("asked for module", name, flush=True)
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def gone(name):
    print("asked for package", name, flush=True)
    raise importlib.metadata.PackageNotFoundError(name)

log_row = TrainingRun.log_row

def then_replaced(self, measured):
    log_row(self, measured)
    if measured.row.row == 1:
        sys.meta_path.insert(0, Replaced())
        importlib.metadata.Distribution.from_name = gone

TrainingRun.log_row = then_replaced
clear_mlflow.train(**dict(word.split("=") for word in sys.argv[1:]))
"""


@pytest.mark.parametrize("what", ["features=pixels", "model=small_cnn"])
def test_a_training_needs_nothing_of_its_packages_after_its_first_bucket(store, tmp_path, what):
    """In a fresh process, where after row 1 no module is found and no version known."""
    write_released(tmp_path / "data", buckets=("1", "2", "3"), size=(32, 32), train=4, test=2)
    asked = ["dataset=clear10", f"data_root={tmp_path / 'data'}", "epochs=1", what]
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING, *asked], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "asked for" not in done.stdout
    assert "warning" not in done.stderr
    (run,) = store.search_runs([store.get_experiment_by_name("test").experiment_id])
    assert run.info.status == "FINISHED"
    assert len(read_rows(store, run)) == 4
