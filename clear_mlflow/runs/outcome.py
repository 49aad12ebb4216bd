"""How a training ended: its exit code, and the status that its run is given."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from clear_mlflow.core.errors import ClearError, DivergedError
from clear_mlflow.journal.sender import UnsentError
from clear_mlflow.process.parent import TrainingDied
from clear_mlflow.scoring.scores import Scores

# A child that ended by one of these was stopped from outside; by any other it broke.
_KILLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@dataclass(frozen=True)
class RunResult:
    """How a supervised training ended."""

    exit_code: int  # 0 done, 1 a bug, 2 bad input, 128 + n stopped by signal n
    status: str  # FINISHED, FAILED or KILLED, as MLflow calls it
    run_id: str | None  # None: it ended before a run was opened
    scores: Scores | None  # of the rows that are stored
    error: str | None  # one line
    diverged: bool = False  # the loss or the model's output was no longer a number
    links: tuple[str, ...] = ()  # lines that tell where to look at the run
    seed: int | None = None  # of the member of an ensemble that diverged
    members: Mapping[int, Scores] = field(default_factory=dict)  # of an ensemble, by seed
    note: str | None = None  # what else there is to say, in one line
    unsent: UnsentError | None = None  # what was measured waits on local disk: the store was away


def outcome_of(
    error: ClearError | TrainingDied,
    received: list[int],
    run_id: str | None = None,
    died: tuple[int, ...] = (),
) -> RunResult:
    """How a training that was supervised ended by an error.

    Args:
        error: what it ended by.
        received: signals that came to this process, in their order.
        run_id: of the run; None where none was opened.
        died: ranks whose processes ended before their training did.
    """
    if isinstance(error, UnsentError):
        cause = error.__cause__
        if isinstance(cause, (ClearError, TrainingDied)):
            outcome = outcome_of(cause, received, run_id, died)
            return dataclasses.replace(outcome, unsent=error)
        return unsent_outcome(error, run_id)
    if died:
        which = " and ".join(map(str, died))
        return RunResult(
            1, "FAILED", run_id, None, f"the process of rank {which} ended before its training did"
        )
    if received:
        signum = received[0]
        return RunResult(
            128 + signum, "KILLED", run_id, None, f"stopped by {signal.Signals(signum).name}"
        )
    if isinstance(error, ClearError):
        diverged = isinstance(error, DivergedError)
        seed = error.seed if isinstance(error, DivergedError) else None
        return RunResult(2, "FAILED", run_id, None, str(error), diverged, seed=seed)
    if -error.returncode in _KILLING:
        return RunResult(128 - error.returncode, "KILLED", run_id, None, str(error))
    return RunResult(1, "FAILED", run_id, None, str(error))


def unsent_outcome(error: UnsentError, run_id: str | None) -> RunResult:
    """How a training in this process ended whose rows wait on local disk."""
    cause = error.__cause__
    if cause is None:
        return RunResult(2, "FINISHED", run_id, None, None, unsent=error)
    return RunResult(
        1,
        "KILLED" if isinstance(cause, KeyboardInterrupt) else "FAILED",
        run_id,
        None,
        f"{type(cause).__name__}: {cause}",
        diverged=isinstance(cause, DivergedError),
        seed=cause.seed if isinstance(cause, DivergedError) else None,
        unsent=error,
    )
