"""The loss curve of a training, for tests."""

from clear_mlflow.learning.progress import TrainingProgress


class Points(TrainingProgress):
    """Records the points of a training's curve, and the tests within its buckets."""

    def __init__(self):
        self.points = []
        self.tests = []

    def curve_measured(self, point):
        self.points.append(point)

    def test_done(self, test):
        self.tests.append(test)

    @property
    def losses(self):
        return {point.step: point.loss for point in self.points}
