"""The program ``clear-mlflow``: ``python -m clear_mlflow``, also where it is not installed."""

from clear_mlflow.cli import main


def run() -> None:
    """Run the command line."""
    main(prog_name="clear-mlflow")


if __name__ == "__main__":
    run()
