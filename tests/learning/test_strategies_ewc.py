"""EWC, compared with its definition: one image at a time, one quadratic per bucket, autograd."""

from unittest import mock

import pytest
import torch
from learning_streams import config, read_pixels
from strategy_runs import (
    assert_close,
    assert_identical,
    build_strategy,
    feature_stream,
    image_stream,
    on_features,
    random_head,
)
from torch import nn

from clear_mlflow.learning.device import RngPurpose, build_generator, cudnn_benchmark
from clear_mlflow.learning.process_group import ProcessGroup
from clear_mlflow.learning.samples import normalise
from clear_mlflow.learning.strategies import ewc


def small_network():
    torch.manual_seed(0)
    body = nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Flatten()
    model = nn.Sequential(*body, nn.Linear(2 * 6 * 6, 3))
    model[1].running_mean.normal_()
    return model


def literal_fisher(model, images, order):
    """Compute importances image by image and label by label, with autograd."""
    model.eval()
    total = [torch.zeros_like(weight) for weight in model.parameters()]
    for n in order:
        chance = model(images[n : n + 1])[0].softmax(0).tolist()
        for label, share in enumerate(chance):
            likelihood = model(images[n : n + 1])[0].log_softmax(0)[label]
            slopes = torch.autograd.grad(likelihood, list(model.parameters()))
            for weight, slope in zip(total, slopes, strict=True):
                weight += share * slope**2 / len(order)
    return total


@pytest.mark.parametrize("at_once", [2, 256])
def test_fisher_equals_the_mean_squared_gradient_of_each_image(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(ewc, "_MAX_GRADIENTS", at_once)
    stream = image_stream(tmp_path, train=(3, 11))
    settings = config(strategy="ewc", strategy_args="images=8", seed=5)
    model = small_network()
    strategy, _ = build_strategy(stream, settings, model)
    order = torch.randperm(11, generator=build_generator(5, RngPurpose.FISHER, 1, 0))[:8].tolist()
    images = normalise(read_pixels(stream.train(1)))
    assert_close(strategy._compute_fisher(1), literal_fisher(model, images, order))


def test_all_images_are_used_if_none_are_left_out():
    """0 means no limit, like a number above the bucket's."""
    stream, settings = feature_stream(), on_features(strategy="ewc", strategy_args="images=0")
    model, _ = random_head()
    strategy, _ = build_strategy(stream, settings, model)
    expected = literal_fisher(model, stream.train(0).images, range(9))
    assert_close(strategy._compute_fisher(0), expected)


def after_three_buckets(arguments, lr=0.0001):
    """Return a strategy after three buckets, its importances, weights, and later weights."""
    stream = feature_stream()
    settings = on_features(strategy="ewc", strategy_args=arguments, lr=lr)
    model, _ = random_head()
    strategy, _ = build_strategy(stream, settings, model)
    weights = list(model.parameters())
    fishers, ends = [], []
    for bucket_index in range(3):
        with torch.no_grad():
            for weight in weights:
                weight += torch.randn_like(weight) / 3
        strategy.after_bucket(bucket_index)
        fishers.append(strategy._compute_fisher(bucket_index))
        ends.append([weight.detach().clone() for weight in weights])
    with torch.no_grad():
        for weight in weights:
            weight += torch.randn_like(weight)
    return strategy, weights, fishers, ends


def compute_added_gradients(strategy, weights):
    before = [torch.randn_like(weight) for weight in weights]
    for weight, gradient in zip(weights, before, strict=True):
        weight.grad = gradient.clone()
    strategy.before_step()
    return [weight.grad - gradient for weight, gradient in zip(weights, before, strict=True)]


def assert_adds(strategy, weights, penalty):
    expected = torch.autograd.grad(penalty, weights)
    assert_close(compute_added_gradients(strategy, weights), expected, atol=1e-5)


def test_the_penalty_has_one_parabola_per_past_bucket():
    strategy, weights, fishers, ends = after_three_buckets("strength=70")
    penalty = 0
    for fisher, end in zip(fishers, ends, strict=True):
        for i, weight in enumerate(weights):
            penalty += 70 / 2 * (fisher[i] * (weight - end[i]) ** 2).sum()
    assert_adds(strategy, weights, penalty)


@pytest.mark.parametrize("gamma", [0, 0.6, 1])
def test_online_there_is_one_parabola_that_fades(gamma):
    """F*_k = gamma F*_(k-1) + F_k, around the newest weights; gamma F* is applied."""
    arguments = f"strength=70,online=yes,gamma={gamma}"
    strategy, weights, fishers, ends = after_three_buckets(arguments)
    penalty = 0
    for i, weight in enumerate(weights):
        running = gamma * (gamma * fishers[0][i] + fishers[1][i]) + fishers[2][i]
        penalty += 70 / 2 * (gamma * running * (weight - ends[2][i]) ** 2).sum()
    assert_adds(strategy, weights, penalty)


def test_a_penalty_step_does_not_overshoot():
    """Curvatures above 1 / lr are reduced to it."""
    strategy, weights, _, ends = after_three_buckets("strength=70,online=yes", lr=0.05)
    stiff = [70 * 0.95 * part for part in strategy._curvature]
    assert any((part > 20).any() for part in stiff)
    assert any((part < 20).any() for part in stiff)
    away = [weight.detach() - end for weight, end in zip(weights, ends[2], strict=True)]
    expected = [torch.clamp(part, max=20) * way for part, way in zip(stiff, away, strict=True)]
    assert_close(compute_added_gradients(strategy, weights), expected, atol=1e-5)


def test_small_importances_are_added():
    """The minimum is the mean weighted by curvatures, also far below one."""
    model, _ = random_head()
    strategy, _ = build_strategy(feature_stream(), on_features(strategy="ewc"), model)
    for minimum, curvature in ((0.0, 1e-20), (4.0, 3e-20)):
        for weight in model.parameters():
            weight.data.fill_(minimum)
        fisher = [torch.full_like(weight, curvature) for weight in model.parameters()]
        strategy._compute_fisher = lambda bucket_index, fisher_values=fisher: fisher_values
        strategy.after_bucket(0)
    assert_close(strategy._vertex, [torch.full_like(weight, 3.0) for weight in model.parameters()])


def test_an_unimportant_weight_has_no_penalty():
    stream = feature_stream()
    model, _ = random_head()
    strategy, _ = build_strategy(stream, on_features(strategy="ewc"), model)
    fetched = stream._fetch

    def without_first(*indices):
        features = fetched(*indices)
        features[:, 0] = 0
        return features

    stream._fetch = without_first
    for bucket_index in range(3):
        strategy.after_bucket(bucket_index)
    with torch.no_grad():
        model.weight += 1
    added, _ = compute_added_gradients(strategy, list(model.parameters()))
    assert (added[:, 0] == 0).all()
    assert (added[:, 1:] != 0).all()


@pytest.mark.parametrize("size", [2, 5])
def test_processes_divide_the_images_and_use_the_sum(tmp_path, size):
    parts, exchanged = [], []

    class Exchanging(ProcessGroup):
        def all_reduce(self, numbers):
            parts[-1].append(numbers.clone())
            # What comes back is what counts, not what a process has found by itself.
            exchanged[-1].append(numbers.fill_(len(exchanged[-1])))
            return numbers

    model = small_network()
    settings = config(strategy="ewc", strategy_args="images=4")
    strategy, _ = build_strategy(image_stream(tmp_path), settings, model)
    full_fisher = strategy._compute_fisher(0)
    for rank in range(size):
        strategy.group = Exchanging(rank, size)
        parts.append([])
        exchanged.append([])
        assert_identical(strategy._compute_fisher(0), exchanged[-1])
    assert_close([sum(of_weight) for of_weight in zip(*parts, strict=True)], full_fisher)


def test_the_gradients_at_a_time_do_not_depend_on_free_memory(monkeypatch):
    """Of a ResNet-18: six on a CPU and 24 on a GPU, in each process, so that sums are equal."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", mock.Mock(side_effect=AssertionError))
    size = 11_181_642
    assert ewc.count_gradients_at_once(size, torch.device("cpu")) == 6
    assert ewc.count_gradients_at_once(size, torch.device("cuda")) == 24
    assert ewc.count_gradients_at_once(2**40, torch.device("cuda")) == 1  # the least


def test_cudnn_does_not_search_algorithms_for_the_fisher_information(monkeypatch):
    """Its passes differ in size from those of steps. The setting of the steps is restored."""
    searches = []
    compute = ewc.compute_squared_gradients

    def watch(*arguments):
        searches.append(torch.backends.cudnn.benchmark)
        return compute(*arguments)

    monkeypatch.setattr(ewc, "compute_squared_gradients", watch)
    strategy, _ = build_strategy(feature_stream(), on_features(strategy="ewc"), random_head()[0])
    with cudnn_benchmark():
        strategy.after_bucket(0)
        assert torch.backends.cudnn.benchmark
    assert not any(searches)
    assert searches
