"""Avalanche: a logger for its EvaluationPlugin, and the matrix is in MLflow.

``pip install avalanche-lib``, then ``python examples/avalanche_loop.py`` (seconds): the buckets of
own_loop.py, trained by Avalanche's own replay. Nothing is rebuilt from the names of its metrics.
"""

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Replay
from own_loop import Part, stream
from torch.utils.data import TensorDataset

from clear_mlflow.adapters.avalanche import MLflowAccuracyMatrix


class Scans(TensorDataset):
    """Pixels and classes; Avalanche asks for the classes by this name."""

    @property
    def targets(self) -> torch.Tensor:
        """The classes."""
        return self.tensors[1]


def dataset(part: Part) -> object:
    """A part of a bucket as Avalanche takes it."""
    pixels = torch.from_numpy(part.pixels).float()
    return as_classification_dataset(Scans(pixels, torch.from_numpy(part.labels).long()))


def main() -> None:
    """Avalanche's usual loop: train on an experience, test on the whole stream."""
    torch.manual_seed(0)
    parts = stream()
    benchmark = benchmark_from_datasets(
        train=[dataset(train) for train, _ in parts], test=[dataset(test) for _, test in parts]
    )
    model = torch.nn.Linear(64, 10)
    matrix = MLflowAccuracyMatrix(dataset="turned scans", strategy="avalanche replay", seed=0)
    strategy = Replay(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=32,
        eval_mb_size=100,
        train_epochs=5,
        mem_size=200,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[matrix]),
    )
    strategy.eval(benchmark.test_stream)  # row 0: before any training
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)

    print(matrix.matrix.values)
    for name, metric in matrix.metrics.items():
        print(f"{name:32} {metric.text} {metric.note}")


if __name__ == "__main__":
    main()
