"""A run's tests inside its buckets: read them, and compute what they define."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, AnytimeRow, anytime_place
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import MAX_ANYTIME_FILES, MAX_ROW_BYTES, read_bytes
from clear_mlflow.metrics import anytime
from clear_mlflow.metrics._common import evaluated, over_course
from clear_mlflow.scoring.computed import AnytimeScores, stamp_of
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.pool import mapped

# Requests under way at once.
_JOBS = 8


def read_anytime_scores(
    client: MlflowClient, run: Run, record: Record, *, thorough: bool = False
) -> AnytimeScores:
    """Everything that a run's tests inside its buckets define; nothing is written.

    A run that holds all of this already, as a tag of it says, is asked for nothing unless
    *thorough*: what its metrics show is the summary.
    """
    if names.ANYTIME_TAG not in run.data.tags:
        return AnytimeScores()
    stamp = stamp_of(record, anytime.METRICS)
    if not thorough and run.data.tags.get(names.ANYTIME_SCORED_TAG) == stamp:
        logged = run.data.metrics
        summary = {m.name: logged[m.name] for m in anytime.METRICS if m.name in logged}
        return AnytimeScores(summary, is_unread=True)
    try:
        tests = read_tests(client, run)
        matrix = AnytimeMatrix.of_tests(tests, record.matrix, record.protocol)
    except RecordError as error:
        # The rows are whole without: they are scored, and this is reported beside them.
        return AnytimeScores(problem=str(error))
    summary, undefined = evaluated(matrix, anytime.METRICS)
    return AnytimeScores(
        summary=summary,
        points=over_course(matrix, anytime.METRICS),
        reasons={name: str(error) for name, error in undefined.items()},
        # Tests that lack may still arrive, as by sync: they are looked for again.
        stamp=stamp if matrix.is_complete else None,
        matrix=matrix,
    )


def read_tests(client: MlflowClient, run: Run) -> list[AnytimeRow]:
    """All tests inside buckets that a run holds; a RecordError where one is damaged."""
    sizes = sizes_of_tests(client, run)
    if len(sizes) > MAX_ANYTIME_FILES:
        raise RecordError(f"{ANYTIME_FOLDER} holds {len(sizes)} files; no run has so many tests")
    for name, size in sizes.items():
        if size is not None and size > MAX_ROW_BYTES:
            raise RecordError(f"{name} has {size} bytes; a test has at most 1 MiB")
    tests = ArtifactFolder(client, run, ANYTIME_FOLDER)
    with tests.scratch() as scratch:
        return list(mapped(partial(_read_test, tests, run.info.run_id, scratch), sizes, _JOBS))


def sizes_of_tests(client: MlflowClient, run: Run) -> dict[str, int | None]:
    """Names and bytes of the files of a run's tests, in their order; None: the store says none."""
    with mlflow_errors(f"list the tests inside buckets of run {run.info.run_id}"):
        sizes = ArtifactFolder(client, run, ANYTIME_FOLDER).sizes()
    return {name: sizes[name] for name in sorted(sizes) if anytime_place(name) is not None}


def _read_test(tests: ArtifactFolder, run_id: str, scratch: Path, name: str) -> AnytimeRow:
    with mlflow_errors(f"read {name} of run {run_id}"):
        content = read_bytes(tests.file(name, scratch), MAX_ROW_BYTES)
    return AnytimeRow.from_json(content, source=name)
