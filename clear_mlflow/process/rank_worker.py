"""Every rank but 0: it supervises a training process, for signals, and drops its rows."""

from __future__ import annotations

import sys
import time

from clear_mlflow.core.distributed import DistributedEnv
from clear_mlflow.core.errors import (
    ClearError,
    ConfigError,
    DataError,
    DivergedError,
    PeerLostError,
)
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process.parent import TrainingDied, TrainingProcess
from clear_mlflow.process.signals import StoppingSignals

# How long this process stays after its training process failed. When this process ends, torchrun
# ends rank 0, too. By then rank 0 has noticed the failure by itself, so it does not take torchrun's
# signal for an order to stop.
_LINGER_SECONDS = 5.0
# The same where rank 0 must meet with the same error: it loads MLflow first, then reports it.
_LONG_LINGER_SECONDS = 60.0


def run_rank(place: DistributedEnv, config: TrainConfig, signals: StoppingSignals) -> int:
    """Train along, with the parameters that rank 0 has; gives the exit code."""
    with TrainingProcess(config) as process:
        signals.hand_to(process.stop)
        try:
            members = process.config.split_seeds()
            _ = process.facts
            for member in members:
                for _ in process.for_member(member).rows():
                    pass
            return 0
        except (ClearError, TrainingDied) as error:
            process.stop()
            if not signals.received:
                _linger(place, error, signals)
            if signals.received:
                return 128 + signals.received[0]
            return 2 if isinstance(error, ClearError) else 1


def _linger(
    place: DistributedEnv, error: ClearError | TrainingDied, signals: StoppingSignals
) -> None:
    """Let rank 0 notice the error; report it here, unless rank 0 has."""
    rank_0_meets_it = isinstance(error, DivergedError) or (
        # the same files and devices
        isinstance(error, (ConfigError, DataError)) and place.local_size == place.size
    )
    until = time.monotonic() + (_LONG_LINGER_SECONDS if rank_0_meets_it else _LINGER_SECONDS)
    while time.monotonic() < until and not signals.received:
        time.sleep(0.05)
    if not (signals.received and (rank_0_meets_it or isinstance(error, PeerLostError))):
        message = one_line(f"rank {place.rank}: {error}")
        print(f"error: {message}", file=sys.stderr, flush=True)
