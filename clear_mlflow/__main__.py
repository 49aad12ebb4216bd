"""``python -m clear_mlflow``: the command line, also where the package is not installed."""

from clear_mlflow.cli import main

if __name__ == "__main__":
    main(prog_name="clear-mlflow")
