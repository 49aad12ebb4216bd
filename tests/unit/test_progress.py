"""The progress of a training: bars on a terminal, otherwise one line per bucket."""

import io
import re

import pytest

from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.measured import CurvePoint, ignore
from clear_mlflow.learning.progress import (
    CollectingProgress,
    LineProgress,
    TerminalProgress,
    build_progress,
)

KEYS = ("a", "b", "c")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def report_training(progress, keys=KEYS):
    with progress:
        progress.images_prepared("decoding", 3, 3)
        for i in range(4):
            if i:
                progress.bucket_started(keys[i - 1], bucket_index=i - 1, num_buckets=3)
                progress.steps_planned(2)
                progress.step_done()
                progress.curve_measured(CurvePoint(2 * i - 1, 2 / i, 0.1, 10.0, 0))
                progress.step_done()
                progress.curve_measured(CurvePoint(2 * i, 1 / i, 0.1, 10.0, 0))
            progress.row_measured(AccuracyRow(i, keys, (i, 2 * i, 3 * i), (10, 10, 10)))


def test_lines_are_one_per_bucket_with_the_accuracies():
    stream = io.StringIO()
    report_training(build_progress(stream))
    assert re.sub(r"\d+\.\d s", "TIME", stream.getvalue()).splitlines() == [
        "bucket 1/3 (key a): on itself 10.0 %, loss 1.5, TIME",
        "bucket 2/3 (key b): on itself 40.0 %, on past buckets 20.0 %, loss 0.75, TIME",
        "bucket 3/3 (key c): on itself 90.0 %, on past buckets 45.0 %, loss 0.5, TIME",
    ]


@pytest.fixture
def clock(monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr("clear_mlflow.learning.progress.time.monotonic", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize("step", ["hashing", "decoding"])
def test_a_line_a_minute_while_images_are_prepared(clock, step):
    stream = io.StringIO()
    progress = LineProgress(stream)
    for images in range(0, 48_400, 100):
        clock[0] += 0.5
        progress.images_prepared(step, images, 48_400)
    assert stream.getvalue().splitlines() == [
        f"{step}: {images:,} of 48,400 images" for images in (11_900, 23_900, 35_900, 47_900)
    ]


@pytest.mark.parametrize(("num_steps", "total"), [(1300, " of 1,300"), (None, "")])
def test_a_line_a_minute_within_a_bucket(clock, num_steps, total):
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.bucket_started("b", bucket_index=1, num_buckets=3)
    if num_steps is not None:
        progress.steps_planned(num_steps)
    clock[0] = 0.5
    for step in range(1300):
        progress.step_done()
        clock[0] += 0.125
        if step == 700:
            progress.curve_measured(CurvePoint(700, 0.5, 0.1, 10.0, 0))
    assert stream.getvalue().splitlines() == [
        f"bucket 2/3 (key b): step 477{total}",
        f"bucket 2/3 (key b): step 957{total}, loss 0.5",
    ]


def test_what_is_collected_is_also_displayed():
    stream = io.StringIO()
    collecting = CollectingProgress(LineProgress(stream), on_message=ignore)
    report_training(collecting)
    assert re.findall(r"loss [\d.]+", stream.getvalue()) == ["loss 1.5", "loss 0.75", "loss 0.5"]
    assert [point.step for point in collecting.take_points()] == [1, 2, 3, 4, 5, 6]


def test_a_bucket_without_steps_has_no_loss():
    stream = io.StringIO()
    with LineProgress(stream) as progress:
        progress.bucket_started("a", bucket_index=0, num_buckets=2)
        progress.curve_measured(CurvePoint(1, 0.5, 0.1, 10.0, 0))
        progress.row_measured(AccuracyRow(1, ("a", "b"), (1, 2), (10, 10)))
        progress.bucket_started("b", bucket_index=1, num_buckets=2)
        progress.row_measured(AccuracyRow(2, ("a", "b"), (1, 2), (10, 10)))
    first, second = stream.getvalue().splitlines()
    assert "loss 0.5" in first
    assert "loss" not in second


def test_bars_show_the_accuracies_and_leave_the_cursor_visible():
    stream = Terminal()
    report_training(TerminalProgress(stream))
    output = stream.getvalue()
    assert "on itself 90.0 %" in output
    assert "on past buckets 45.0 %" in output
    assert "bucket c · loss 0.5" in output
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")


def test_a_key_is_no_markup_of_the_bars():
    stream = Terminal()
    keys = ("[/]a", "[bold]b", ":cat:")
    report_training(TerminalProgress(stream), keys)
    assert all(f"bucket {key} " in stream.getvalue() for key in keys)


def test_bars_are_for_terminals_that_can_move_their_cursor(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(build_progress(Terminal()), TerminalProgress)
    assert isinstance(build_progress(io.StringIO()), LineProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(build_progress(Terminal()), LineProgress)
