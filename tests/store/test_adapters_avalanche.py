"""The matrix in MLflow contains the values of Avalanche's own metrics, in Avalanche's loop."""

import warnings

import dill
import mlflow
import numpy as np
import pytest
import torch
from adapter_loops import CLASSES, check_complete_loop, draw_bucket
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch.utils.data import TensorDataset

from clear_mlflow.adapters.avalanche import MLflowAccuracyMatrix
from clear_mlflow.core.errors import ConfigError


class Images(TensorDataset):
    """Return a dataset with the targets that Avalanche needs."""

    @property
    def targets(self):
        return self.tensors[1]


def images(count, bucket, generator):
    return as_classification_dataset(Images(*draw_bucket(count, bucket, generator)))


def benchmark(num_buckets, num_test_streams=None):
    generator = torch.Generator().manual_seed(0)
    streams = {
        "train": [images(20, j, generator) for j in range(num_buckets)],
        # All of different sizes: counts must not come from a neighbour's.
        "test": [images(7 + j, j, generator) for j in range(num_test_streams or num_buckets)],
    }
    return benchmark_from_datasets(**streams)


def strategy(logger, *, epochs=1, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(CLASSES, CLASSES)
    levels = dict.fromkeys(("minibatch", "epoch", "experience", "stream"), True)
    metrics = loss_metrics(experience=True), accuracy_metrics(**levels)
    options |= {"train_mb_size": 5, "train_epochs": epochs, "eval_mb_size": 4}
    options["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.5)
    return Naive(model=model, evaluator=EvaluationPlugin(*metrics, loggers=[logger]), **options)


def start(num_buckets, **options):
    logger = MLflowAccuracyMatrix()
    return benchmark(num_buckets), logger, strategy(logger, **options)


def own_numbers(results, num_buckets):
    return [results[f"Top1_Acc_Exp/eval_phase/test_stream/Exp{j:03d}"] for j in range(num_buckets)]


@pytest.fixture(autouse=True)
def _quiet():
    warnings.filterwarnings("ignore", category=DeprecationWarning)


@pytest.mark.slow
def test_the_matrix_equals_avalanches_cell_by_cell(store, experiment_id):
    stream = benchmark(12)
    logger = MLflowAccuracyMatrix(dataset="toy", strategy="naive", seed=0)
    trained = strategy(logger)
    expected = [own_numbers(trained.eval(stream.test_stream), 12)]
    for experience in stream.train_stream:
        trained.train(experience)
        trained.eval(stream.train_stream)  # another stream: no row
        expected.append(own_numbers(trained.eval(stream.test_stream), 12))
    check_complete_loop(store, experiment_id, logger, trained.model, expected, atol=1e-7)
    assert "renate/micro_average_accuracy" in logger.metrics
    trained.eval(stream.test_stream)  # once more, with the same numbers: no news


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"eval_every": 0}, {"eval_every": 1, "epochs": 2}])
def test_evaluations_within_training(store, options):
    stream, logger, trained = start(3, **options)
    expected = []
    for experience in stream.train_stream:
        trained.train(experience, eval_streams=[stream.test_stream])
        # What the last test within or after training left.
        expected.append(own_numbers(trained.evaluator.get_last_metrics(), 3))
    assert logger.matrix.is_complete
    assert logger.matrix.initial is not None
    np.testing.assert_allclose(logger.matrix.values, expected, atol=1e-7)


def test_evaluations_of_some_buckets_are_combined(store):
    stream, logger, trained = start(4)
    expected = np.full((4, 4), np.nan)
    with mlflow.start_run() as active:
        for k, experience in enumerate(stream.train_stream):
            trained.train(experience)
            for j in range(k + 1):
                results = trained.eval([stream.test_stream[j]])
                expected[k, j] = own_numbers({**results}, j + 1)[j]
        logger.close()
        assert mlflow.active_run().info.run_id == active.info.run_id == logger.run_id
    np.testing.assert_allclose(logger.matrix.values, expected, atol=1e-7)
    assert logger.matrix.num_instances.tolist() == [7, 8, 9, 10]


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 6])  # 20 images: with and without a smaller last part
@pytest.mark.parametrize("all_at_once", [False, True])
def test_an_online_stream_has_a_row_for_each_original_experience(store, size, all_at_once):
    stream, logger, trained = start(3, **({"eval_every": 0} if all_at_once else {}))
    online = split_online_stream(stream.train_stream, experience_size=size)
    expected = {}
    if all_at_once:
        trained.train(online, eval_streams=[stream.test_stream])
    else:
        for part in online:
            trained.train(part)
            results = trained.eval(stream.test_stream)
            expected[part.origin_experience.current_experience] = own_numbers(results, 3)
        np.testing.assert_allclose(logger.matrix.values, list(expected.values()), atol=1e-7)
    last = own_numbers(trained.evaluator.get_last_metrics(), 3)
    assert logger.matrix.is_complete
    np.testing.assert_allclose(logger.matrix.values[2], last, atol=1e-7)


@pytest.mark.slow
def test_an_incomplete_online_stream_has_separate_rows(store):
    stream, logger, trained = start(3)
    expected = []
    for part in split_online_stream(stream.train_stream, experience_size=5):
        if part.is_first_subexp:
            trained.train(part)
            expected.append(own_numbers(trained.eval(stream.test_stream), 3))
    logger.close()
    np.testing.assert_allclose(logger.matrix.values[:2], expected[:2], atol=1e-7)


@pytest.mark.slow
def test_intervals_may_evaluate_some_experiences(store):
    stream, logger, trained = start(3, eval_every=1, epochs=2)
    expected = []
    for k, experience in enumerate(stream.train_stream):
        trained.train(experience, eval_streams=[stream.test_stream[: min(k + 1, 2)]])
        results = trained.eval(stream.test_stream if k != 1 else stream.test_stream[:2])
        expected.append(own_numbers(results, 3) if k != 1 else [*own_numbers(results, 2), np.nan])
        trained.eval(stream.test_stream[:1])
    np.testing.assert_allclose(logger.matrix.values, expected, atol=1e-7)
    assert np.isnan(logger.matrix.values).sum() == 1


@pytest.mark.slow
def test_one_test_set_for_all_experiences_is_an_error(store):
    stream = benchmark(3, num_test_streams=1)
    with pytest.raises(ConfigError, match="'test' has 1 experience, and 3 are trained"):
        strategy(MLflowAccuracyMatrix(), eval_every=0).train(
            stream.train_stream, eval_streams=[stream.test_stream]
        )


def test_options_are_checked_in_the_constructor():
    """Not after the first bucket is trained."""
    with pytest.raises(ConfigError, match="unexpected keyword argument 'sede'"):
        MLflowAccuracyMatrix(sede=1)
    with pytest.raises(ConfigError, match="protocol is 'offline'"):
        MLflowAccuracyMatrix(protocol="offline")


@pytest.mark.slow
def test_a_checkpoint_may_contain_the_logger(store):
    """Avalanche's checkpoints contain the strategy's plugins. The run continues after one."""
    with mlflow.start_run():
        stream, logger, trained = start(3)
        trained.train(stream.train_stream[0])
        trained.eval(stream.test_stream)
        logger.close()
        resumed = dill.loads(dill.dumps(logger))
        trained.evaluator.loggers = [resumed]
        for experience in stream.train_stream[1:]:
            trained.train(experience)
            results = trained.eval(stream.test_stream)
        assert resumed.run_id == logger.run_id
        assert resumed.matrix.is_complete
        np.testing.assert_allclose(resumed.matrix.values[2], own_numbers(results, 3), atol=1e-7)
