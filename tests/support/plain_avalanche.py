"""Trainings by Avalanche, and its plugins with one deviation from their papers undone."""

import copy
from typing import Any

import torch
from avalanche.training import DER, plugins
from avalanche.training.supervised import Naive
from torch import nn

from clear_mlflow.learning.strategies.ewc import Ewc

MOMENTUM, WEIGHT_DECAY = 0.8, 0.01


def train_by_avalanche(benchmark, model, plugin=None, strategy=Naive, *, lr, epochs):
    """Train a model on a benchmark with full batches. Yield it after each bucket."""
    trained = strategy(
        model=model,
        optimizer=torch.optim.SGD(
            model.parameters(), lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        ),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=10_000,
        train_epochs=epochs,
        plugins=[] if plugin is None else [plugin],
        evaluator=None,
    )
    for experience in benchmark.train_stream:
        trained.train(experience)
        yield model


class PerImageEwc(plugins.EWCPlugin):
    """Squares the gradient of each image, not that of a batch's mean."""

    def compute_importances(
        self, model, criterion, optimizer, dataset, device, batch_size, **arguments
    ):
        return super().compute_importances(
            model, criterion, optimizer, dataset, device, 1, **arguments
        )


class LwfInEvaluation(plugins.LwFPlugin):
    """Has the teacher in evaluation mode."""

    def after_training_exp(self, strategy, **kwargs):
        super().after_training_exp(strategy, **kwargs)
        self.lwf.prev_model.eval()


class LwfOfAllClasses(LwfInEvaluation):
    """Distils all classes of the head, not only those seen so far."""

    def after_training_exp(self, strategy, **kwargs):
        super().after_training_exp(strategy, **kwargs)
        self.lwf.prev_classes_by_task[0] = set(range(strategy.mb_output.shape[1]))


class DerOfAllImages(DER):
    """Uses the complete memory in each step."""

    def _before_training_exp(self, **kwargs):
        self.batch_size_mem = max(1, len(self.storage_policy.buffer))
        super()._before_training_exp(**kwargs)


class DerOfLastStep(DerOfAllImages):
    """Stores the logits of a bucket's last step, before it changed the weights."""

    model: Any

    def _before_update(self, **kwargs):
        self.before = copy.deepcopy(self.model)
        super()._before_update(**kwargs)

    def _after_training_exp(self, **kwargs):
        after, self.model = self.model, self.before
        super()._after_training_exp(**kwargs)
        self.model = after


def differentiate_true_labels_only(monkeypatch):
    """Make EWC use the likelihood of an image's true label alone, as Avalanche does."""
    only = lambda _, batch: (batch.labels[:, None], torch.ones(len(batch.labels), 1))  # noqa: E731
    monkeypatch.setattr(Ewc, "_select_labels", only)
