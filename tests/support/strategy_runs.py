"""Small streams of images and features, and trainings of strategies on them."""

import copy
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from feature_streams import CLASSES, WIDTH, config, made_up
from learning_streams import CPU, iter_training_batches, random_stream
from msgspec import structs
from torch import nn
from torch.nn.functional import cross_entropy

from clear_mlflow.learning.checkpoint import parse_state, serialize_state
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import DecodedStream, FeatureStream
from clear_mlflow.learning.strategies import load_strategy, parse_strategy_arguments
from clear_mlflow.learning.strategies.naive import Naive
from clear_mlflow.learning.training.trainer import Trainer

PREDICTIONS = b"what the model answered"


def on_features(**changes):
    """Return a configuration for :func:`feature_stream`, from texts."""
    parameters = {"epochs": "3", "lr": "0.3", "lr_step": "2", "batch_size": "4", "memory": "6"}
    parameters |= {"momentum": "0.8", "weight_decay": "0.01"}
    return config(**{**parameters, **changes})


def feature_stream(counts=(9, 7, 10), **options):
    """Return random features, so many in each bucket for training and 100 for tests."""
    stream, stored = made_up(tuple((count, 100) for count in counts), **options)
    return FeatureStream(stream, stored, device=CPU)


def image_stream(folder, *, train=(7, 6, 5), side=8, augment="none"):
    """Return a decoded stream of noise, whose files are in a new folder below *folder*."""
    files = tempfile.mkdtemp(dir=folder)
    stream, _ = random_stream(Path(files), train=train, test=(4,) * len(train), side=side)
    return DecodedStream(stream, image_size=side, augment=augment, device=CPU)


def train_all(stream, settings, saved=None):
    return list(train(stream, settings, progress=TrainingProgress(), saved=saved))


def train_costs(stream, settings, saved=None):
    return [trained.row.cost for trained in train_all(stream, settings, saved)]


def train_rows(stream, settings):
    trained = train_all(stream, settings)
    return [trained_bucket.row for trained_bucket in trained], trained[-1].model


def build_strategy(stream, settings, model):
    """Return a strategy as the loop builds it, and its trainer."""
    arguments = parse_strategy_arguments(settings)
    strategy = load_strategy(settings.strategy)(settings, stream, model, arguments)
    return strategy, Trainer(model, settings, bucket_keys=stream.keys, progress=TrainingProgress())


def learn_buckets(stream, settings, model):
    strategy, trainer = build_strategy(stream, settings, model)
    for bucket_index in range(len(stream.keys)):
        strategy.learn(bucket_index, trainer)
        strategy.after_bucket(bucket_index)
        yield model


def flatten_weights(model):
    """Return a copy of all weights of a model as one tensor."""
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]).clone()


def random_head(seed=0):
    """Return a linear head that is not zero, and a copy of it."""
    torch.manual_seed(seed)
    head = nn.Linear(WIDTH, CLASSES)
    return head, copy.deepcopy(head)


def literal_descent(model, samples, settings, bucket_index, *, gradient):
    """Run a bucket's steps with the optimiser written out.

    *gradient* returns, for (batch, epoch, step), one gradient per weight.
    """
    velocity = [torch.zeros_like(weight) for weight in model.parameters()]
    for epoch in range(settings.epochs):
        lr = settings.lr * settings.lr_gamma ** (epoch // settings.lr_step)
        batches = iter_training_batches(
            samples,
            batch_size=settings.batch_size,
            device=CPU,
            seed=settings.seed,
            bucket_index=bucket_index,
            epoch=epoch,
        )
        for step, batch in enumerate(batches):
            gradients = gradient(batch, epoch, step)
            with torch.no_grad():
                for i, weight in enumerate(model.parameters()):
                    along = gradients[i] + settings.weight_decay * weight
                    velocity[i] = settings.momentum * velocity[i] + along
                    weight -= lr * velocity[i]


def compute_gradient(model, batch):
    loss = cross_entropy(model(batch.inputs), batch.labels)
    return torch.autograd.grad(loss, list(model.parameters()))


def assert_identical(first, other):
    """Check that the tensors of two models, states or lists are equal to the bit."""
    first, other = (of.state_dict() if isinstance(of, nn.Module) else of for of in (first, other))
    torch.testing.assert_close(first, other, rtol=0, atol=0)


def assert_close(ours, theirs, *, rtol=1e-4, atol=1e-6):
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=rtol, atol=atol)


def train_with_states(stream, parameters, saved=None):
    """Return rows and states of a training, and its final weights."""
    rows, states = [], []
    for trained_bucket in train(stream, parameters, progress=TrainingProgress(), saved=saved):
        rows.append(trained_bucket.row)
        # What it cost tells the time, and no two states would be the same.
        states.append(
            serialize_state(
                trained_bucket.snapshot(),
                structs.replace(trained_bucket.row, cost=None),
                PREDICTIONS,
            )
        )
        model = trained_bucket.model
    return rows, states, {name: value.clone() for name, value in model.state_dict().items()}


class Noisy(nn.Sequential):
    """Draws a random number in each forward pass, in evaluation mode, too."""

    def forward(self, inputs):
        return super().forward(inputs + torch.rand(()) * 1e-3)


class WithNoise(Naive):
    @classmethod
    def build_model(cls, config, stream):
        layers = nn.Linear(3 * 8 * 8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
        return Noisy(nn.Flatten(), *layers)


class Twice(Naive):
    """Trains twice on each bucket."""

    def learn(self, bucket_index, trainer):
        super().learn(bucket_index, trainer)
        super().learn(bucket_index, trainer)


def assert_resumes_everywhere(make_stream, parameters):
    """Check that trainings resumed after any row, by new objects, do not differ in any bit."""
    rows, states, weights = train_with_states(make_stream(), parameters)
    for k, state in enumerate(states):
        saved = parse_state(state)
        assert (saved.row, saved.predictions) == (rows[k], PREDICTIONS)
        if k == len(rows) - 1:
            continue
        scramble()  # nothing may depend on what this process drew before
        again = train_with_states(make_stream(), parameters, saved)
        assert again[:2] == (rows[k + 1 :], states[k + 1 :])
        assert_identical(again[2], weights)
    return states, weights


def scramble():
    torch.manual_seed(random.SystemRandom().getrandbits(31))
    np.random.seed(1)
    random.seed(1)
