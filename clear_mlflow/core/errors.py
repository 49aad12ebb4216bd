"""What can go wrong by a user's input: one base class, which the command line turns into one line.

Every message says what arrived, what was expected, and what to do. Anything that is not a
``ClearError`` is a bug of ours and shows its traceback.
"""

from clear_mlflow.core.credentials import mask_credentials


class ClearError(Exception):
    """Base of all errors that a user can cause and mend. The command line exits with code 2.

    Messages end on terminals, in tags and in artifacts: no address in one keeps its credentials.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(mask_credentials(message))

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it: the line that a terminal would, and no traceback."""
        return [f"error: {self}"]


class ConfigError(ClearError):
    """A parameter has a value that it cannot have."""


class DataError(ClearError):
    """A dataset on disk is missing, damaged, or of another layout."""


class RecordError(ClearError):
    """A stored row, or a set of rows, is damaged or contradicts itself."""


class TrackingError(ClearError):
    """The MLflow store cannot be used as it is configured, or lacks what was asked for."""


class TrainingError(ClearError):
    """Training cannot continue: the model's loss is no longer a number, for example."""


class DivergedError(TrainingError):
    """The loss or the model's output is no longer a finite number; the run is tagged so."""


class PeerLostError(TrainingError):
    """Another of the processes that train one model together has ended, or says nothing."""


class StateError(TrainingError):
    """A training's state cannot be kept, is damaged, or is of another training."""


class UndefinedMetricError(ClearError):
    """A metric has no value on this matrix; the message is the reason."""


class FailedMetricError(UndefinedMetricError):
    """A user's own metric raised something else, or gave no number: it is to be mended."""
