"""The curve within a bucket: its means, steps and cost."""

import math

import pytest
import torch
from curves import Points
from feature_streams import config as on_features
from feature_streams import made_up, training
from learning_streams import CPU, config
from strategy_runs import image_stream

from clear_mlflow.learning.loop import train
from clear_mlflow.learning.samples import FeatureStream
from clear_mlflow.learning.session import resolve_config
from clear_mlflow.learning.strategies import list_strategies
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.observers import LossCurve, count_points
from clear_mlflow.learning.training.trainer import compute_learning_rate


class Literal(Strategy):
    """Naive learning that records the loss of each step as a float."""

    seen: list[float] = []  # noqa: RUF012  (of the one training in its test)

    def compute_loss(self, forward, batch):
        loss = super().compute_loss(forward, batch)
        self.seen.append(loss.item())
        return loss


def collect_points(stream, settings):
    curve = Points()
    list(train(stream, resolve_config(settings), progress=curve))
    return curve.points


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("epochs", [3, 40])
def test_a_point_is_the_mean_loss_since_the_previous_point(tmp_path, epochs):
    Literal.seen = []
    settings = config(strategy=f"{__name__}:Literal", epochs=epochs, schedule="cosine")
    measured_points = collect_points(image_stream(tmp_path, train=(11, 8, 9)), settings)
    per_epoch = (3, 2, 2)  # batches of 4; a rest of one image joins the batch before it
    assert len(Literal.seen) == epochs * sum(per_epoch)
    first, at = 0, 0
    for batches in per_epoch:
        steps = epochs * batches
        points = {9: 9, 6: 6, 120: 12, 80: 10}[steps]
        for number in range(points):
            last = first + steps * (number + 1) // points
            point = measured_points[at]
            window = Literal.seen[(measured_points[at - 1].step if at else 0) : last]
            assert point.step == last
            assert point.loss == pytest.approx(sum(window) / len(window), rel=1e-5)
            assert point.lr == compute_learning_rate(settings, (last - 1 - first) // batches)
            assert point.images_per_second > 0
            at += 1
        first += steps
    assert at == len(measured_points)
    times = [point.time for point in measured_points]
    assert times == sorted(times)


@pytest.mark.fast_cases(7)
@pytest.mark.parametrize("strategy", list_strategies())
def test_every_strategy_that_takes_steps_has_a_curve(strategy):
    stream = FeatureStream(*made_up(), device=CPU)
    points = collect_points(stream, on_features(strategy=strategy, memory=12, batch_size=8))
    steps = [point.step for point in points]
    assert steps == sorted(set(steps))
    assert all(math.isfinite(point.loss) for point in points)
    assert bool(steps) == (strategy not in ("ncm", "slda"))


def test_a_row_includes_the_points_of_its_bucket():
    rows = list(training(on_features(batch_size=8)).rows())
    steps = [[point.step for point in row.curve] for row in rows]
    assert steps[0] == []
    assert [of_row[-1] for of_row in steps[1:]] == [28, 28 + 14, 28 + 14 + 21]
    assert [len(of_row) for of_row in steps[1:]] == [10, 10, 10]


def test_a_long_bucket_reports_its_points_early(monkeypatch):
    monkeypatch.setattr("clear_mlflow.learning.progress._SECONDS_BETWEEN_POINTS", 0.0)
    live = []
    rows = list(
        training(on_features(batch_size=8)).rows(lambda message: live.extend(message.curve))
    )
    assert len(live) == 30
    assert [point.step for point in live] == sorted({point.step for point in live})
    assert all(row.curve == () for row in rows)


def test_long_buckets_have_a_limited_number_of_points():
    steps = (1, 9, 10, 99, 100, 119, 120, 999, 1000, 10**9)
    assert [count_points(n) for n in steps] == [1, 9, 10, 10, 10, 11, 12, 99, 100, 100]


class Event:
    """A GPU event that is pending until it is waited for."""

    waited: list = []  # noqa: RUF012  (in the one test)

    def query(self):
        return self in self.waited

    def synchronize(self):
        self.waited.append(self)

    def elapsed_time(self, later):
        assert later in self.waited
        return 500.0  # milliseconds


def test_points_are_reported_when_the_device_has_computed_them(monkeypatch):
    home = "clear_mlflow.learning.training.observers"
    monkeypatch.setattr(f"{home}.record_event", lambda device: Event())
    points, made = Points(), []
    curve = LossCurve(points, CPU)
    monkeypatch.setattr(points, "curve_measured", made.append)
    curve.begin_bucket(20, 20)
    curve.lr = 0.1
    for step in range(20):
        curve.step_done(torch.tensor(float(step)), 4, step + 1)
        if step == 12:
            curve._pending[0][0].event.synchronize()
    assert [point.step for point in made] == [2]
    curve.end_bucket()
    assert [point.step for point in made] == list(range(2, 21, 2))
    assert [point.loss for point in made] == [step + 0.5 for step in range(0, 20, 2)]
    assert {point.images_per_second for point in made} == {16.0}
