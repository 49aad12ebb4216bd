"""Threads of OpenMP that spin or sleep while they wait: seen by what they burn."""

import json
import os
import subprocess
import sys

# CPU seconds of a process that computes a little and waits a lot, and how its threads wait.
MEASURE = """
import json, os, subprocess, sys, threading, time
import torch
from clear_mlflow.process import spinning

torch.set_num_threads(2)
numbers = torch.zeros(2**17)


def burnt():
    for _ in range(20):
        numbers.add_(1)
    before = time.process_time()
    for _ in range(100):
        numbers.add_(1)
        time.sleep(0.005)
    return time.process_time() - before


def until(threads):  # None where it never comes to so many
    for _ in range(600):
        if threading.active_count() == threads:
            return burnt()
        numbers.add_(1)
        time.sleep(0.05)
"""


def measured(code):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_idle_threads_make_the_others_sleep_and_their_end_makes_them_spin():
    """Not by time: a thread that spins burns its core for all the milliseconds between two sums."""
    spun, slept, again = measured(
        """
teams = spinning.IdleTeams(2, len(os.sched_getaffinity(0)))
found = [burnt()]
teams.want(True)
found.append(burnt())
teams.want(False)
found.append(burnt())
print(json.dumps(found))
"""
    )
    assert slept < spun / 3
    assert slept < again / 3


def test_a_training_that_shares_its_cores_sleeps_until_it_does_not():
    """Others that want all cores come and go: an idle thread is there for as long."""
    alone, beside, alone_again = measured(
        """
loop = [sys.executable, "-c", "while True: sum(range(1000))"]
with spinning.watched():
    watching = threading.active_count()
    found = [burnt()]
    busy = [subprocess.Popen(loop) for _ in range(3 * os.cpu_count())]
    try:
        sleeping = watching + spinning.IdleTeams(2, len(os.sched_getaffinity(0))).number
        found.append(until(sleeping))
    finally:
        for other in busy:
            other.kill()
            other.wait()
    found.append(until(watching))
print(json.dumps(found))
"""
    )
    assert beside < alone / 3
    assert beside < alone_again / 3


def test_a_user_who_says_how_they_wait_is_obeyed():
    """By the variables of OpenMP: nothing watches then."""
    assert measured(
        """
import threading
os.environ["GOMP_SPINCOUNT"] = "300000"
with spinning.watched():
    chosen = threading.active_count()
del os.environ["GOMP_SPINCOUNT"]
with spinning.watched():
    watched = threading.active_count()
print(json.dumps([chosen, watched, threading.active_count()]))
"""
    ) == [1, 2, 1]


def test_a_training_process_watches_while_it_trains():
    """From reading the data to the last row."""
    kinds = measured(
        """
import queue
from contextlib import contextmanager
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process import child, messages

inside, said = [], []

@contextmanager
def watched():
    inside.append(True)
    yield
    inside.clear()

spinning.watched = watched
cues = queue.SimpleQueue()
for _ in range(20):
    cues.put(messages.NEXT)
asked = {"features": "pixels", "epochs": "1", "allocator": "off", "device": "cpu"}
config = TrainConfig.resolve(asked)
child._train(config, cues, lambda message: said.append((message["kind"], bool(inside))))
print(json.dumps(sorted(set(said))))
"""
    )
    assert kinds == [["checked", False], ["facts", True], ["row", True]]
