"""The program ``clear-mlflow``: ``python -m clear_mlflow``, also where it is not installed."""

import atexit
import gc
import sys

from clear_mlflow.cli import main
from clear_mlflow.process.streams import OutputError, guard_streams


def run() -> None:
    """Run the command line."""
    guard_streams()
    atexit.register(_freeze_modules)
    try:
        main(prog_name="clear-mlflow")
    except OutputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _freeze_modules() -> None:
    """Freeze modules, so that exiting is faster, unless torch is loaded."""
    # That is a fifth of the README's first command.
    if "torch" not in sys.modules:  # what comes with it complains of what is there at the very end
        gc.freeze()


if __name__ == "__main__":
    run()
