"""The training process: commands in, messages out. See :mod:`.training_process`.

Both processes are ours, so the pickled messages between them are not foreign data.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal

from clear_mlflow.core import errors
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process.streams import guard_streams

# How long this process may continue after its supervisor has ended.
_GRACE_SECONDS = 10.0

# What a training process sends. "checked": the resolved TrainConfig; "dataset": DatasetDescription;
# "measurement": a Measurement; "done": the last row was sent; "error": a ClearError, after which
# the process ends.
MessageType = Literal["checked", "dataset", "measurement", "done", "error"]

_TERMINATED = 128 + signal.SIGTERM  # exit code

Send = Callable[..., None]  # (message type, content or nothing)
Commands = queue.SimpleQueue[Any]


def run(commands: Connection, messages: Connection) -> None:
    """Train with the parameters that the supervising process sends, and exit.

    After each row, waits for a command before it trains on.

    Exits with 0, with 2 after a ClearError, which is sent as a message, or with 143 after SIGTERM.
    Other errors are raised. Ignores SIGINT, and failures to write to the standard streams.

    commands: connection to read from; the first command is a TrainConfig. messages: connection to
    write to.
    """
    guard_streams(has_result=False)
    signal.signal(signal.SIGTERM, _exit)
    # Only the supervisor handles Ctrl-C. This process has its own session, but a debugger may still
    # send the signal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        config: TrainConfig = commands.recv()
    except EOFError:  # the supervisor needs no training
        sys.exit(0)
    error: errors.ClearError | None = None
    try:
        _train(config, _queue_commands(commands), partial(send, messages))
    except errors.ClearError as raised:
        # The supervisor need not have the module of a user's own class.
        is_ours = type(raised).__module__ == errors.__name__
        error = raised if is_ours else errors.ClearError(str(raised))
    except SystemExit as raised:
        if raised.code == _TERMINATED:
            raise
        # The supervisor would know only the code, and 0 looks like success.
        error = errors.TrainingError(
            f"custom code ended the training with sys.exit({raised.code!r}); raise an error instead"
        )
    # From here on, the supervisor closes its connection, which must not end this process early.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send(messages, "error" if error else "done", error)
    sys.exit(2 if error else 0)


def _train(config: TrainConfig, commands: Commands, send_message: Send) -> None:
    """Check the parameters, load the data, and train each seed.

    Sends "checked", and after a command "dataset". Then the command for each seed is the path of
    the state file to resume from, or None. Waits for a command after each row sent, and sends
    "done" between two seeds.
    """
    # Importing torch makes no garbage; without collections the README's first command is a sixth
    # faster.
    gc.disable()
    with errors.require_package("torch", "training"):
        from clear_mlflow.learning.process_group import process_group
    from clear_mlflow.learning.progress import TrainingProgress, build_progress
    from clear_mlflow.learning.session import (
        download_missing,
        load_data,
        prepare_training,
        resolve_config,
    )

    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # Triton's bindings complain about frozen objects at the exit
    dist_env = read_dist_env()
    config = resolve_config(config, dist_env)
    progress = build_progress(sys.stderr) if dist_env.keeps_record else TrainingProgress()
    with progress:
        download_missing(config, progress)
        # The supervisor opens a run only after the parameters are known to fit the data.
        stream = load_data(config, progress)
    send_message("checked", config)
    with process_group(dist_env, config.device, precision=config.precision) as group:
        # While the supervisor opens the run.
        training = prepare_training(config, progress, group, stream)
        commands.get()
        send_message("dataset", training.dataset)
        send_measurement = partial(send_message, "measurement")
        for number, member_config in enumerate(config.split_seeds()):
            if number > 0:
                send_message("done")
            member = training.for_member(member_config)
            for row in dataclasses.replace(member, saved=commands.get()).rows(send_measurement):
                send_measurement(row)
                commands.get()


def _queue_commands(connection: Connection) -> Commands:
    """Queue commands in a thread, which ends this process without its supervisor.

    When the supervisor is gone, the thread sends SIGTERM here, and ends this process 10 s later.
    """
    commands: Commands = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                commands.put(connection.recv())
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)
        # One of several processes may wait for another one in code that handles no signal.
        time.sleep(_GRACE_SECONDS)
        os._exit(_TERMINATED)

    threading.Thread(target=read, daemon=True).start()
    return commands


def _exit(signum: int, frame: object) -> None:
    """Exit, and ignore a second signal."""
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(_TERMINATED)


def send(connection: Connection, message_type: MessageType, content: Any = None) -> None:
    """Send a message, and wait while the pipe is full.

    If the content is a dataclass, its fields of bytes (weights, states) are sent one by one after
    it, without a copy.
    """
    fields = vars(content) if dataclasses.is_dataclass(content) else {}
    files = {name: value for name, value in fields.items() if isinstance(value, bytes)}
    if files:
        content = dataclasses.replace(content, **dict.fromkeys(files))
    connection.send((message_type, content, list(files)))
    for file in files.values():
        connection.send_bytes(file)


def receive(connection: Connection) -> tuple[MessageType, Any]:
    """Wait for the next message of :func:`send`, or raise EOFError.

    Raises EOFError or OSError if the other process has ended, also in the middle of a message.
    """
    message_type, content, names = connection.recv()
    files = {name: connection.recv_bytes() for name in names}
    return message_type, dataclasses.replace(content, **files) if files else content


if __name__ == "__main__":
    run(
        Connection(sys.stdin.fileno(), writable=False),
        Connection(int(sys.argv[1]), readable=False),
    )
