"""A training from the first check to the closed run: supervised in a child, or in this process."""

from __future__ import annotations

import dataclasses
import functools
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import RunTag
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING, MLFLOW_RUN_ID
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT, MLFLOW_RUN_NOTE

from clear_mlflow.config import NONE, TrainConfig
from clear_mlflow.errors import ClearError, DivergedError, TrackingError
from clear_mlflow.process.parent import TrainingDied, TrainingProcess
from clear_mlflow.process.siblings import Siblings
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.ranks import ALONE_HERE, Place
from clear_mlflow.tracking import names
from clear_mlflow.tracking.contention import despite_others
from clear_mlflow.tracking.ensemble import TrackedEnsemble
from clear_mlflow.tracking.generated_names import is_generated
from clear_mlflow.tracking.leaving import hurried, leave, release
from clear_mlflow.tracking.links import run_links
from clear_mlflow.tracking.liveness import heartbeat, trains_now
from clear_mlflow.tracking.outbox import UnsentError, is_final
from clear_mlflow.tracking.preflight import explained, preflight
from clear_mlflow.tracking.resume import (
    ResumePoint,
    check_data,
    check_parameters,
    holds_rows,
    open_again,
    parameters_to_resume,
    read_resume_point,
)
from clear_mlflow.tracking.rows import refuse_foreign_rows
from clear_mlflow.tracking.scoring import Scores, read_scores, write_scores
from clear_mlflow.tracking.spool import End
from clear_mlflow.tracking.tracked_run import TrackedRun, run_name, track
from clear_mlflow.tracking.warning import warn
from clear_mlflow.training import Training

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
    diverged: bool = False  # the loss or the model's output was no longer a number
    links: tuple[str, ...] = ()  # lines that tell where to look at the run
    seed: int | None = None  # of the member of an ensemble that diverged
    members: Mapping[int, Scores] = field(default_factory=dict)  # of an ensemble, by seed
    note: str | None = None  # what else there is to say, in one line
    unsent: UnsentError | None = None  # what was measured waits on local disk: the store was away


def train_supervised(
    asked: Mapping[str, str], signals: StoppingSignals, place: Place = ALONE_HERE
) -> Outcome:
    """Train in a child process, and close the record however that ends.

    This is the post-run hook, too: when the child is done, has failed, was stopped by a signal to
    this process or its group, or was killed, the rows are read back from the artifact store and
    scored, and the run is given the status that is true. MLflow has no plugin point for that.

    Args:
        asked: parameters as text; see :class:`~clear_mlflow.config.TrainConfig`.
        signals: entered already, so that none is missed while this starts.
        place: among the processes that train together; the record is kept by the first.
    """
    siblings = Siblings(place)
    with TrainingProcess(asked) as process:

        def stop() -> None:
            siblings.look()
            process.stop()

        signals.hand_to(stop)
        try:
            client = preflight()
            named = _interrupted_run(client)
            if named is None:
                config = process.config
                run_id = _open_run(client, config)
        except (ClearError, TrainingDied) as error:
            process.stop()
            return _close_unopened(_outcome(error, signals.received))
        if named is None:
            siblings.find()
            return _train(client, process, run_id, config, asked, signals, place, siblings)
        # It has checked its parameters and no more: those of the run are what counts.
        process.stop()
    return resume_supervised(named, asked, signals, place)


def resume_supervised(
    run_id: str, given: Mapping[str, str], signals: StoppingSignals, place: Place = ALONE_HERE
) -> Outcome:
    """Go on with a run that was interrupted, as :func:`train_supervised` would have.

    What is wrong is told before the run is changed.

    Args:
        run_id: of the run.
        given: parameters that a user names beside it, as text; see
            :func:`~clear_mlflow.tracking.resume.parameters_to_resume`.
        signals: entered already.
        place: among the processes that train together.
    """
    siblings = Siblings(place)
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as folder:
        try:
            client = preflight(opens_run=False)
            beside = _tell_of_resume(client, run_id)
        except ClearError as error:
            return _close_unopened(_outcome(error, signals.received))
        try:
            point = read_resume_point(client, run_id, Path(folder))
            asked = parameters_to_resume(point, given)
        except ClearError as error:
            return _close_beside(client, beside, _outcome(error, signals.received))
        if point.is_complete:
            return _close_beside(client, beside, _close_complete(client, point))
        with TrainingProcess(asked) as process:

            def stop() -> None:
                siblings.look()
                process.stop()

            signals.hand_to(stop)
            try:
                config = process.config
                check_parameters(point, config)
                siblings.find()
                check_data(point, process.facts)
                open_again(client, point)
            except (ClearError, TrainingDied) as error:
                process.stop()
                outcome = _outcome(error, signals.received, None, siblings.died)
                return _close_beside(client, beside, outcome)
            if point.state is not None:
                process.resume_from(point.state.file)
            outcome = _train(
                client, process, run_id, config, asked, signals, place, siblings, point
            )
        return _close_beside(client, beside, outcome)


def _train(
    client: MlflowClient,
    process: TrainingProcess,
    run_id: str,
    config: TrainConfig,
    asked: Mapping[str, str],
    signals: StoppingSignals,
    place: Place,
    siblings: Siblings,
    resumed: ResumePoint | None = None,
) -> Outcome:
    """Train into a run that is open, and close it."""
    if place.size > 1:
        with suppress(ClearError), explained(f"tag run {run_id}"):
            client.set_tag(run_id, names.PROCESSES_TAG, str(place.size))
    ensemble = None if config.seeds == NONE else TrackedEnsemble(client, run_id, config, asked)
    try:
        if ensemble is not None:
            with ensemble:
                ensemble.track(process)
        else:
            with TrackedRun(client, run_id, config, asked, resumed=resumed) as run:
                track(process, run)
    except (ClearError, TrainingDied) as error:
        process.stop()
        outcome = _outcome(error, signals.received, run_id, siblings.died)
        return _close(client, run_id, outcome, ensemble)
    except BaseException as error:
        bug = f"{type(error).__name__}: {error}"
        _close(client, run_id, Outcome(1, "FAILED", run_id, None, bug), ensemble)
        raise
    return _close(client, run_id, Outcome(0, "FINISHED", run_id, None, None), ensemble)


def _interrupted_run(client: MlflowClient) -> str | None:
    """The run that the environment names, where an earlier training into it left rows."""
    named = MLFLOW_RUN_ID.get()
    if not named or mlflow.active_run() is not None:
        return None
    with explained(f"read run {named}"):
        return named if holds_rows(client, named) else None


def _tell_of_resume(client: MlflowClient, run_id: str) -> str | None:
    """Make the run that ``mlflow run -P resume=RUN`` opened say what it is; gives its id."""
    beside = MLFLOW_RUN_ID.get()
    if not beside or beside == run_id:
        return None
    with explained(f"read run {beside}"):
        run = client.get_run(beside)
        if MLFLOW_PROJECT_ENTRY_POINT not in run.data.tags:
            return None
        tags = {
            names.KIND_TAG: names.KIND_RESUME,
            names.RESUMED_TAG: run_id,
            MLFLOW_RUN_NOTE: f"Goes on with run {run_id}, which holds all that was measured.",
        }
        client.log_batch(beside, tags=[RunTag(key, text) for key, text in tags.items()])
        if is_generated(run.info.run_name):
            client.update_run(beside, name=f"resume of {run_id}")
    return str(beside)


def _close_beside(client: MlflowClient, beside: str | None, outcome: Outcome) -> Outcome:
    """Give the run that ``mlflow run`` opened the status of the one that was resumed.

    A signal to the process group ends MLflow itself, which would have closed it.
    """
    if beside is not None:
        with suppress(ClearError), explained(f"close run {beside}"):
            if outcome.error:
                client.set_tag(beside, names.ERROR_TAG, outcome.error)
            client.set_terminated(beside, outcome.status)
    return outcome


def _close_complete(client: MlflowClient, point: ResumePoint) -> Outcome:
    """Nothing is left to train: score the run if it is not, and close it if it was left open."""
    run_id = point.run.info.run_id
    told = f"run {run_id} holds all of its rows; there is nothing to resume"
    if str(point.run.info.status) == "FINISHED":
        with suppress(ClearError):
            return Outcome(0, "FINISHED", run_id, score(client, run_id), None, note=told)
    closed = _close_run(
        client,
        run_id,
        Outcome(0, "FINISHED", run_id, None, None),
        functools.partial(client.set_terminated, run_id),
    )
    return dataclasses.replace(closed, note=told)


def _outcome(
    error: ClearError | TrainingDied,
    received: list[int],
    run_id: str | None = None,
    died: tuple[int, ...] = (),
) -> Outcome:
    if isinstance(error, UnsentError):
        cause = error.__cause__
        if isinstance(cause, (ClearError, TrainingDied)):
            outcome = _outcome(cause, received, run_id, died)
            return dataclasses.replace(outcome, unsent=error)
        return _unsent_outcome(error, run_id)
    if died:
        which = " and ".join(map(str, died))
        return Outcome(
            1, "FAILED", run_id, None, f"the process of rank {which} ended before its training did"
        )
    if received:
        signum = received[0]
        return Outcome(
            128 + signum, "KILLED", run_id, None, f"stopped by {signal.Signals(signum).name}"
        )
    if isinstance(error, ClearError):
        diverged = isinstance(error, DivergedError)
        seed = error.seed if isinstance(error, DivergedError) else None
        return Outcome(2, "FAILED", run_id, None, str(error), diverged, seed=seed)
    if -error.returncode in _KILLING:
        return Outcome(128 - error.returncode, "KILLED", run_id, None, str(error))
    return Outcome(1, "FAILED", run_id, None, str(error))


def _unsent_outcome(error: UnsentError, run_id: str | None) -> Outcome:
    """How a training in this process ended whose rows wait on local disk."""
    cause = error.__cause__
    if cause is None:
        return Outcome(2, "FINISHED", run_id, None, None, unsent=error)
    return Outcome(
        1,
        "KILLED" if isinstance(cause, KeyboardInterrupt) else "FAILED",
        run_id,
        None,
        f"{type(cause).__name__}: {cause}",
        diverged=isinstance(cause, DivergedError),
        seed=cause.seed if isinstance(cause, DivergedError) else None,
        unsent=error,
    )


def _close_unopened(outcome: Outcome) -> Outcome:
    """Close the run that ``mlflow run`` opened for a training that was stopped before it began.

    A signal to the process group ends MLflow itself, which would have closed it.
    """
    run_id = MLFLOW_RUN_ID.get()
    if outcome.status == "KILLED" and run_id:
        with suppress(ClearError), explained(f"close run {run_id}"):
            client = MlflowClient()
            run = client.get_run(run_id)
            if MLFLOW_PROJECT_ENTRY_POINT in run.data.tags and run.info.status == "RUNNING":
                client.set_tag(run_id, names.ERROR_TAG, outcome.error)
                client.set_terminated(run_id, outcome.status)
    return outcome


def _close(
    client: MlflowClient,
    run_id: str,
    outcome: Outcome,
    ensemble: TrackedEnsemble | None,
    end: Callable[[str], object] = mlflow.end_run,
) -> Outcome:
    """Close a run, and before it the members that it stands above."""
    if outcome.unsent is not None:
        return _leave(client, run_id, outcome, ensemble, end)
    if ensemble is None:
        return _close_run(client, run_id, outcome, end)
    scores: dict[int, Scores] = {}
    for seed, member_id in ensemble.run_ids.items():
        of_member = dataclasses.replace(
            outcome, run_id=member_id, diverged=outcome.diverged and outcome.seed == seed
        )
        closed = _close_run(
            client, member_id, of_member, functools.partial(client.set_terminated, member_id)
        )
        if closed.scores is not None:
            scores[seed] = closed.scores
        if closed.exit_code and not outcome.exit_code:
            outcome = dataclasses.replace(
                outcome,
                exit_code=closed.exit_code,
                status="FAILED",
                error=f"seed {seed}: {closed.error}",
            )
    try:
        if len(scores) == len(ensemble.run_ids):
            ensemble.summarize(scores)
    except ClearError as refusal:
        error = "; ".join(filter(None, (outcome.error, str(refusal))))
        outcome = dataclasses.replace(
            outcome, exit_code=outcome.exit_code or 2, status="FAILED", error=error
        )
    return dataclasses.replace(_close_run(client, run_id, outcome, end), members=scores)


def _leave(
    client: MlflowClient,
    run_id: str,
    outcome: Outcome,
    ensemble: TrackedEnsemble | None,
    end: Callable[[str], object] | None,
) -> Outcome:
    """Keep how a training ended whose rows the store did not take; nothing is asked of the store.

    Args:
        client: the store that is away.
        run_id: of the run.
        outcome: how it ended.
        ensemble: the members that it stands above.
        end: what ends the run; None where it is not ours to end.
    """
    unsent = outcome.unsent
    folders = {} if unsent is None else unsent.folders
    members = {} if ensemble is None else ensemble.run_ids
    for seed, member_id in members.items():
        diverged = outcome.diverged and outcome.seed == seed
        told = End(outcome.status, outcome.error, diverged)
        leave(client, member_id, told, folders.get(member_id))
    status = None if end is None else outcome.status
    leave(client, run_id, End(status, outcome.error, outcome.diverged), folders.get(run_id))
    if end is not None:
        release(run_id, end)
    error = "; ".join(filter(None, (outcome.error, str(unsent))))
    return dataclasses.replace(outcome, exit_code=outcome.exit_code or 2, error=error)


def _close_run(
    client: MlflowClient,
    run_id: str,
    outcome: Outcome,
    end: Callable[[str], object] = mlflow.end_run,
) -> Outcome:
    """Score what is stored, say why the run ended, and set its status."""
    scores, code, status = None, outcome.exit_code, outcome.status
    errors = [outcome.error] if outcome.error else []
    calls = ExitStack()
    try:
        scores = score(client, run_id)
    except ClearError as refusal:
        # Training went well or not; that its record is not in order is what counts now.
        errors.append(str(refusal))
        if isinstance(refusal, TrackingError) and not is_final(refusal):
            calls.enter_context(hurried())
        code, status = code or 2, "FAILED" if status == "FINISHED" else status
    links: tuple[str, ...] = ()
    try:
        with calls, explained(f"close run {run_id}"):
            if errors:
                client.set_tag(run_id, names.ERROR_TAG, "; ".join(errors))
            if outcome.diverged:
                client.set_tag(run_id, names.DIVERGED_TAG, "true")
            # The status first: while a run is RUNNING, its process has to be known.
            end(status)
            _forget_process(client, run_id)
            links = tuple(run_links(client, client.get_run(run_id)))
    except ClearError as refusal:
        errors.append(str(refusal))
        code = code or 2
        if not is_final(refusal):
            release(run_id, end)
            told = End(outcome.status, outcome.error, outcome.diverged)
            errors.append(leave(client, run_id, told))
    return dataclasses.replace(
        outcome,
        exit_code=code,
        status=status,
        scores=scores,
        error="; ".join(filter(None, errors)) or None,
        links=links,
    )


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
    trained = False
    try:
        with TrackedRun(client, run_id, training.config, asked) as run:
            track(training, run)
        trained = True
        scores = score(client, run_id)
    except UnsentError as error:
        outcome = _unsent_outcome(error, run_id)
        _leave(client, run_id, outcome, None, None if joined else mlflow.end_run)
        raise
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        # What the rows so far define is logged if it can be. The caller gets the first error, and
        # is told of a second one: it must not take the first one's place.
        try:
            with explained(f"score run {run_id}"):
                client.set_tag(run_id, names.ERROR_TAG, f"{type(error).__name__}: {error}")
                if isinstance(error, DivergedError):
                    client.set_tag(run_id, names.DIVERGED_TAG, "true")
                score(client, run_id)
        except ClearError as refusal:
            warn(str(refusal))
        kept = End(status, f"{type(error).__name__}: {error}", isinstance(error, DivergedError))
        if trained and isinstance(error, TrackingError) and not is_final(error):
            kept = End("FINISHED")  # all is stored; it could not be read back
        _end(client, run_id, status, joined is None, kept)
        raise
    _end(client, run_id, "FINISHED", joined is None, End("FINISHED"))
    return scores


def _end(client: MlflowClient, run_id: str, status: str, ours: bool, kept: End) -> None:
    """Close a run of this process, or keep how it ended where the store is away.

    Args:
        client: the store.
        run_id: of the run.
        status: that it is given.
        ours: whether it was opened here; a run that was joined is left open.
        kept: what sync will close it with.
    """
    try:
        with explained(f"close run {run_id}"):
            if ours:
                mlflow.end_run(status)
            _forget_process(client, run_id)
    except ClearError as refusal:
        told = leave(client, run_id, kept if ours else dataclasses.replace(kept, status=None))
        release(run_id, mlflow.end_run if ours else lambda _: None)
        warn(f"{refusal}; {told}")


def train_ensemble_in_process(
    client: MlflowClient, training: Training, asked: Mapping[str, str]
) -> dict[int, Scores]:
    """Train members together in this process, each into a run of its own below one of all.

    An active run is joined as the one above them and left open; the members' runs are closed,
    whatever happens.

    Args:
        client: what :func:`~clear_mlflow.tracking.preflight.preflight` gave.
        training: ready to begin; its configuration has ``seeds``.
        asked: parameters as text, as the user gave them.

    Returns:
        Seed to scores.
    """
    joined = mlflow.active_run()
    run_id = joined.info.run_id if joined else _open_run(client, training.config)
    ensemble = TrackedEnsemble(client, run_id, training.config, asked)
    outcome = Outcome(0, "FINISHED", run_id, None, None)

    def end(status: str) -> None:
        if joined is None:
            mlflow.end_run(status)

    try:
        with ensemble:
            ensemble.track(training)
    except UnsentError as error:
        outcome = _unsent_outcome(error, run_id)
        _leave(client, run_id, outcome, ensemble, None if joined else mlflow.end_run)
        raise
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        told = f"{type(error).__name__}: {error}"
        diverged = isinstance(error, DivergedError)
        seed = error.seed if isinstance(error, DivergedError) else None
        outcome = Outcome(1, status, run_id, None, told, diverged, seed=seed)
        closed = _close(client, run_id, outcome, ensemble, end)
        if closed.error != told:
            warn(str(closed.error))
        raise
    closed = _close(client, run_id, outcome, ensemble, end)
    if closed.error is not None:
        raise TrackingError(closed.error)
    return dict(closed.members)


def _forget_process(client: MlflowClient, run_id: str) -> None:
    """The run is closed: nobody needs to know any more whether its process lives."""
    if names.PROCESS_TAG in client.get_run(run_id).data.tags:
        client.delete_tag(run_id, names.PROCESS_TAG)


def _open_run(client: MlflowClient, config: TrainConfig) -> str:
    """Start an MLflow run, or take up the one that the environment names.

    Raises:
        TrackingError: that run holds rows already, or another process trains into it; it is left
            as it is.
    """
    named = MLFLOW_RUN_ID.get()
    monitor = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
    with explained("open a run"):
        name: str | None = run_name(config)
        if named:
            run = client.get_run(named)
            if trains_now(run):
                raise TrackingError(
                    f"another process trains into run {named} now; unset MLFLOW_RUN_ID for a run "
                    "of its own"
                )
            refuse_foreign_rows(client, run)
            # MLflow's "upbeat-foal-91" tells nobody anything; a person's own name stays.
            name = name if is_generated(run.info.run_name) else None
        opened = despite_others(
            functools.partial(
                mlflow.start_run,
                run_name=name,
                tags={names.PROCESS_TAG: heartbeat()},
                log_system_metrics=monitor.get() if monitor.is_set() else True,
            )
        )
    return str(opened.info.run_id)
