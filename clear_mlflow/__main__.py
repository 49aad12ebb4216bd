"""The program ``clear-mlflow``: ``python -m clear_mlflow``, also where it is not installed."""

import atexit
import gc
import sys

from clear_mlflow.cli import main


def run() -> None:
    """Run the command line."""
    atexit.register(_leave_modules_whole)
    main(prog_name="clear-mlflow")


def _leave_modules_whole() -> None:
    """Else Python takes thousands apart at the end: a fifth of the README's first command."""
    if "torch" not in sys.modules:  # what comes with it complains of what is there at the very end
        gc.freeze()


if __name__ == "__main__":
    run()
