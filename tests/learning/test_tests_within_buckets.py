"""Tests within a bucket, and that they do not change training."""

import dataclasses

import feature_streams
import pytest
from learning_streams import config
from strategy_runs import (
    assert_identical,
    feature_stream,
    image_stream,
    on_features,
    train_all,
    train_with_states,
)

from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import compute_batch_bounds
from clear_mlflow.learning.session import resolve_config
from clear_mlflow.learning.strategies import list_strategies, load_strategy

WITHOUT_STEPS = ("joint", "ncm", "slda")
DESCENDING = sorted(set(list_strategies()) - set(WITHOUT_STEPS))


class Kept(TrainingProgress):
    def __init__(self):
        self.tests, self.order = [], []

    def test_done(self, test):
        self.tests.append(test)
        self.order.append((test.bucket, test.test))

    def row_measured(self, row):
        self.order.append(row.row)


def collect_tests(stream, parameters):
    progress = Kept()
    return progress, [trained.row for trained in train(stream, parameters, progress=progress)]


def assert_nothing_changed(make_stream, parameters):
    without = train_with_states(make_stream(), parameters)
    tested = dataclasses.replace(parameters, test_every="1steps")
    progress, _ = collect_tests(make_stream(), tested)
    assert progress.tests
    *rows_and_states, weights = train_with_states(make_stream(), tested)
    assert rows_and_states == [*without[:2]]  # also the generators of random numbers
    assert_identical(weights, without[2])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", DESCENDING)
def test_a_head_on_features_learns_the_same(strategy):
    assert_nothing_changed(feature_stream, on_features(strategy=strategy, optimizer_state="keep"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted(set(DESCENDING) - {"linear"}))
def test_a_network_learns_the_same(tmp_path, strategy):
    assert_nothing_changed(lambda: image_stream(tmp_path), config(strategy=strategy))


def test_a_model_that_draws_random_numbers_when_it_is_tested_learns_the_same(tmp_path):
    settings = config(strategy="strategy_runs:WithNoise")
    assert_nothing_changed(lambda: image_stream(tmp_path), settings)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("interval", ["1", "2", "3steps", "2steps"])
def test_tests_are_at_each_multiple_of_the_interval_except_the_last(tmp_path, interval):
    stream = image_stream(tmp_path, train=(9, 7, 5))
    parameters = config(epochs=4, test_every=interval)
    progress, _ = collect_tests(stream, parameters)
    order: list[object] = [0]
    for bucket, images in enumerate((9, 7, 5), start=1):
        steps = len(compute_batch_bounds(images, 4))
        every = int(interval.removesuffix("steps")) * (1 if "steps" in interval else steps)
        due = [step for step in range(1, 4 * steps) if step % every == 0]
        tests = [test for test in progress.tests if test.bucket == bucket]
        assert [test.step for test in tests] == due
        assert {(test.num_tests, test.num_steps) for test in tests} == {(len(due), 4 * steps)}
        order += [*((bucket, number) for number in range(1, len(due) + 1)), bucket]
    assert progress.order == order


def test_a_test_after_an_epoch_equals_the_row_of_a_shorter_training(tmp_path):
    progress, rows = collect_tests(image_stream(tmp_path), config(epochs=4, test_every=1))
    firsts = [test.correct for test in progress.tests if test.bucket == 1]
    shorter = [train_all(image_stream(tmp_path), config(epochs=epochs)) for epochs in (1, 2, 3)]
    assert firsts == [rows[1].row.correct for rows in shorter]
    assert {test.num_instances for test in progress.tests} == {rows[0].num_instances}


def test_a_nan_output_within_a_bucket_ends_the_training(tmp_path):
    with pytest.raises(DivergedError, match=r"after 2 of \d+ steps on bucket key0 .* lower lr"):
        collect_tests(image_stream(tmp_path), config(lr=1e30, epochs=3, test_every="2steps"))


@pytest.mark.parametrize("strategy", WITHOUT_STEPS)
def test_a_strategy_without_steps_in_every_bucket_is_rejected(strategy):
    assert not load_strategy(strategy).steps_in_every_bucket
    settings = feature_streams.config(strategy=strategy, test_every="1")
    with pytest.raises(ConfigError, match="does not take optimiser steps in every bucket"):
        resolve_config(settings)


def test_an_interval_as_long_as_a_bucket_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="test_every is 2 and a bucket takes no more epochs"):
        resolve_config(config(epochs=2, test_every=2))
    stream = image_stream(tmp_path, train=(12, 8))
    with pytest.raises(ConfigError, match="bucket key0 takes 6 steps, after which it is tested"):
        collect_tests(stream, config(epochs=2, test_every="6steps"))
    progress, _ = collect_tests(stream, config(epochs=2, test_every="5steps"))
    assert [(test.bucket, test.step) for test in progress.tests] == [(1, 5)]
    with pytest.raises(ConfigError, match=r"is 11,999 tests .* stores at most 10,000 in all"):
        collect_tests(stream, config(epochs=4000, test_every="1steps"))


def test_a_strategy_defines_the_epochs_of_a_bucket(tmp_path):
    ten = {"strategy": "gdumb", "strategy_args": "epochs=10", "epochs": 2, "memory": 4}
    resolve_config(config(**ten, test_every=9))
    resolve_config(config(**ten, warmup_epochs=9))
    for few, option in (({"test_every": 1}, "test_every"), ({"warmup_epochs": 1}, "warmup_epochs")):
        with pytest.raises(ConfigError, match=f"{option} is 1 and a bucket takes"):
            resolve_config(config(strategy="gdumb", strategy_args="epochs=1", epochs=6, **few))
    stream = image_stream(tmp_path, train=(12, 8))
    for strategy, fewest in (("gdumb", 2), ("naive", 4), ("replay", 6), ("cumulative", 6)):
        parameters = {"strategy": strategy, "epochs": 2, "memory": 4, "test_every": "1steps"}
        tests, _ = collect_tests(stream, config(**parameters))
        assert min(test.num_steps for test in tests.tests) == fewest


def test_a_strategy_that_trains_twice_in_a_bucket_is_reported(tmp_path):
    """The position of a test would be unknown."""
    twice = {"strategy": "strategy_runs:Twice"}
    train_all(image_stream(tmp_path), config(**twice))
    with pytest.raises(ConfigError, match="more than once in one bucket"):
        train_all(image_stream(tmp_path), config(**twice, test_every="1steps"))
