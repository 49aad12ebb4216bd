"""Training in float16: the loss is scaled, and gradients are unscaled.

On a CPU, torch computes float16 and scales as on a GPU, only slowly.
"""

import pytest
import torch
from learning_streams import config
from strategy_runs import (
    assert_identical,
    assert_resumes_everywhere,
    build_strategy,
    flatten_weights,
    image_stream,
    train_all,
    train_costs,
    train_with_states,
)

from clear_mlflow.core.errors import DivergedError
from clear_mlflow.learning.checkpoint import parse_state
from clear_mlflow.learning.process_group import ProcessGroup
from clear_mlflow.learning.samples import Batch
from clear_mlflow.learning.strategies import agem, load_strategy
from clear_mlflow.learning.strategies._base import Strategy, build_untrained_model
from clear_mlflow.learning.strategies.agem import Agem
from clear_mlflow.learning.training import trainer as training

IN_STEPS = ("naive", "agem", "derpp", "er_ace", "ewc", "lwf", "si")


def fp16(**changes):
    return config(**{"precision": "fp16", "lr": "0.01", "optimizer_state": "keep", **changes})


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("name", IN_STEPS)
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, name):
    settings = fp16(strategy=name, clip_norm=1)
    states, weights = assert_resumes_everywhere(lambda: image_stream(tmp_path), settings)
    assert all(weight.isfinite().all() for weight in weights.values())
    since = [read_scaler(state)["_growth_tracker"] for state in states]
    assert since[:2] == [0, 4], "steps since a gradient was not finite"


def read_scaler(state):
    described = parse_state(state).snapshot.description["descent"]["dict"]
    return dict(dict(described)["scaler"]["dict"])


class Seen(Strategy):
    """Records the gradients that strategies get; its loss underflows in float16."""

    temporary_attributes = ("gradients",)

    def compute_loss(self, forward, batch):
        return super().compute_loss(forward, batch) * 1e-6

    def before_step(self):
        self.gradients = [weight.grad.clone() for weight in self.model.parameters()]


class Small(Agem):
    """A-GEM with losses that are as small."""

    def criterion(self, logits, labels):
        return super().criterion(logits, labels) * 1e-6


def build_all(stream, settings):
    model = build_untrained_model(load_strategy(settings.strategy), stream, settings)
    return model, *build_strategy(stream, settings, model)


def assert_close_for_float16(values, exact):
    values, exact = (torch.cat([part.flatten() for part in parts]) for parts in (values, exact))
    assert 0 < exact.abs().max() < 1e-5
    assert (values - exact).norm() < 0.02 * exact.norm()


def test_strategies_get_unscaled_gradients(tmp_path):
    stream = image_stream(tmp_path)

    def gradients(precision):
        settings = fp16(precision=precision, strategy=f"{__name__}:Seen", epochs=1)
        _, strategy, trainer = build_all(stream, settings)
        strategy.learn(0, trainer)
        return strategy.gradients

    assert_close_for_float16(gradients("fp16"), gradients("off"))


def test_agems_reference_gradient_is_float32(tmp_path, monkeypatch):
    stream = image_stream(tmp_path)

    def references(precision):
        gradients = []
        monkeypatch.setattr(
            agem, "project_gradient", lambda _, reference: gradients.append(reference)
        )
        settings = fp16(precision=precision, strategy=f"{__name__}:Small", epochs=1)
        _, strategy, trainer = build_all(stream, settings)
        strategy.learn(0, trainer)
        strategy.after_bucket(0)
        strategy.learn(1, trainer)
        return gradients[0]

    assert_close_for_float16(references("fp16"), references("off"))


@pytest.mark.parametrize("name", ["naive", "agem", "ewc", "si"])
def test_a_step_with_overflowing_gradients_is_skipped(tmp_path, name):
    stream = image_stream(tmp_path)
    model, strategy, trainer = build_all(stream, fp16(strategy=name, epochs=3, batch_size=4))
    strategy.learn(0, trainer)
    strategy.after_bucket(0)
    steps, before = trainer.curve.steps, [weight.detach().clone() for weight in model.parameters()]
    state = trainer.state_dict()
    trainer.load_state_dict({**state, "scaler": {**state["scaler"], "scale": 2.0**100}})
    strategy.learn(1, trainer)
    assert_identical(list(map(torch.detach, model.parameters())), before)
    assert trainer.curve.steps == steps + 6
    assert trainer.state_dict()["scaler"]["scale"] == 2.0**94
    strategy.after_bucket(1)
    stored_values = [value for value in strategy.state_dict().values() if isinstance(value, list)]
    assert all(tensor.isfinite().all() for tensors in stored_values for tensor in tensors)
    # From where it fits, training goes on.
    trainer.load_state_dict({**state, "scaler": {**state["scaler"], "scale": 2.0**10}})
    strategy.learn(2, trainer)
    assert not torch.equal(next(model.parameters()), before[0])
    assert all(weight.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("name", ["naive", "derpp"])
def test_a_process_without_images_adds_nothing_to_a_scaled_gradient(tmp_path, name):
    model, strategy, _ = build_all(image_stream(tmp_path), fp16(strategy=name))
    strategy.group = ProcessGroup(1, 2)
    nothing = Batch(torch.empty(0, 3, 8, 8), *torch.empty(2, 0, dtype=torch.int64))
    with torch.autocast("cpu", torch.float16):
        loss = strategy.compute_loss_share(model.eval(), nothing)
    (loss * 2.0**16).backward()
    assert all(weight.grad.eq(0).all() for weight in model.parameters())


def test_a_nan_loss_ends_the_training(tmp_path):
    with pytest.raises(DivergedError, match="no longer a finite number in epoch"):
        train_all(image_stream(tmp_path), fp16(lr="1e9", epochs=20))


def write_garbage_to_freed_memory(monkeypatch):
    """Let uninitialised tensors contain a number that shows."""
    allocate = torch.empty_like

    def allocate_dirty(tensor, **options):
        return allocate(tensor, **options).fill_(9.0)

    monkeypatch.setattr(torch, "empty_like", allocate_dirty)


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_fused_steps_ignore_a_first_step_that_overflows(tmp_path, monkeypatch, optimizer, resumed):
    """Also the first one after a resume from a bucket in which all steps overflowed.

    A fused optimizer skips the step itself, and its momentum must not be what was in the memory.
    """
    stream = image_stream(tmp_path)
    settings = fp16(strategy="naive", epochs=6, optimizer=optimizer)

    def train_one_bucket(fused):
        monkeypatch.setattr(training, "_FUSED_DEVICE", fused)
        model, strategy, trainer = build_all(stream, settings)
        state = trainer.state_dict()
        trainer.load_state_dict({**state, "scaler": {**state["scaler"], "scale": 2.0**100}})
        strategy.learn(0, trainer)
        state = trainer.state_dict()
        optimizer_state = {**state["optimizer"], "state": {}} if resumed else state["optimizer"]
        state |= {"optimizer": optimizer_state, "scaler": {**state["scaler"], "scale": 2.0**20}}
        trainer.load_state_dict(state)
        strategy.learn(1, trainer)
        assert 2.0**13 < trainer.state_dict()["scaler"]["scale"] < 2.0**20
        return flatten_weights(model)

    separate = train_one_bucket("cuda")
    write_garbage_to_freed_memory(monkeypatch)
    assert torch.allclose(train_one_bucket("cpu"), separate, rtol=1e-3, atol=1e-5)


def test_a_weight_may_get_its_first_gradient_in_a_later_fused_step(monkeypatch):
    """Some weights then have momentum and others do not, with which torch's kernel fails."""
    monkeypatch.setattr(training, "_FUSED_DEVICE", "cpu")
    model = torch.nn.ModuleList([torch.nn.Linear(2, 1, bias=False) for _ in range(2)])
    optimizer = training.build_optimizer(model, fp16(strategy="naive", momentum=0.5, lr=1))
    before = [weight.detach().clone() for weight in model.parameters()]
    training.create_momentum(optimizer)
    write_garbage_to_freed_memory(monkeypatch)
    for used in ([0], [0, 1]):
        optimizer.zero_grad()
        for index in used:
            model[index].weight.grad = torch.ones(1, 2)
        optimizer.step()
    first, second = (old - layer.weight for old, layer in zip(before, model, strict=True))
    assert torch.allclose(first, torch.full((1, 2), 2.5))
    assert torch.allclose(second, torch.full((1, 2), 1.0))


class Steep(Strategy):
    """Has the loss of naive, and gradients that overflow float16 at every scale."""

    def compute_loss(self, forward, batch):
        loss = super().compute_loss(forward, batch)
        return loss + (loss - loss.detach()) * 1e36


def test_gradients_that_are_never_finite_are_reported(tmp_path):
    """Otherwise training would end with the initial model."""
    steep = fp16(strategy=f"{__name__}:Steep", epochs=20, batch_size=4)
    with pytest.raises(DivergedError, match="gradients on bucket key0 are not finite in float16"):
        train_all(image_stream(tmp_path), steep)


def test_derpp_stores_logits_in_float32(tmp_path):
    """Whatever the precision: bytes are counted so."""
    stream = image_stream(tmp_path)
    for precision in ("bf16", "fp16"):
        _, states, _ = train_with_states(stream, fp16(strategy="derpp", precision=precision))
        assert parse_state(states[-1]).snapshot.tensors["strategy/_logits"].dtype == torch.float32


@pytest.mark.parametrize("name", ["agem", "derpp", "ewc"])
def test_flops_equal_those_of_float32(tmp_path, name):
    stream = image_stream(tmp_path)
    exact, scaled = (
        [cost.training_flops for cost in train_costs(stream, fp16(strategy=name, precision=p))]
        for p in ("off", "fp16")
    )
    assert exact == scaled
    assert exact[-1] > 0
