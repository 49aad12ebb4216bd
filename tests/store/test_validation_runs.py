"""Runs on validation images: what they store, and that they are kept apart from test runs."""

import json

import mlflow
import pytest
from commands import invoke
from compare_command import compare, load_comparison
from comparisons import counts, log_training
from released_layout import write_released
from stored_runs import load_rows, only_training
from trainings import FOUR_BUCKETS, NUM_TEST

import clear_mlflow
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.core.record import assemble
from clear_mlflow.scoring.run_log import read_scores
from clear_mlflow.store import names
from clear_mlflow.store.rows import parse_rows, unpack_matrix_tag
from clear_mlflow.sweeps.grid import read_grid

SMALL = {"dataset": "clear10", "model": "small_cnn", "image_size": 16, "epochs": 1}
SMALL |= {"batch_size": 8, "device": "cpu", "precision": "off", "log_models": "last"}


def log_candidate(store, experiment_id, strategy, level, seed, *, split, digest, **requested):
    requested = {"strategy": strategy, "split": split, **requested, "seed": str(seed)}
    measured = "validation" if split.startswith("validation") else "test"
    log_training(
        store, experiment_id, counts(level, seed), requested, digest=digest, split=measured
    )


def log_grid(store, experiment_id, split, digest):
    runs = [("naive", 100, "0.01"), ("naive", 130, "0.1")]
    runs += [("replay", 150, "0.01"), ("replay", 120, "0.1")]
    for strategy, level, lr in runs:
        for seed in range(2):
            log_candidate(
                store, experiment_id, strategy, level, seed, split=split, digest=digest, lr=lr
            )


@pytest.mark.slow
def test_every_output_shows_the_split(store, experiment_id, tmp_path, own_cache):
    root = write_released(tmp_path / "data", train=12)
    clear_mlflow.train(data_root=root, split="validation", **SMALL)
    run = only_training(store, experiment_id)
    assert run.data.params["split"] == "validation"
    assert run.data.tags["split"] == "validation"
    (entry,) = run.inputs.dataset_inputs
    assert [tag.value for tag in entry.tags] == ["validation"]
    assert json.loads(entry.dataset.profile)["split"] == "validation"
    rows = load_rows(run)
    record = assemble(rows)
    assert {row.dataset.split for row in rows.values()} == {record.dataset.split} == {"validation"}
    assert record.matrix.num_instances.tolist() == [3, 3, 3]
    tag = unpack_matrix_tag(run.info.run_id, run.data.tags[names.MATRIX_TAG])
    assert assemble(parse_rows(tag)).dataset.split == "validation"
    assert "measured on validation images" in run.data.tags["mlflow.note.content"]
    output = invoke("evaluate", "--runs", run.info.run_id).output
    assert "measured on validation images: use these numbers to choose, not to report" in output


def test_custom_loops_record_their_split(store):
    loop = {"buckets": 4, "num_instances": NUM_TEST}
    with clear_mlflow.track(**loop, split="validation") as run:
        run.log_counts(0, FOUR_BUCKETS[0])
    stored = store.get_run(run.run_id)
    assert read_scores(store, stored).record.dataset.split == "validation"
    assert stored.data.tags["split"] == "validation"
    message = "with split 'validation', but this loop has 'test'"
    with mlflow.start_run(run_id=run.run_id), pytest.raises(TrackingError, match=message):
        clear_mlflow.track(**loop).__enter__()
    with pytest.raises(ConfigError, match="split is 'valid'; expected one of test, validation"):
        clear_mlflow.track(**loop, split="valid")


@pytest.mark.slow
def test_validation_runs_are_never_compared_with_test_runs(store, experiment_id):
    for split, level in (("validation", 150), ("auto", 120)):
        for seed in range(3):
            log_candidate(
                store, experiment_id, "naive", level, seed, split=split, digest="sha256:00"
            )
    tags = {"strategy": "naive", "dataset": "digits", "split": "validation"}
    tags[names.DIVERGED_TAG] = "true"
    diverged_run = store.create_run(experiment_id, run_name="lost", tags=tags)
    store.set_terminated(diverged_run.info.run_id, "FAILED")
    output, content = compare(store, experiment_id)
    assert "differ in split (test and validation)" in output
    assert "The groups called validation were measured on validation images" in output
    assert [group["name"] for group in content["groups"]] == ["test: naive", "validation: naive"]
    assert [len(group["diverged"]) for group in content["groups"]] == [0, 1]
    assert content["verdicts"] == []
    _, folder = load_comparison(store, experiment_id)
    page = (folder / names.COMPARISON_PAGE).read_text()
    assert "800 validation images" in page
    assert "800 test images" in page
    assert not (folder / names.CHOSEN).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("split", "tested"), [("validation", "auto"), ("validation:3", "3")])
def test_a_grid_on_validation_names_the_command_that_tests_its_winners(
    store, experiment_id, split, tested
):
    log_grid(store, experiment_id, split, "sha256:00")
    output, _ = compare(store, experiment_id, "--group-by", "strategy,lr")
    run, folder = load_comparison(store, experiment_id)
    assert run.info.run_name.endswith("(8 runs, validation)")
    assert "compared, on validation images" in run.data.tags["mlflow.note.content"]
    assert "All runs were measured on validation images" in output
    assert "selected on the test set" not in output
    grid = folder / names.CHOSEN
    assert f"MLFLOW_EXPERIMENT_ID={experiment_id} clear-mlflow sweep --grid {grid}" in output
    planned = read_grid(grid).runs
    assert {(r.config.strategy, r.config.lr, r.config.seed) for r in planned} == {
        (strategy, lr, seed)
        for strategy, lr in (("naive", 0.1), ("replay", 0.01))
        for seed in range(5)
    }
    assert {r.config.split for r in planned} == {tested}
    assert names.CHOSEN in (folder / names.COMPARISON_PAGE).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["strategy,lr", "strategy"])
def test_a_grid_on_test_images_gets_a_warning(store, experiment_id, by):
    log_grid(store, experiment_id, "auto", "sha256:00")
    output, _ = compare(store, experiment_id, "--group-by", by)
    line = (
        "4 groups differ only in lr and were measured on test images. The best of them is selected "
        "on the test set"
    )
    assert (line in output) == (by == "strategy,lr")
    _, folder = load_comparison(store, experiment_id)
    assert not (folder / names.CHOSEN).exists()
