"""Hugging Face's Trainer, run by itself: the matrix in MLflow is what trainer.evaluate returned."""

from typing import Any

import numpy as np
import pytest
import torch
from adapter_loops import CLASSES, check_complete_loop, draw_bucket
from transformers import Trainer, TrainingArguments

from clear_mlflow.adapters.transformers import MLflowAccuracyMatrix
from clear_mlflow.core.errors import ConfigError

BUCKETS = 11
KEYS = [str(j + 1) for j in range(BUCKETS)]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(CLASSES, CLASSES)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def bucket(count, number, generator):
    x, y = draw_bucket(count, number, generator)
    return [{"x": x[i], "labels": y[i]} for i in range(count)]


def buckets():
    generator = torch.Generator().manual_seed(0)
    train = [bucket(20, j, generator) for j in range(BUCKETS)]
    return train, {key: bucket(7 + j, j, generator) for j, key in enumerate(KEYS)}


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


ARGUMENTS: dict[str, Any] = {"num_train_epochs": 1, "learning_rate": 0.5, "use_cpu": True}
ARGUMENTS |= {"per_device_train_batch_size": 4, "report_to": "none"}
ARGUMENTS |= {"save_strategy": "no", "disable_tqdm": True}


def trainer(callback, folder, model, train=None, **overrides):
    eval_strategy = "epoch" if "eval_dataset" in overrides else "no"
    arguments = TrainingArguments(str(folder), eval_strategy=eval_strategy, **ARGUMENTS)
    options = {"compute_metrics": accuracy, **overrides}
    return Trainer(model, arguments, train_dataset=train, callbacks=[callback], **options)


def own_numbers(results):
    return [results[f"eval_{key}_accuracy"] for key in KEYS]


@pytest.mark.slow
def test_the_matrix_equals_the_trainers_cell_by_cell(store, experiment_id, tmp_path):
    train, test = buckets()
    callback, model = MLflowAccuracyMatrix(KEYS, dataset="toy", seed=0), Model()
    expected = [own_numbers(trainer(callback, tmp_path, model).evaluate(test))]
    for images in train:
        first_trainer = trainer(callback, tmp_path, model, images, eval_dataset=test)
        first_trainer.train()
        expected.append(own_numbers(first_trainer.evaluate(test)))
    check_complete_loop(store, experiment_id, callback, model, expected, atol=1e-12)


@pytest.mark.slow
def test_a_row_with_missing_cells_is_stored(store, tmp_path):
    train, test = buckets()
    callback, model = MLflowAccuracyMatrix(["a", "b"]), Model()
    first_trainer = trainer(callback, tmp_path, model, train[0])
    first_trainer.train()
    first_trainer.evaluate(test["9"])
    first = first_trainer.evaluate({"b": test["1"]})
    first_trainer.train()
    second = first_trainer.evaluate({"a": test["2"], "b": test["1"]})
    (row, last) = callback.matrix.values
    assert np.isnan(row[0])
    assert row[1] == pytest.approx(first["eval_b_accuracy"])
    assert last == pytest.approx([second["eval_a_accuracy"], second["eval_b_accuracy"]])


def test_a_missing_metric_is_an_error(store, experiment_id, tmp_path):
    _, test = buckets()
    callback = MLflowAccuracyMatrix(KEYS, metric="top1")
    with pytest.raises(ConfigError, match=r"returned no 'top1' \(there is accuracy, loss, "):
        trainer(callback, tmp_path, Model()).evaluate(test)
    assert not store.search_runs([experiment_id])
