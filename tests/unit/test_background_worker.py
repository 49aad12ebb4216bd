"""The thread behind a training: what it does in which order, how much of it, and its heartbeat."""

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


def test_while_training_goes_on_it_takes_a_small_share_of_a_core(capfd):
    """After each job it rests nine times as long; when training is over, all are done."""
    begun, done = [], []
    behind = BackgroundWorker(lambda: None, share=0.1)
    behind.start()

    def job():
        begun.append(time.monotonic())
        spin(0.02)
        done.append(time.monotonic())

    for _ in range(20):
        behind.send(job)
    while len(done) < 3:
        time.sleep(0.01)
    behind.send(lambda: 1 / 0)
    behind.finish(LONG)
    for ended, next_one in ((done[0], begun[1]), (done[1], begun[2])):
        assert next_one - ended >= 9 * 0.02
    assert len(done) == 20
    assert "a picture is left out" in capfd.readouterr().err


def test_the_heart_beats_however_much_there_is_to_do():
    """Rows that follow each other quickly must not make a run look abandoned."""
    beats = []
    behind = BackgroundWorker(lambda: beats.append(0), every=0.05, share=1.0)
    behind.start()
    until = time.monotonic() + LONG
    while len(beats) < 3 and time.monotonic() < until:
        behind.send(lambda: spin(0.02))
        time.sleep(0.01)
    seen = len(beats)
    behind.finish(LONG)
    assert seen >= 3


def test_who_stops_a_training_waits_for_no_picture_that_is_not_begun():
    """Rows that came quickly leave many pictures, and a scheduler gives a run seconds to close."""
    done = []
    behind = BackgroundWorker(lambda: None, share=0.01)
    behind.start()
    for number in range(50):
        behind.send(lambda n=number: (spin(0.05), done.append(n)))
    while not done:
        time.sleep(0.01)
    behind.finish(LONG, leave_rest=True)
    assert len(done) < 50
    assert done == list(range(len(done)))
