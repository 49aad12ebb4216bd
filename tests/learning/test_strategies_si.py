"""SI, compared with its definition written out step by step."""

import pytest
import torch
from strategy_runs import (
    assert_close,
    build_strategy,
    compute_gradient,
    feature_stream,
    literal_descent,
    on_features,
    random_head,
)


@pytest.mark.parametrize(("clip", "damping"), [(0, 0.05), (0.2, 0.001)])
def test_three_buckets_equal_the_written_out_ones(clip, damping):
    stream = feature_stream()
    arguments = f"strength=0.7,damping={damping}"
    settings = on_features(strategy="si", strategy_args=arguments, clip_norm=clip)
    model, reference = random_head()
    strategy, trainer = build_strategy(stream, settings, model)
    weights = list(reference.parameters())
    anchor = [weight.detach().clone() for weight in weights]
    importance = [torch.zeros_like(weight) for weight in weights]
    for bucket_index in range(3):
        start = [weight.detach().clone() for weight in weights]
        visited, slopes = [], []

        def gradient(
            batch, epoch, step, visited=visited, slopes=slopes, anchor=anchor, importance=importance
        ):
            of_loss = compute_gradient(reference, batch)
            visited.append([weight.detach().clone() for weight in weights])
            slopes.append(of_loss)
            penalty = 0
            for part, weight, end in zip(importance, weights, anchor, strict=True):
                new_importance = torch.clamp(0.7 * part, max=1 / (2 * settings.lr))
                penalty = penalty + (new_importance * (weight - end) ** 2).sum()
            of_penalty = torch.autograd.grad(penalty, weights)
            both = [a + b for a, b in zip(of_loss, of_penalty, strict=True)]
            length = torch.sqrt(sum((slope**2).sum() for slope in both))
            factor = min(1.0, clip / (float(length) + 1e-6)) if clip else 1.0
            return [factor * slope for slope in both]

        samples = stream.train(bucket_index)
        literal_descent(reference, samples, settings, bucket_index, gradient=gradient)
        visited.append([weight.detach().clone() for weight in weights])
        for i, weight in enumerate(weights):
            path = torch.zeros_like(weight)
            for step, slope in enumerate(slopes):
                path -= slope[i] * (visited[step + 1][i] - visited[step][i])
            way = weight.detach() - start[i]
            importance[i] = torch.relu(importance[i] + path / (way**2 + damping))
        anchor = [weight.detach().clone() for weight in weights]

        strategy.learn(bucket_index, trainer)
        strategy.after_bucket(bucket_index)
        assert_close(list(model.parameters()), weights, rtol=1e-3, atol=1e-5)
        assert_close(strategy._importance, importance, rtol=1e-2, atol=1e-3)
        assert_close(strategy._anchor, anchor, rtol=1e-3, atol=1e-5)
    assert any((part > 0.1).any() for part in importance)


def test_negative_importances_become_zero():
    model, _ = random_head()
    arguments = "strength=0.01,damping=0.5"
    settings = on_features(strategy="si", strategy_args=arguments, lr=0.01)
    strategy, _ = build_strategy(feature_stream(), settings, model)
    expected = [torch.zeros_like(weight) for weight in model.parameters()]
    for bucket_index in range(2):
        for i, weight in enumerate(model.parameters()):
            strategy._path[i] = torch.randn_like(weight)
            way = torch.randn_like(weight)
            expected[i] = torch.relu(expected[i] + strategy._path[i] / (way**2 + 0.5))
            with torch.no_grad():
                weight += way
        strategy.after_bucket(bucket_index)
        assert_close(strategy._importance, expected)
        assert all((path == 0).all() for path in strategy._path)
    assert any((part == 0).any() for part in strategy._importance)
