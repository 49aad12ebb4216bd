"""Sweeps as commands, and what they leave in a store."""

import sys

import pytest
import yaml
from forked import Forked
from short_stream import HELD
from waiting import finish, wait_until

from clear_mlflow.store import names
from clear_mlflow.sweeps.run import read_checked_grid

# Some versions of Ray cannot start their workers from such a path.
NEEDS_RAY = pytest.mark.skipif(" " in sys.prefix, reason="Ray may not start from this path")
# Runs of a second or two, most of which is imports.
QUICK = {"features": "pixels", "epochs": "1", "predictions": "none"}
# Still under way when its first rows are seen.
SLOWER = {**QUICK, **HELD}
FOUR = {"fixed": QUICK, "grid": {"strategy": ["held:Naive", "held:Ncm"], "seed": [0, 1]}}


def start_sweep(grid, *arguments):
    return Forked("sweep", "--grid", str(grid), *arguments, start_new_session=True)


def run_sweep(grid, *arguments, code=0):
    ended, output = finish(start_sweep(grid, *arguments))
    assert ended == code, output
    return output


def wait_for_a_row(store, experiment_id, process, condition="params.seed != ''"):
    """Wait until a run of a sweep has tested its first bucket, or the sweep has ended."""
    of_sweep = f"tags.`{names.SWEEP_RUN_TAG}` != '' AND {condition}"

    def has_row():
        runs = store.search_runs([experiment_id], of_sweep)
        return any("test_accuracy/bucket_01" in run.data.metrics for run in runs)

    wait_until(lambda: has_row() or process.poll() is not None)


@pytest.fixture
def grid(tmp_path, short_stream):
    """Write a grid's file. Its runs train on the short stream."""

    def write(content):
        path = tmp_path / "sweep.yaml"
        fixed = {**short_stream, **content["fixed"]}
        path.write_text(yaml.safe_dump({**content, "fixed": fixed}))
        return path

    return write


def find_runs(store, experiment_id):
    by_kind: dict[str, list] = {}
    for run in store.search_runs([experiment_id]):
        by_kind.setdefault(run.data.tags[names.KIND_TAG], []).append(run)
    (parent,), compared = by_kind.pop(names.KIND_SWEEP), by_kind.pop(names.KIND_COMPARE, [])
    below: dict[str, list] = {}
    for run in (run for runs in by_kind.values() for run in runs):
        below.setdefault(run.data.tags[names.SWEEP_RUN_TAG], []).append(run)
    for run in [*(run for runs in below.values() for run in runs), *compared]:
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    return parent, below, compared


def assert_every_run_is_there_once(store, experiment_id, grid):
    """Check that each run is finished, complete and compared, with the grid's parameters."""
    parent, below, (comparison,) = find_runs(store, experiment_id)
    planned = {run.config_hash: run for run in read_checked_grid(grid, "local").runs}
    assert below.keys() == planned.keys()
    for fingerprint, runs in below.items():
        (run,) = runs
        assert run.info.status == "FINISHED"
        assert run.data.tags[names.ROWS_TAG] == "complete"
        assert run.info.run_name == planned[fingerprint].name
        params = run.data.params
        for name, text in planned[fingerprint].parameters.items():
            assert text in (params.get(name), params.get(f"asked/{name}"))
    assert parent.info.status == "FINISHED"
    assert names.PROCESS_TAG not in parent.data.tags
    assert comparison.data.tags[names.COMPARED_COUNT_TAG] == str(len(planned))
