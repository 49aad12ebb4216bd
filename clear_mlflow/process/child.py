"""The training process, ``python -m clear_mlflow.process.child``: cues in, messages out."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from io import RawIOBase
from typing import TYPE_CHECKING, Any

from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ClearError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process import messages
from clear_mlflow.process.streams import guard_streams

if TYPE_CHECKING:
    from clear_mlflow.learning.session import StreamTraining

# How long after its supervisor this process may last.
_GRACE_SECONDS = 10.0


def run(down_end: int, up_end: int) -> None:
    """Train as the parameters in one descriptor say, one row a cue; messages go to the other."""
    guard_streams(has_result=False)
    signal.signal(signal.SIGTERM, _stop)
    # A Ctrl-C is the supervisor's to hand on; the child has a session of its own, but a debugger
    # or a shell may still send it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unbuffered: a thread that waits in a buffered read would hold its lock at the exit.
    down = os.fdopen(down_end, "rb", buffering=0, closefd=False)
    with os.fdopen(up_end, "wb", buffering=0) as up:
        if not (parameters := down.readline()):
            sys.exit(0)
        config = TrainConfig(**json.loads(parameters))
        cues = _cues(down)
        saying = threading.Lock()

        def say(kind: str, content: Any = None) -> None:
            parts = messages.encode(kind, content)
            # Let go of behind a whole message alone: nothing may follow one that was cut off.
            saying.acquire()
            for part in parts:
                view = memoryview(part)
                while view:  # an unbuffered write may take less than all
                    view = view[up.write(view) :]
            saying.release()

        try:
            _train(config, cues, say)
            refusal = None
        except ClearError as error:
            refusal = messages.Refusal.of(error)
        # From here on the end of the supervisor's stream is what both sides expect.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("refused" if refusal else "done", refusal)
        sys.exit(2 if refusal else 0)


def _train(config: TrainConfig, cues: queue.SimpleQueue[bytes], say: Callable[..., None]) -> None:
    # Nothing of torch is garbage while it loads or later: a sixth of the README's first command.
    gc.disable()
    from clear_mlflow.learning.parallel.group import process_group
    from clear_mlflow.learning.prepare import fetch, load_data, prepare
    from clear_mlflow.learning.progress import TrainingProgress, progress_for
    from clear_mlflow.learning.session import check

    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # Triton's bindings complain of what is there at the very end
    place = read_dist_env()
    config = check(config, place)
    progress = progress_for(sys.stderr) if place.keeps_record else TrainingProgress()
    with progress:
        fetch(config, progress)
        # The supervisor opens a run when the parameters are known to fit the data.
        stream = load_data(config)
    say("checked", config.values())
    with process_group(place, config.device, precision=config.precision) as group:
        # Not when the supervisor asks for it: by then it has been to the store.
        training = prepare(config, progress, group, stream)
        cues.get()
        say("facts", training.facts)
        callbacks = [partial(say, kind) for kind in ("curve", "test", "state")]
        first, *others = config.split_seeds()
        _train_member(training.for_member(first), callbacks, cues, say)
        for member in others:
            say("done")
            _train_member(training.for_member(member), callbacks, cues, say)


def _train_member(
    training: StreamTraining,
    callbacks: Sequence[Callable[[Any], None]],
    cues: queue.SimpleQueue[bytes],
    say: Callable[..., None],
) -> None:
    """Train with one seed, and send each row when the supervisor asks for it."""
    if (state := messages.state_of(cues.get())) is not None:
        training = dataclasses.replace(training, saved=state)
    for row in training.rows(*callbacks):
        say("row", row)
        cues.get()


def _cues(stream: RawIOBase) -> queue.SimpleQueue[bytes]:
    """The supervisor's cues, read by a thread that ends this process when the stream ends."""
    cues: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        while (line := stream.readline()).endswith(b"\n"):
            cues.put(line)
        os.kill(os.getpid(), signal.SIGTERM)
        # Of several processes, one may be waiting for another in a place that hears no signal.
        time.sleep(_GRACE_SECONDS)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    return cues


def _stop(signum: int, frame: object) -> None:
    signal.signal(signum, signal.SIG_IGN)  # a repeat would break into what runs at the exit
    sys.exit(128 + signum)


if __name__ == "__main__":
    run(sys.stdin.fileno(), int(sys.argv[1]))
