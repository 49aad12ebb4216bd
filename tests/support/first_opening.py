"""Processes that open new MLflow stores; started by test_sqlite.py.

``python first_opening.py together FOLDER 2 8`` has 2, then 8 processes open one store at the same
moment. ``killed FOLDER 0 120`` has one open it that ends, as by SIGKILL, after it has executed so
many statements, and then another. ``beside FOLDER 1`` has one open it while another, which takes no
lock, sets it up. Each store is in its own folder, named after the number; each number of processes
that failed is printed.
"""

import os
import sys
from pathlib import Path

import mlflow
import sqlalchemy
from alembic import command  # noqa: F401  imported once, not in each process
from mlflow import MlflowClient
from mlflow.store.tracking import sqlalchemy_store  # noqa: F401
from sqlalchemy import event

from clear_mlflow.store.client import connect_store, set_up_mlflow


def together(count: int) -> int:
    """Return how many of *count* processes fail."""
    start, start_signal = os.pipe()
    children = [fork(lambda: (os.read(start, 1), connect_store())) for _ in range(count)]
    os.write(start_signal, bytes(count))
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


def fails_next(statements: int) -> int:
    """Return True if the next process fails."""

    def opens():
        remaining = iter(range(statements))
        event.listen(
            sqlalchemy.Engine,
            "after_cursor_execute",
            lambda *_: None if next(remaining, None) is not None else os._exit(9),
        )
        connect_store()

    if os.waitstatus_to_exitcode(os.waitpid(fork(opens), 0)[1]) != 9:
        raise ValueError(f"setting a store up takes fewer than {statements} statements")
    return together(1)


def beside(count: int) -> int:
    """Return how many of *count* processes without a lock fail, and of one with it."""
    database = Path(mlflow.get_tracking_uri().removeprefix("sqlite:///"))
    others = [fork(lambda: MlflowClient().search_experiments()) for _ in range(count)]
    while not database.exists():
        pass
    return together(1) + sum(os.waitpid(other, 0)[1] != 0 for other in others)


def fork(function) -> int:
    """Call a function in a child process, whose exit status is 1 after an exception."""
    if child := os.fork():
        return child
    status = 1
    try:
        function()
        status = 0
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(status)


if __name__ == "__main__":
    set_up_mlflow()
    what, folder, *numbers = sys.argv[1:]
    for number in map(int, numbers):
        place = Path(folder, str(number))
        place.mkdir()
        mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow.db")
        print(
            {"together": together, "killed": fails_next, "beside": beside}[what](number), flush=True
        )
