"""The thread behind a training: what it does in which order, and its heartbeat."""

import threading
import time

from clear_mlflow.runs.background import BackgroundWorker

LONG = 60  # seconds: a bound against hangs


def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_is_left_is_done_at_the_end_in_order():
    """All of it, in the order in which it was sent."""
    done = []
    behind = BackgroundWorker(lambda: None)
    behind.start()
    for number in range(5):
        behind.send(lambda n=number: done.append(n))
    behind.finish(LONG)
    assert done == [0, 1, 2, 3, 4]


def test_what_fails_is_told_once_and_the_rest_is_done(capfd):
    """While a training runs, that is; at its end nothing is begun behind what failed."""
    done = threading.Event()
    behind = BackgroundWorker(lambda: None)
    behind.start()
    for job in (lambda: 1 / 0, lambda: 1 / 0, done.set):
        behind.send(job)
    assert done.wait(LONG)
    behind.finish(LONG)
    assert capfd.readouterr().err.count("a picture is left out") == 1


def test_the_heart_beats_however_much_there_is_to_do():
    """Rows that follow each other quickly must not make a run look abandoned."""
    beats = []
    behind = BackgroundWorker(lambda: beats.append(0), every=0.05)
    behind.start()
    until = time.monotonic() + LONG
    while len(beats) < 3 and time.monotonic() < until:
        behind.send(lambda: spin(0.02))
        time.sleep(0.01)
    seen = len(beats)
    behind.finish(LONG)
    assert seen >= 3


def test_who_stops_a_training_waits_for_nothing_that_is_not_begun():
    """A scheduler gives a run seconds to close."""
    done, begun, ended = [], threading.Event(), threading.Event()
    behind = BackgroundWorker(lambda: None)
    behind.start()
    behind.send(lambda: (begun.set(), ended.wait(LONG), done.append(0)))
    for number in range(1, 50):
        behind.send(lambda n=number: done.append(n))
    assert begun.wait(LONG)
    behind.finish(0, leave_rest=True)
    ended.set()
    behind.finish(LONG)
    assert done == [0]
