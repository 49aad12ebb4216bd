"""What a training process says, from two threads: whole messages, and none behind one cut off."""

import fcntl
import io
import json
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter

from clear_mlflow.learning.measured import TrainingState
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process import messages

STATE = TrainingState(1, bytes(range(256)) * (1 << 14))
CHILD = """
import threading
from clear_mlflow.learning.measured import TrainingState
from clear_mlflow.process import child

def train(config, cues, say):
    state = TrainingState(1, bytes(range(256)) * (1 << 14))
    beside = threading.Thread(target=say, args=("state", state), daemon=True)
    beside.start()
    for _ in range(5000):
        say("curve", ())
    beside.join()

child._train = train
child.run(0, 1)
"""


def started():
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.write(json.dumps(TrainConfig.resolve({}).values()).encode() + b"\n")
    process.stdin.flush()
    return process


def unread(stream):
    return struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))[0]


def heard(content):
    """The messages in it, up to one that is cut off."""
    read = io.BytesIO(content).read
    return list(iter(lambda: messages.decode(read), None))


def test_a_state_and_what_is_said_meanwhile_arrive_whole():
    """A pipe takes 64 KiB at once: the parts of a state would have others between them."""
    process = started()
    said = heard(process.stdout.read())
    assert process.wait() == 0
    assert Counter(kind for kind, _ in said) == {"curve": 5000, "state": 1, "done": 1}
    assert dict(said)["state"] == STATE


def test_a_process_that_is_stopped_does_not_wait_for_its_state():
    """Nobody reads it; what came through is no message, wherever it was cut off."""
    process = started()
    while unread(process.stdout) < 60_000:  # the pipe is full
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert {kind for kind, _ in heard(process.stdout.read())} <= {"curve"}
    whole = b"".join(messages.encode("state", STATE))
    assert heard(whole) == [("state", STATE)]
    assert not any(heard(whole[:length]) for length in (0, 7, 8, 30, 100, len(whole) - 1))
