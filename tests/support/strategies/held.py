"""Built-in strategies whose training waits, without using the CPU, until a test releases it.

The training of the third and every later bucket waits while the file exists that
``CLEAR_TESTS_HOLD`` names. By then, rows 0 to 2 are stored. Before each bucket, it also waits for
``CLEAR_TESTS_PAUSE`` seconds.
"""

import os
import time
from pathlib import Path

from clear_mlflow.learning.strategies import naive, ncm, replay
from clear_mlflow.learning.strategies._base import Strategy

FIRST_HELD = 2  # index of a bucket


class _Held(Strategy):
    def learn(self, bucket_index, trainer):
        time.sleep(float(os.environ.get("CLEAR_TESTS_PAUSE", "0")))
        file = os.environ.get("CLEAR_TESTS_HOLD")
        while bucket_index >= FIRST_HELD and file and Path(file).exists():
            time.sleep(0.02)
        super().learn(bucket_index, trainer)


class Naive(_Held, naive.Naive):
    """Fine-tuning."""


class Ncm(_Held, ncm.Ncm):
    """Nearest class means."""


class Replay(_Held, replay.Replay):
    """Replay of stored images."""
