"""Optimisers, schedules and precision."""

import math
from functools import partial

import pytest
import torch
from learning_streams import config, squares
from torch import nn
from torch.nn.functional import cross_entropy

from clear_mlflow.learning.models import build_model, get_head
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import Samples
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer, compute_learning_rate


def linear_model():
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def features(count=12, seed=0):
    draws = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 5, generator=draws)
    return Samples(images, torch.randint(0, 3, (count,), generator=draws))


def train_model(settings, *, counts=(12,), model=None, hooks=Strategy):
    model = model or linear_model()
    keys = tuple(map(str, range(len(counts))))
    trainer = Trainer(model, settings, bucket_keys=keys, progress=TrainingProgress())
    strategy = hooks(settings, None, model, None)
    for k, count in enumerate(counts):
        trainer.train_bucket(features(count, seed=k), bucket_index=k, strategy=strategy)
    return model


def read_weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def full(**changes):
    return config(batch_size="full", epochs=4, lr=0.1, weight_decay=0.03, **changes)


def literal(settings, samples, state, model, optimizer):
    """One bucket of full-batch descent, written out from the optimisers' papers."""
    for epoch in range(settings.epochs):
        lr = compute_learning_rate(settings, epoch)
        loss = cross_entropy(model(samples.images), samples.labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        state["step"] = state.get("step", 0) + 1
        with torch.no_grad():
            for i, (w, g) in enumerate(zip(model.parameters(), gradients, strict=True)):
                if optimizer == "sgd":
                    g = g + settings.weight_decay * w
                    state[i] = settings.momentum * state.get(i, 0) + g
                    w -= lr * state[i]
                    continue
                if optimizer == "adam":
                    g = g + settings.weight_decay * w
                else:
                    w *= 1 - lr * settings.weight_decay
                first, second = state.get(i, (0, 0))
                first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
                state[i] = (first, second)
                corrected = first / (1 - 0.9 ** state["step"])
                scale = (second / (1 - 0.999 ** state["step"])).sqrt() + 1e-8
                w -= lr * corrected / scale


@pytest.mark.parametrize("keeps_state", ["reset", "keep"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_optimisers_equal_their_papers_and_keep_or_lose_their_state(optimizer, keeps_state):
    settings = full(optimizer=optimizer, optimizer_state=keeps_state)
    reference, state = linear_model(), {}
    for bucket_index in range(3):
        if keeps_state == "reset":
            state = {}
        literal(settings, features(seed=bucket_index), state, reference, optimizer)
    weights = train_model(settings, counts=(12, 12, 12))
    torch.testing.assert_close(read_weights(weights), read_weights(reference), rtol=1e-4, atol=1e-6)
    other_state = {"reset": "keep", "keep": "reset"}[keeps_state]
    other = full(optimizer=optimizer, optimizer_state=other_state)
    assert not torch.allclose(
        read_weights(train_model(other, counts=(12, 12, 12))), read_weights(weights)
    )


def test_schedules_are_their_formulas():
    def rates(**changes):
        settings = config(lr=0.8, epochs=8, **changes)
        return [compute_learning_rate(settings, epoch) for epoch in range(8)]

    assert rates(schedule="constant") == [0.8] * 8
    assert rates(schedule="step", lr_step=3, lr_gamma=0.5) == [0.8] * 3 + [0.4] * 3 + [0.2] * 2
    cosine = [0.4 * (1 + math.cos(math.pi * e / 8)) for e in range(8)]
    assert rates(schedule="cosine") == pytest.approx(cosine)
    warm = rates(schedule="cosine", warmup_epochs=4)
    assert warm[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert warm[4:] == pytest.approx([0.4 * (1 + math.cos(math.pi * e / 4)) for e in range(4)])


def test_clipping_bounds_the_step_and_smoothing_spreads_the_target():
    samples, lr = features(), 0.5
    for changes in ({"clip_norm": 0.01}, {"label_smoothing": 0.4}):
        settings = config(batch_size="full", epochs=1, lr=lr, momentum=0, weight_decay=0, **changes)
        reference = linear_model()
        log_likelihood = reference(samples.images).log_softmax(dim=1)
        share = settings.label_smoothing
        target = torch.full((12, 3), share / 3)
        target[torch.arange(12), samples.labels] += 1 - share
        loss = -(target * log_likelihood).sum(dim=1).mean()
        gradients = torch.autograd.grad(loss, list(reference.parameters()))
        gradient = torch.cat([g.flatten() for g in gradients])
        factor = min(1.0, 0.01 / (gradient.norm().item() + 1e-6)) if settings.clip_norm else 1.0
        expected = read_weights(reference) - lr * factor * gradient
        torch.testing.assert_close(read_weights(train_model(settings)), expected)
        assert factor < 1 or share


def test_hooks_are_called_in_their_order_around_each_step():
    events = []

    class Told(Strategy):
        def begin_epoch(self, bucket_index, epoch, num_steps):
            events.append(("epoch", bucket_index, epoch, num_steps))

        def compute_loss(self, forward, batch):
            events.append(("loss", len(batch.labels)))
            return super().compute_loss(forward, batch)

        def before_step(self):
            events.append(("gradient", self.model.weight.grad.abs().sum().item() > 0))
            self.before = self.model.weight.detach().clone()

        def after_step(self):
            events.append(("changed", not torch.equal(self.model.weight, self.before)))

    train_model(config(epochs=1, batch_size=6), hooks=Told)
    step = [("loss", 6), ("gradient", True), ("changed", True)]
    assert events == [("epoch", 0, 0, 2), *step, *step]


def test_bf16_computes_in_bf16_and_keeps_float32_weights():
    dtypes = []

    class Seen(Strategy):
        def compute_loss(self, forward, batch):
            logits = forward(batch.inputs)
            dtypes.append(logits.dtype)
            return self.criterion(logits, batch.labels)

    half = train_model(full(precision="bf16"), hooks=Seen)
    assert set(dtypes) == {torch.bfloat16}
    assert half.weight.dtype == torch.float32
    exact = train_model(full(precision="off"))
    assert not torch.equal(half.weight, exact.weight)
    torch.testing.assert_close(half.weight, exact.weight, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "mobilenet_v2", "squeezenet1_1"])
def test_a_frozen_backbone_changes_in_nothing_but_its_head(name):
    torch.manual_seed(0)
    model = build_model(name, num_classes=3, image_size=32, freeze="backbone")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    images = torch.randint(0, 256, (8, 32, 32, 3), dtype=torch.uint8)
    settings = config(model=name, image_size=32, freeze="backbone", epochs=1)
    trainer = Trainer(model, settings, bucket_keys=("1",), progress=TrainingProgress())
    samples = Samples(squares(images), torch.arange(8) % 3)
    trainer.train_bucket(samples, bucket_index=0, strategy=Strategy(settings, None, model, None))
    head = {id(p) for p in get_head(model).parameters()}
    of_head = {k for k, p in model.named_parameters() if id(p) in head}
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed
    assert changed <= of_head


class Counting:
    """A backend of torch.compile that counts graphs."""

    def __init__(self):
        self.calls: list[tuple[int, int]] = []  # (graph, images) of each forward pass
        self.graphs = 0

    def __call__(self, graph, inputs):
        number, self.graphs = self.graphs, self.graphs + 1

        def call(*arguments):  # sizes among them where they are not fixed
            tensors = filter(torch.is_tensor, arguments)
            (images,) = (t for t in tensors if t.dim() == 2 and not t.requires_grad)
            self.calls.append((number, len(images)))
            return graph(*arguments)

        return call


def test_only_full_batches_are_compiled(monkeypatch):
    backend = Counting()
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    uncompiled = train_model(config(epochs=3, batch_size=5, compile="off"))
    model = train_model(config(epochs=3, batch_size=5, compile="on"))
    torch._dynamo.reset()
    # Of 12 images: 5, 5 and 2; the very first was counted, of the model as it is.
    assert backend.calls == [(0, 5)] * 5
    assert torch.equal(read_weights(model), read_weights(uncompiled))


@pytest.mark.parametrize("batch_size", ["full", 20])
def test_buckets_of_different_sizes_in_one_batch_are_compiled_twice(monkeypatch, batch_size):
    """For the first size, and once for all others. After eight graphs, torch would give up."""
    backend = Counting()
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    settings = config(epochs=3, batch_size=batch_size, compile="on")
    train_model(settings, counts=(12, 11, 10, 9))
    torch._dynamo.reset()
    # The first step of each size was counted, of the model as it is.
    assert backend.calls == [(0, 12)] * 2 + [(1, 11)] * 2 + [(1, 10)] * 2 + [(1, 9)] * 2
