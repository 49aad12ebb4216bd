"""Errors that a user can cause: one base class, which the command line prints on one line.

Every message names what was passed, what was expected, and what to do. Anything that is not a
``ClearError`` is a bug of ours and shows its traceback.
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.text import safe_repr


class ClearError(Exception):
    """Base of all errors that users can fix, with exit code 2.

    Messages end on terminals, in tags and in artifacts, so credentials in addresses are masked.

    Attributes:
        parameter: name of the parameter whose value is the reason, or None. The message begins with
            it: "jobs is 0; ...". The command line writes it as an option if it was passed.
    """

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(mask_credentials(message))
        self.parameter = parameter

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook displays: one line without a traceback."""
        return [f"error: {self}"]


class ConfigError(ClearError):
    """A parameter has a value that it cannot have."""


class DataError(ClearError):
    """A dataset on disk is missing, damaged, or has another layout."""


class RecordError(ClearError):
    """A stored row, or a set of them, is damaged or contradictory."""


class TrackingError(ClearError):
    """The MLflow store cannot be used, or lacks what was requested."""


class TrainingError(ClearError):
    """Training cannot continue, for example because the loss is not finite."""


class DivergedError(TrainingError):
    """The loss or an output is not finite: the run diverged."""


class PeerLostError(TrainingError):
    """Another process of the same training has ended, or does not respond."""


class StateError(TrainingError):
    """A training's state cannot be stored, is damaged, or does not fit."""


class UndefinedMetricError(ClearError):
    """A metric is undefined on this matrix. The message is the reason."""


class FailedMetricError(UndefinedMetricError):
    """A custom metric raised an error, or returned no number."""


class TrainingDied(Exception):  # noqa: N818  (the name states what happened)
    """The training process ended before its last row.

    Args:
        returncode: its exit code, or minus the number of the signal that ended it.
    """

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode
        super().__init__(
            f"the training process was ended by {signal.Signals(-returncode).name}"
            if returncode < 0
            else f"the training process ended with exit code {returncode}"
        )


def check_unused(arguments: Mapping[str, tuple[object, object]], reason: str) -> None:
    """Raise ConfigError if an argument without effect was passed.

    arguments: name to value and default. reason: why it has none, and what to do, as it follows
    "NAME is VALUE".
    """
    for name, (value, default) in arguments.items():
        if value != default:
            raise ConfigError(f"{name} is {safe_repr(value)}{reason}", parameter=name)


@contextmanager
def require_package(package: str, purpose: str) -> Iterator[None]:
    """Convert import errors of the block to a ConfigError with advice.

    purpose: subject of the message, for example "engine ray". The message names the package that is
    missing if it is another one, such as torchvision.
    """
    try:
        yield
    # A library that PyTorch links to is missing (OSError), or its version is not torchvision's.
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs the package {package}, which cannot be imported: {error}; "
            f"pip install {package}"
        ) from error
