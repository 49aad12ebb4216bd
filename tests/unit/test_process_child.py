"""Messages of a training process: complete and in order, none after a truncated one."""

import fcntl
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from multiprocessing import Pipe

import pytest

from clear_mlflow.core.errors import DataError, DivergedError
from clear_mlflow.learning.measured import Measurement
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process.child import receive, send

STATE = Measurement(state=bytes(range(256)) * (1 << 14))
CHILD = """
import sys
from multiprocessing.connection import Connection
from clear_mlflow.learning.measured import Measurement
from clear_mlflow.process import child

def train(config, commands, send_message):
    state = Measurement(state=bytes(range(256)) * (1 << 14))
    for _ in range(5000):
        send_message("measurement", Measurement())
    send_message("measurement", state)
    {end}

child._train = train
child.run(Connection(0), Connection(int(sys.argv[1])))
"""


def start(end=""):
    child_commands, commands = Pipe(duplex=False)
    messages, child_messages = Pipe(duplex=False)
    command = [sys.executable, "-c", CHILD.replace("{end}", end), str(child_messages.fileno())]
    pipes = {"stdin": child_commands.fileno(), "pass_fds": [child_messages.fileno()]}
    process = subprocess.Popen(command, **pipes)
    child_commands.close()
    child_messages.close()
    commands.send(TrainConfig.resolve({}))
    return process, commands, messages


def receive_all(connection):
    received = []
    while True:
        try:
            received.append(receive(connection))
        except (EOFError, OSError):
            return received


def test_states_and_messages_arrive_complete():
    process, _commands, messages = start()
    received = receive_all(messages)
    assert process.wait() == 0
    assert Counter(name for name, _ in received) == {"measurement": 5001, "done": 1}
    assert received[-2] == ("measurement", STATE)


@pytest.mark.parametrize("code", ["", "0", "3", "'no GPU\\nhere'"])
def test_custom_code_that_exits_is_an_error_in_one_line(code):
    process, _commands, messages = start(f"sys.exit({code})")
    name, error = receive_all(messages)[-1]
    assert (name, process.wait()) == ("error", 2)
    assert str(error).startswith(f"custom code ended the training with sys.exit({code or None})")
    assert "\n" not in str(error)


def test_a_process_that_is_stopped_does_not_wait_for_its_supervisor():
    """If nobody reads the pipe. A partial message is dropped."""
    process, _commands, messages = start()
    while struct.unpack("i", fcntl.ioctl(messages, termios.FIONREAD, bytes(4)))[0] < 60_000:
        time.sleep(0.01)  # until the pipe is full
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert {name for name, _ in receive_all(messages)} <= {"measurement"}


@pytest.mark.parametrize("error", [DivergedError("the loss"), DataError("no file")])
def test_errors_arrive_unchanged(error):
    reader, writer = Pipe(duplex=False)
    send(writer, "error", error)
    message_type, received = receive(reader)
    assert (message_type, type(received), str(received)) == ("error", type(error), str(error))
