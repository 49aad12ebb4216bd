"""Runs to compare, as objects and as MLflow runs with known rows."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from stored_values import build_images, build_row_predictions, row_record, write_predictions

from clear_mlflow.comparison.groups import ComparedRun
from clear_mlflow.comparison.pairs import compare_groups
from clear_mlflow.comparison.ranking import rank_groups
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import RowRecord, assemble, format_row_file_name
from clear_mlflow.core.score import RowCost
from clear_mlflow.learning.parameters.config import TrainConfig, list_parameter_defaults
from clear_mlflow.learning.parameters.logged import describe_parameters
from clear_mlflow.metrics import FAMILIES, METRICS, summarize
from clear_mlflow.store.names import PARAMETERS_TAG

DIGEST = "sha256:" + "ab" * 32
NUM_TEST = 200
METRICS_AND_COSTS = (*METRICS, *FAMILIES["cost"])
BY = ("strategy", "dataset")
SCORE = "clear/challenge_score"


def compare(compared: Sequence[ComparedRun], by: Sequence[str] = BY, **options: Any) -> Comparison:
    return compare_groups(rank_groups(compared, by, **options))


def compare_costs(*groups: Sequence[ComparedRun], **options: Any) -> Comparison:
    """Compare the runs of some strategies, also by their costs."""
    runs = list(itertools.chain(*groups))
    return compare(runs, ["strategy"], metrics=METRICS_AND_COSTS, **options)


def counts(level: int, seed: int, buckets: int = 4) -> list[list[int]]:
    """Return rows of correct counts, the initialisation first, with forgetting."""
    draws = np.random.default_rng([level, seed])
    cells = level - 4 * np.abs(np.arange(buckets) - np.arange(buckets)[:, np.newaxis])
    rows = np.vstack([np.full(buckets, 20), cells]) + draws.integers(-3, 4, (buckets + 1, buckets))
    return rows.tolist()


def row_records(
    correct: Sequence[Sequence[int]],
    *,
    seed: int | None = 0,
    dataset: str = "clear10",
    digest: str = DIGEST,
    protocol: str = "iid",
    split: str = "test",
    buckets: Sequence[str] | None = None,
    num_test: Sequence[int] | None = None,
) -> list[RowRecord]:
    keys = tuple(buckets or (str(j + 1) for j in range(len(correct[0]))))
    num_instances = tuple(num_test or [NUM_TEST] * len(keys))
    metadata = {"protocol": protocol, "split": split, "seed": seed}
    return [
        row_record(
            AccuracyRow(i, keys, tuple(row), num_instances),
            dataset={"name": dataset, "digest": digest},
            **metadata,
        )
        for i, row in enumerate(correct)
    ]


def compared_run(
    name, correct, *, run_id=None, labels=None, diverged=False, params=None, **row_options
) -> ComparedRun:
    """Return a run as comparisons get it."""
    rows = row_records(correct, **row_options)
    record = assemble({format_row_file_name(r.row.row): r for r in rows})
    return ComparedRun(
        run_id=run_id or f"{name}-{record.seed}",
        name=f"{name} seed {record.seed}",
        record=record,
        summary=summarize(record.matrix, record.dataset.protocol),
        labels={"strategy": name, "dataset": record.dataset.name, **(labels or {})},
        params=params or {},
        diverged=diverged,
    )


def build_seed_runs(name: str, level: int, seeds: Sequence[int], **options) -> list[ComparedRun]:
    return [compared_run(name, counts(level, seed), seed=seed, **options) for seed in seeds]


def log_run(client, experiment_id, name, correct, *, strategy, tags=None, **row_options):
    """Create a finished MLflow run with rows and a strategy only."""
    run = client.create_run(
        experiment_id, run_name=name, tags={"strategy": strategy, **(tags or {})}
    )
    for row in row_records(correct, **row_options):
        path = f"accuracy_matrix/rows/{format_row_file_name(row.row.row)}"
        client.log_text(run.info.run_id, row.to_json().decode(), path)
    client.set_terminated(run.info.run_id)
    return client.get_run(run.info.run_id)


def log_training(client, experiment_id, correct, parameters, **row_options):
    """Create such a run with the parameters that a training logs."""
    strategy, seed = parameters["strategy"], int(parameters["seed"])
    options = {"strategy": strategy, "seed": seed, "dataset": "digits", **row_options}
    run = log_run(client, experiment_id, f"{strategy} {seed}", correct, **options)
    config = TrainConfig.resolve(parameters)
    client.set_tag(run.info.run_id, PARAMETERS_TAG, describe_parameters(config))
    defaults = list_parameter_defaults()
    used = {f"used/{n}": text for n, text in config.as_text().items() if defaults[n] == "auto"}
    for name, text in {**parameters, **used, "used/arithmetic": "float32"}.items():
        client.log_param(run.info.run_id, name, text)


def log_predictions(client, run, correct, tmp_path):
    """Log predictions with the counts of the rows."""
    width = len(correct[0])
    total = width * NUM_TEST
    content = np.random.default_rng(0).integers(0, 256, (total, 16), dtype=np.uint8)
    names = tuple(f"image{i}" for i in range(total))
    classes = ("bus", "camera")
    images = build_images((NUM_TEST,) * width, np.zeros(total), classes, content, names=names)
    labels = {}
    for i, row in enumerate(correct):
        of_buckets = np.ones((width, NUM_TEST), np.uint8)
        for j, right in enumerate(row):
            of_buckets[j, :right] = 0
        labels[i] = of_buckets.ravel()
    folder = tmp_path / f"predictions of {run.info.run_id}"
    write_predictions(folder, images, build_row_predictions(images, labels))
    client.log_artifacts(run.info.run_id, str(folder), "predictions")


def add_costs(records, price):
    """Return the same rows with FLOPs for each bucket, None if unknown."""

    def cost_of_each_row(record):
        spent = price if record.row.row else 0
        cost = RowCost(training_flops=spent, images=10, replayed_images=2, stored_bytes=spent)
        row = msgspec.structs.replace(record.row, cost=None if price is None else cost)
        return dataclasses.replace(record, row=row)

    return {format_row_file_name(record.row.row): cost_of_each_row(record) for record in records}


def build_cost_runs(strategy, level, price, seeds=range(3)):
    """Return a run of each seed, whose buckets cost a price in FLOPs, or an unknown one."""
    runs = []
    for seed in seeds:
        record = assemble(add_costs(row_records(counts(level, seed), seed=seed), price))
        summary = summarize(record.masked_matrix, metrics=METRICS_AND_COSTS)
        names = {"run_id": f"{strategy}{seed}", "name": f"{strategy} {seed}"}
        labels = {"strategy": strategy}
        runs.append(ComparedRun(**names, record=record, summary=summary, labels=labels))
    return runs
