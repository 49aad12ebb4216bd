"""The program ``clear-mlflow``: ``python -m clear_mlflow``, also where it is not installed."""

import atexit
import gc
import sys

from clear_mlflow.cli import main

_SELDOM = 50_000  # new objects between two looks for garbage; 700 by default


def run() -> None:
    """Run the command line in a process of its own."""
    # Nothing of the thousands of modules that are loaded is garbage: looking through them takes a
    # fifth of a command's start, and taking them apart half a second at its end.
    gc.set_threshold(_SELDOM)
    atexit.register(_take_nothing_apart)
    main(prog_name="clear-mlflow")


def _take_nothing_apart() -> None:
    # What torch brings along complains, at length, of objects that are there at the very end.
    if "torch" not in sys.modules:
        gc.freeze()


if __name__ == "__main__":
    run()
