"""Each strategy next to Avalanche 0.6: the same weights after every bucket.

Both start from the same weights and use full batches, so that the order of images has no effect.
Where Avalanche differs from the paper, a subclass here undoes it, and a test shows that the
difference matters. docs/parity.md is true as long as these tests pass.
"""

import copy

import pytest
import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.training import plugins
from avalanche.training.plugins.synaptic_intelligence import SynapticIntelligencePlugin
from avalanche.training.supervised import Cumulative, Naive
from plain_avalanche import (
    LwfInEvaluation,
    PerImageEwc,
    differentiate_true_labels_only,
    train_by_avalanche,
)
from strategy_runs import (
    CLASSES,
    WIDTH,
    feature_stream,
    flatten_weights,
    learn_buckets,
    on_features,
)
from torch import nn

# All buckets of one size: Avalanche weighs what A-GEM remembers by bucket, we by image.
COUNTS = (24, 24, 24, 24)
TOLERANCE = 1e-5


@pytest.fixture
def stream():
    """A stream whose first bucket shows every class, as every bucket of CLEAR does."""
    made = feature_stream(COUNTS)
    assert all(len(set(made.labels(k))) == CLASSES for k in range(len(COUNTS)))
    return made


def network(*, norm=False, bias=True):
    """Return two layers: not convex, so that methods do not converge to the same weights."""
    torch.manual_seed(5)
    middle = [nn.BatchNorm1d(10)] if norm else []
    head = nn.Linear(10, CLASSES, bias=bias)
    return nn.Sequential(nn.Linear(WIDTH, 10), *middle, nn.Tanh(), head)


def train_own(stream, model, strategy, lr=0.1, **changes):
    parameters = {"batch_size": "full", "epochs": "6", "lr": str(lr), "lr_step": "100"}
    parameters |= {"optimizer_state": "keep", "memory": "100", "strategy": strategy, **changes}
    trained = learn_buckets(stream, on_features(**parameters), copy.deepcopy(model))
    return [flatten_weights(model) for model in trained]


def train_avalanche(stream, model, plugin=None, strategy=Naive, lr=0.1):
    buckets = [stream.train(bucket_index) for bucket_index in range(len(stream.keys))]
    tensors = [(bucket.images, bucket.labels) for bucket in buckets]
    benchmark = tensors_benchmark(tensors, tensors, task_labels=[0] * len(buckets))
    model = copy.deepcopy(model)
    plugin = plugin and plugin(model)
    trained = train_by_avalanche(benchmark, model, plugin, strategy, lr=lr, epochs=6)
    return [flatten_weights(model) for model in trained]


def apart(first, second):
    """Return the largest difference of a weight, after each bucket."""
    return [(a - b).abs().max().item() for a, b in zip(first, second, strict=True)]


def assert_same(first, second):
    """Check that weights are equal after every bucket, and changed by each."""
    assert max(apart(first, second)) < TOLERANCE
    assert min(apart(first[1:], first[:-1])) > 0.01


def assert_other(first, second):
    """Check that weights are equal after the first bucket, and differ after the last."""
    assert apart(first, second)[-1] > 100 * TOLERANCE


@pytest.mark.parametrize(("name", "strategy"), [("naive", Naive), ("cumulative", Cumulative)])
def test_strategies_without_arguments(stream, name, strategy):
    model = network()
    expected = train_avalanche(stream, model, strategy=strategy)
    assert_same(train_own(stream, model, name), expected)


def test_ewc(stream, monkeypatch):
    """One quadratic per bucket. Their lambda lacks the paper's factor of one half."""
    differentiate_true_labels_only(monkeypatch)
    model = network()
    cells = train_own(stream, model, "ewc", strategy_args="strength=2,images=0")
    assert_same(cells, train_avalanche(stream, model, lambda _: PerImageEwc(ewc_lambda=1.0)))
    assert_other(cells, train_avalanche(stream, model))


def test_ewc_online(stream, monkeypatch):
    """Only the newest bucket's weights. Their importances decay once less."""
    differentiate_true_labels_only(monkeypatch)
    model = network()
    arguments = "strength=4,online=yes,gamma=0.5,images=0"
    cells = train_own(stream, model, "ewc", strategy_args=arguments)
    online = {"ewc_lambda": 1.0, "mode": "online", "decay_factor": 0.5}
    assert_same(cells, train_avalanche(stream, model, lambda _: PerImageEwc(**online)))


def test_avalanche_squares_the_gradient_of_a_batchs_mean(stream):
    """For a bucket in one batch, the penalty nearly vanishes."""
    model = network()
    per_batch = train_avalanche(stream, model, lambda _: plugins.EWCPlugin(ewc_lambda=1.0))
    assert_other(train_avalanche(stream, model, lambda _: PerImageEwc(ewc_lambda=1.0)), per_batch)
    assert apart(per_batch, train_avalanche(stream, model))[-1] < 0.1


class LossAloneSi(SynapticIntelligencePlugin):
    """Avalanche's SI with a path integral of the loss without the penalty."""

    def after_training_iteration(self, strategy, **kwargs):
        for name, weight in self.allowed_parameters(strategy.model, set()):
            before = self.syn_data["old_theta"][name].data
            importance, anchor = self.ewc_data[1][name].data, self.ewc_data[0][name].data
            penalty = self.si_lambda[0] * importance * (before - anchor)
            weight.grad -= penalty.view_as(weight)
        super().after_training_iteration(strategy, **kwargs)


SI_DEVIATIONS = {"aliased weights", "penalty in the path", "bound"}


def avalanches_si(stream, model, monkeypatch, deviations):
    """Avalanche's SI with some of its deviations undone."""
    if "aliased weights" not in deviations:

        @torch.no_grad()
        def extract_weights(model, target, excluded):
            for name, weight in SynapticIntelligencePlugin.allowed_parameters(model, excluded):
                target[name].data = weight.detach().flatten().clone()

        monkeypatch.setattr(
            SynapticIntelligencePlugin, "extract_weights", staticmethod(extract_weights)
        )
    update = SynapticIntelligencePlugin.update_ewc_data

    def update_ewc_data(net, ewc_data, syn_data, clip_to, *arguments, **options):
        largest = clip_to if "bound" in deviations else float("inf")
        update(net, ewc_data, syn_data, largest, *arguments, **options)

    monkeypatch.setattr(
        SynapticIntelligencePlugin, "update_ewc_data", staticmethod(update_ewc_data)
    )
    plugin = SynapticIntelligencePlugin if "penalty in the path" in deviations else LossAloneSi
    return train_avalanche(stream, model, lambda _: plugin(si_lambda=1.0, eps=0.1))


def test_si(stream, monkeypatch):
    """Their lambda is twice the paper's c."""
    model = network()
    cells = train_own(stream, model, "si", strategy_args="strength=0.5,damping=0.1")
    assert_same(cells, avalanches_si(stream, model, monkeypatch, set()))
    assert_other(cells, train_avalanche(stream, model))


@pytest.mark.parametrize("deviation", sorted(SI_DEVIATIONS))
def test_each_deviation_of_avalanches_si_matters(stream, monkeypatch, deviation):
    model = network()
    cells = train_own(stream, model, "si", strategy_args="strength=0.5,damping=0.1")
    assert_other(cells, avalanches_si(stream, model, monkeypatch, {deviation}))


def test_avalanches_si_has_no_importances_on_a_cpu(stream):
    """It stores the weights before a step without copying them."""
    model = network()
    plugin = SynapticIntelligencePlugin(si_lambda=1e6, eps=0.1)
    assert_same(train_avalanche(stream, model, lambda _: plugin), train_avalanche(stream, model))


def avalanches_lwf(stream, model, plugin):
    return train_avalanche(stream, model, lambda _: plugin(alpha=1.5, temperature=2))


@pytest.mark.slow
def test_lwf(stream):
    """Softened predictions of the old model, of all classes, not multiplied by T squared."""
    model = network(norm=True)
    cells = train_own(stream, model, "lwf", strategy_args="strength=1.5,temperature=2")
    assert_same(cells, avalanches_lwf(stream, model, LwfInEvaluation))
    assert_other(cells, train_avalanche(stream, model))


def test_avalanches_teacher_stays_in_training_mode(stream):
    """Batch normalisation uses the new batch's statistics."""
    model = network(norm=True)
    as_it_is = avalanches_lwf(stream, model, plugins.LwFPlugin)
    assert_other(as_it_is, avalanches_lwf(stream, model, LwfInEvaluation))


def test_agem(stream):
    """The same projection, with all seen images as reference."""
    model = network()
    limited = train_own(stream, model, "agem", lr=0.3)
    plugin = plugins.AGEMPlugin(COUNTS[0], sum(COUNTS))
    assert_same(limited, train_avalanche(stream, model, lambda _: plugin, lr=0.3))
    assert_other(limited, train_avalanche(stream, model, lr=0.3))


def test_cwr(stream):
    """A head without a bias, which Avalanche neither resets nor consolidates: the heads differ."""
    for model, compare in (network(bias=False), assert_same), (network(), assert_other):
        expected = train_avalanche(stream, model, plugins.CWRStarPlugin)
        compare(train_own(stream, model, "cwr"), expected)


def test_replay_in_equal_parts(stream):
    model = network()
    mixed = train_own(stream, model, "replay", strategy_args="batches=balanced")
    assert_same(mixed, train_avalanche(stream, model, lambda _: plugins.ReplayPlugin(mem_size=100)))
