"""Trainings with known rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.learning.measured import CurvePoint, Measurement, ignore
from clear_mlflow.learning.parameters.config import TrainConfig

NUM_TEST = 100


@dataclass
class KnownTraining:
    """Yields the passed rows, then raises the passed error."""

    correct: Sequence[Sequence[int]]  # row by row, the initialisation first; of NUM_TEST images
    ends_with: BaseException | None = None
    digest: str = "sha256:" + "ab" * 32
    metrics: str = "clear,renate"
    # Points of each bucket's curve by the row that follows: while it is trained on, and with it.
    live: Mapping[int, Sequence[CurvePoint]] = field(default_factory=dict)
    curve: Mapping[int, Sequence[CurvePoint]] = field(default_factory=dict)
    # Tests inside each bucket by the row that follows.
    tests: Mapping[int, Sequence[AnytimeRow]] = field(default_factory=dict)

    @property
    def config(self) -> TrainConfig:
        parameters = {
            "seed": "7",
            "metrics": self.metrics,
            "test_every": "2" if self.tests else "off",
        }
        return TrainConfig.resolve(parameters)

    @property
    def dataset(self) -> DatasetDescription:
        buckets = tuple(str(j + 1) for j in range(len(self.correct[0])))
        return DatasetDescription(
            name="digits",
            digest=self.digest,
            source="somewhere",
            class_names=tuple(map(str, range(10))),
            division="released",
            buckets=buckets,
            num_train=(500,) * len(buckets),
            num_test=(NUM_TEST,) * len(buckets),
        )

    def rows(self, on_message=ignore) -> Iterator[Measurement]:
        dataset = self.dataset
        for i, correct in enumerate(self.correct):
            if i in self.live:
                on_message(Measurement(curve=tuple(self.live[i])))
            for test in self.tests.get(i, ()):
                on_message(Measurement(test=test))
            row = AccuracyRow(i, dataset.buckets, tuple(correct), dataset.num_test)
            yield Measurement(row, curve=tuple(self.curve.get(i, ())))
        if self.ends_with is not None:
            raise self.ends_with


# Four buckets: forgetting, and less accuracy the further ahead.
FOUR_BUCKETS = [
    [10, 11, 9, 10],
    [90, 80, 70, 60],
    [85, 92, 82, 71],
    [80, 88, 94, 83],
    [70, 81, 90, 95],
]
EXPECTED = AccuracyMatrix(
    [[c / NUM_TEST for c in row] for row in FOUR_BUCKETS[1:]],
    initial=[c / NUM_TEST for c in FOUR_BUCKETS[0]],
    num_instances=[NUM_TEST] * 4,
)
