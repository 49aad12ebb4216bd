"""What several programs do at the same moment to one store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mlflow.exceptions import MlflowException

_Made = TypeVar("_Made")

# What MLflow answers: for an experiment, and for a row of any other table (mlflow 3.17).
_MADE_BY_ANOTHER = ("RESOURCE_ALREADY_EXISTS", "BAD_REQUEST")


def retry_on_conflict(make: Callable[[], _Made]) -> _Made:
    """Do what makes something that runs share, where it is not there; again if another was faster.

    Of several programs that start at once into a new experiment one makes it, and one writes down
    its dataset. MLflow refuses the others, which had looked for it before; looking again, they
    find it.

    Args:
        make: looks for what is shared, and makes it only where it finds none; refused, it has
            changed nothing.
    """
    try:
        return make()
    except MlflowException as error:
        if error.error_code not in _MADE_BY_ANOTHER:
            raise
        return make()
