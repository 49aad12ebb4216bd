"""The program ``clear-mlflow``: ``python -m clear_mlflow``, also where it is not installed."""

import atexit
import gc

from clear_mlflow.cli import main


def run() -> None:
    """Run the command line."""
    # Else Python takes thousands of modules apart at the end: seconds of the README's first command.
    atexit.register(gc.freeze)
    main(prog_name="clear-mlflow")


if __name__ == "__main__":
    run()
