"""A training from the first check to the closed run: supervised in a child, or in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import mlflow
from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING, MLFLOW_RUN_ID

from clear_mlflow.config import TrainConfig
from clear_mlflow.errors import ClearError
from clear_mlflow.process.parent import TrainingDied, TrainingProcess
from clear_mlflow.tracking import names
from clear_mlflow.tracking.generated_names import is_generated
from clear_mlflow.tracking.links import run_links
from clear_mlflow.tracking.preflight import explained, preflight
from clear_mlflow.tracking.scoring import Scores, read_scores, write_scores
from clear_mlflow.tracking.tracked_run import TrackedRun, track
from clear_mlflow.training import Training

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A child that ended by one of these was stopped from outside; by any other it broke.
_KILLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@dataclass(frozen=True)
class Outcome:
    """How a supervised training ended."""

    exit_code: int  # 0 done, 1 a bug, 2 bad input, 128 + n stopped by signal n
    status: str  # FINISHED, FAILED or KILLED, as MLflow calls it
    run_id: str | None  # None: it ended before a run was opened
    scores: Scores | None  # of the rows that are stored
    error: str | None  # one line
    links: tuple[str, ...] = ()  # lines that tell where to look at the run


def train_supervised(asked: Mapping[str, str]) -> Outcome:
    """Train in a child process, and close the record however that ends.

    This is the post-run hook, too: when the child is done, has failed, was stopped by a signal to
    this process or its group, or was killed, the rows are read back from the artifact store and
    scored, and the run is given the status that is true. MLflow has no plugin point for that.

    Args:
        asked: parameters as text; see :class:`~clear_mlflow.config.TrainConfig`.
    """
    with TrainingProcess(asked) as process, _stopped_by_signals(process.stop) as received:
        try:
            client = preflight()
            config = process.config
            with explained("open a run"):
                run_id = _open_run(client, config)
        except (ClearError, TrainingDied) as error:
            process.stop()
            return _outcome(error, received)
        try:
            with TrackedRun(client, run_id, config, asked) as run:
                track(process, run)
        except (ClearError, TrainingDied) as error:
            process.stop()
            return _close_run(client, run_id, _outcome(error, received, run_id))
        except BaseException:
            _close_run(client, run_id, Outcome(1, "FAILED", run_id, None, "a bug"))
            raise
        return _close_run(client, run_id, Outcome(0, "FINISHED", run_id, None, None))


def _outcome(
    error: ClearError | TrainingDied, received: list[int], run_id: str | None = None
) -> Outcome:
    if received:
        signum = received[0]
        return Outcome(
            128 + signum, "KILLED", run_id, None, f"stopped by {signal.Signals(signum).name}"
        )
    if isinstance(error, ClearError):
        return Outcome(2, "FAILED", run_id, None, str(error))
    if -error.returncode in _KILLING:
        return Outcome(128 - error.returncode, "KILLED", run_id, None, str(error))
    return Outcome(1, "FAILED", run_id, None, str(error))


def _close_run(client: MlflowClient, run_id: str, outcome: Outcome) -> Outcome:
    """Score what is stored, say why the run ended, and set its status."""
    scores, code, status, error = None, outcome.exit_code, outcome.status, outcome.error
    try:
        scores = score(client, run_id)
    except ClearError as refusal:
        # Training went well or not; that its record is not in order is what counts now.
        error = f"{error}; {refusal}" if error else str(refusal)
        code, status = code or 2, status if status != "FINISHED" else "FAILED"
    try:
        with explained(f"close run {run_id}"):
            if error:
                client.set_tag(run_id, names.ERROR_TAG, error)
            _forget_process(client, run_id)
            mlflow.end_run(status)
            links = tuple(run_links(client, client.get_run(run_id)))
    except ClearError as refusal:
        links = ()
        error, code = f"{error}; {refusal}" if error else str(refusal), code or 2
    return Outcome(code, status, run_id, scores, error, links)


def score(client: MlflowClient, run_id: str) -> Scores:
    """Read a run's rows back, log the scores that MLflow lacks, and give them."""
    with explained(f"read run {run_id}"):
        run = client.get_run(run_id)
    scores = read_scores(client, run)
    if not scores.is_stored:
        write_scores(client, run, scores)
    return scores


def train_in_process(client: MlflowClient, training: Training, asked: Mapping[str, str]) -> Scores:
    """Train in this process, into the active MLflow run or one of its own.

    An active run is joined and left open; a run that this opens is closed, whatever happens.

    Args:
        client: what :func:`~clear_mlflow.tracking.preflight.preflight` gave.
        training: ready to begin.
        asked: parameters as text, as the user gave them.
    """
    joined = mlflow.active_run()
    run_id = joined.info.run_id if joined else _open_run(client, training.config)
    status = "FAILED"
    try:
        try:
            with TrackedRun(client, run_id, training.config, asked) as run:
                track(training, run)
        finally:
            scores = score(client, run_id)
            _forget_process(client, run_id)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        if joined is None:
            mlflow.end_run(status)
    return scores


def _forget_process(client: MlflowClient, run_id: str) -> None:
    """The run is closed: nobody needs to know any more whether its process lives."""
    if names.PROCESS_TAG in client.get_run(run_id).data.tags:
        client.delete_tag(run_id, names.PROCESS_TAG)


def _open_run(client: MlflowClient, config: TrainConfig) -> str:
    """Start an MLflow run, or take up the one that the environment names."""
    named = MLFLOW_RUN_ID.get()
    # "replay digits seed 3" tells more than "upbeat-foal-91"; a name that a person gave stays.
    keeps_name = named and not is_generated(client.get_run(named).info.run_name)
    monitor = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
    run = mlflow.start_run(
        run_name=None if keeps_name else f"{config.strategy} {config.dataset} seed {config.seed}",
        log_system_metrics=monitor.get() if monitor.is_set() else True,
    )
    return str(run.info.run_id)


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Hand the first stopping signal on to ``stop``, and ignore its repeats.

    A Ctrl-C under ``mlflow run`` arrives twice: from the terminal, and from MLflow.

    Yields:
        The signals received, in order.
    """
    received: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if len(received) == 1:
            name = signal.Signals(signum).name
            print(f"{name}: stopping; the rows so far will be scored", file=sys.stderr, flush=True)
            stop()

    before = {signum: signal.signal(signum, handle) for signum in _STOPPING}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
