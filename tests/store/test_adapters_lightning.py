"""Lightning's Trainer, run by Lightning: the matrix in MLflow is what trainer.test returned."""

import logging
import warnings

import numpy as np
import pytest
import torch
from adapter_loops import CLASSES, check_complete_loop, draw_bucket
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from clear_mlflow.adapters.lightning import MLflowAccuracyMatrix
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.store import names

BUCKETS = 11


@pytest.fixture(autouse=True)
def _quiet():
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(LightningModule):
    def __init__(self, name="test_acc", breaks_at=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(CLASSES, CLASSES)
        self.name, self.breaks_at, self.fits = name, breaks_at, 0

    def on_fit_start(self):
        self.fits += 1
        if self.fits == self.breaks_at:
            raise RuntimeError("the model broke")

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        accuracy = (self.layer(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log(self.name, accuracy, batch_size=len(batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def loader(count, bucket, generator):
    return DataLoader(TensorDataset(*draw_bucket(count, bucket, generator)), batch_size=4)


def loaders():
    generator = torch.Generator().manual_seed(0)
    train = [loader(20, j, generator) for j in range(BUCKETS)]
    return train, [loader(7 + j, j, generator) for j in range(BUCKETS)]


def trainer(callback):
    options = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet = dict.fromkeys(options, False)
    return Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet)


def own_numbers(results):
    return [results[j][f"test_acc/dataloader_idx_{j}"] for j in range(len(results))]


@pytest.mark.slow
def test_the_matrix_equals_lightnings_cell_by_cell(store, experiment_id):
    train, test = loaders()
    callback, model = MLflowAccuracyMatrix(dataset="toy", seed=0), Model()
    expected = [own_numbers(trainer(callback).test(model, test, verbose=False))]
    for bucket in train:
        first_trainer = trainer(callback)
        first_trainer.fit(model, bucket)
        expected.append(own_numbers(first_trainer.test(model, test, verbose=False)))
    check_complete_loop(store, experiment_id, callback, model, expected, atol=1e-6)
    counts = callback.matrix.values * callback.matrix.num_instances
    np.testing.assert_allclose(counts, counts.round(), atol=1e-12)


@pytest.mark.slow
def test_a_fit_that_fails_closes_the_run_as_failed(store, experiment_id):
    train, test = loaders()
    callback, model = MLflowAccuracyMatrix(), Model(breaks_at=2)
    trainer(callback).fit(model, train[0])
    trainer(callback).test(model, test, verbose=False)
    with pytest.raises(RuntimeError, match="the model broke"):
        trainer(callback).fit(model, train[1])
    (run,) = store.search_runs([experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.tags[names.ERROR_TAG] == "RuntimeError: the model broke"
    assert "clear/next_domain_accuracy" in run.data.metrics
    assert callback.trained == 1


@pytest.mark.slow
def test_a_missing_metric_is_an_error(store, experiment_id):
    _, test = loaders()
    with pytest.raises(ConfigError, match=r"logged no 'test_acc' \(there is accuracy/dataloader"):
        trainer(MLflowAccuracyMatrix()).test(Model("accuracy"), test, verbose=False)
    with pytest.raises(ConfigError, match="had 11 dataloaders for 2 buckets"):
        trainer(MLflowAccuracyMatrix(buckets=["a", "b"])).test(Model(), test, verbose=False)
    assert not store.search_runs([experiment_id])


def test_a_checkpoint_stores_the_number_of_trained_buckets():
    callback, loaded = MLflowAccuracyMatrix(), MLflowAccuracyMatrix()
    callback.on_fit_end(None, None)
    loaded.load_state_dict(callback.state_dict())
    assert loaded.trained == 1
