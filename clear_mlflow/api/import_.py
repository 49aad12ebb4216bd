"""A matrix of another program as an MLflow run, its rows artifacts as a training has them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Param, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from numpy.typing import NDArray

from clear_mlflow.api.load import load as load_run
from clear_mlflow.core.errors import ClearError, ConfigError, DataError
from clear_mlflow.core.loop_metadata import UNKNOWN
from clear_mlflow.core.matrix import TEST, AccuracyMatrix
from clear_mlflow.core.record import DatasetIdentity, Record, RowRecord, row_file_name
from clear_mlflow.core.text import safe_repr, truncate
from clear_mlflow.core.untrusted import JSON, MAX_IMPORTED_FILES
from clear_mlflow.core.version import __version__
from clear_mlflow.importers import (
    FORMATS,
    Format,
    Imported,
    Reading,
    as_rows,
    load,
    passed_over,
    read_runs,
    recognise,
)
from clear_mlflow.journal.run_folder import Outcome
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.metrics import ALL_METRICS, DEFAULT_FAMILIES, of_score
from clear_mlflow.scoring.families import families_tag
from clear_mlflow.scoring.scores import score
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.rows import store_row
from clear_mlflow.store.search import get_or_create_experiment, search_runs
from clear_mlflow.tracking.lifecycle import create_run
from clear_mlflow.tracking.run_recorder import utc_now

FAILED = "failed"
_LONGEST_NAME = 150
# In a folder, a file that ends so is one of results; any other may be anything.
_ENDINGS = (".csv", ".tsv", ".npy", ".npz", ".json", ".pyd")


@dataclass(frozen=True, kw_only=True)
class ImportMetadata:
    """What a person says of the runs that are imported; it overrides what a file says."""

    dataset: str | None = None
    strategy: str | None = None
    seed: int | None = None
    protocol: str = "iid"
    split: str = TEST
    families: tuple[str, ...] = DEFAULT_FAMILIES  # of metrics to log
    same_data_as: str | None = None  # a run that was tested on the same data


@dataclass(frozen=True)
class ImportedFile:
    """What became of one run of a file, or of a file that gives none."""

    file: str  # below the folder that was searched
    run_id: str | None = None
    run_name: str | None = None
    outcome: str = FAILED  # or "imported", "there already", "passed over"
    detail: str = ""


class Importer:
    """Opens a run in one experiment for each matrix that it does not hold yet (*again*: all)."""

    def __init__(
        self, client: MlflowClient, experiment: str | None, facts: ImportMetadata, *, again: bool
    ) -> None:
        self.client = client
        self.facts = facts
        self.experiment_id = get_or_create_experiment(client, experiment)
        self._there = {} if again else _imported_before(client, self.experiment_id)
        self._again = again
        self._same_data = _read_same_data(facts)
        self._taken: dict[Path, list[tuple[Path, NDArray[np.float64]]]] = {}  # by folder

    def files(
        self, paths: Iterable[Path], reading: Reading, *, kind: str, name: str | None
    ) -> Iterator[ImportedFile]:
        """Import files, and those of folders; one that cannot be read stops no other."""
        if self._same_data is not None:
            reading = replace(reading, same_data_as=self._same_data.matrix)
        for path, label, reason in _files(paths):
            if reason is not None:
                yield ImportedFile(label, outcome="passed over", detail=reason)
                continue
            try:
                source = load(path)
                found = recognise(source) if kind == AUTO else FORMATS[kind]
                runs = read_runs(source, kind=found.name if found else AUTO, reading=reading)
                for run in runs:
                    if copy := self._find_copy(path, run.matrix):
                        same = f"contains the same matrix as {copy}"
                        yield ImportedFile(label, outcome="passed over", detail=same)
                        continue
                    title = (name or str(Path(label).with_suffix("")), run.label)
                    yield self._take(run, path.name, label, found, " ".join(filter(None, title)))
            except ClearError as error:
                yield ImportedFile(label, detail=str(error))

    def _find_copy(self, path: Path, matrix: AccuracyMatrix) -> str:
        """Return the file of another type next to this one with the same matrix, to 4 digits."""
        taken = self._taken.setdefault(path.parent, [])
        for other, values in taken:
            is_other_type = other.suffix != path.suffix and values.shape == matrix.values.shape
            if is_other_type and np.allclose(values, matrix.values, 0, 6e-5, equal_nan=True):
                return other.name
        taken.append((path, matrix.values))
        return ""

    def _take(
        self, imported: Imported, file: str, label: str, found: Format | None, run_name: str
    ) -> ImportedFile:
        """Store one run of a file, score it from what was stored, and close it."""
        kind = found.name if found else ""
        if (there := self._there.get(imported.digest)) is not None:
            detail = "its content was imported before (--again imports it once more)"
            return ImportedFile(label, *there, "there already", detail)
        of_score(ALL_METRICS, imported.matrix.score)  # before a run is opened: is its name free
        facts = self._facts_of(imported)
        # Each row says where it is from.
        origin: JSON = {"format": kind, "digest": imported.digest}
        dataset = self._same_data.dataset if self._same_data is not None else None
        records = foreign_records(imported.matrix, facts, origin, dataset)
        name = truncate(run_name, _LONGEST_NAME)
        shown_file = truncate(file, _LONGEST_NAME)
        tags = {
            MLFLOW_RUN_NAME: name,
            names.KIND_TAG: names.KIND_TRAIN,
            names.IMPORTED_FROM_TAG: shown_file,
            names.IMPORT_FORMAT_TAG: kind,
            names.VERSION_TAG: __version__,
            **families_tag(self.facts.families, {}),
            **facts,
        }
        with mlflow_errors(f"open a run for {shown_file}"):
            run_id = create_run(self.client, self.experiment_id, name, tags)
        status = "FAILED"
        try:
            with mlflow_errors(f"log what is known of {shown_file} into run {run_id}"):
                params = [Param(key, value) for key, value in facts.items()]
                self.client.log_batch(run_id, params=params)
                run = self.client.get_run(run_id)
            for record in records:
                content = record.to_json().encode()
                store_row(self.client, run, row_file_name(record.row.row), content)
            scores = score(self.client, run_id)
            # Last of all: a run that has this tag is whole.
            with mlflow_errors(f"close run {run_id}"):
                digest = [RunTag(names.IMPORTED_DIGEST_TAG, imported.digest)]
                self.client.log_batch(run_id, tags=digest)
            status = "FINISHED"
        finally:
            # What happened is in the error that is raised on from here.
            with suppress(ClearError):
                store_outcome(self.client, run_id, Outcome(status))
        if not self._again:
            self._there[imported.digest] = run_id, name
        rows = f"{imported.matrix.num_rows} of {imported.matrix.num_buckets} rows"
        detail = f"{rows}, {len(scores.summary)} metrics"
        return ImportedFile(label, run_id, name, "imported", detail)

    def _facts_of(self, imported: Imported) -> dict[str, str]:
        """Tags and parameters by which runs are grouped; what is not known is not there."""
        said, found_in, score = self.facts, imported.facts, imported.matrix.score
        seed = str(said.seed) if said.seed is not None else found_in.get("seed")
        found = {
            "strategy": said.strategy or found_in.get("strategy"),
            "dataset": said.dataset or found_in.get("dataset"),
            "model": found_in.get("model"),
            "seed": seed if seed_of(seed) is not None else None,
            "score": None if score.is_accuracy else score.name,
            "protocol": said.protocol,
            "split": said.split,
        }
        if self._same_data is not None:
            found["dataset"] = self._same_data.dataset.name
        return {key: truncate(value, _LONGEST_NAME) for key, value in found.items() if value}


def foreign_records(
    matrix: AccuracyMatrix,
    facts: Mapping[str, str],
    origin: JSON,
    dataset: DatasetIdentity | None = None,
) -> list[RowRecord]:
    """The rows of a matrix that another program measured; *origin* says where it is from."""
    written_at = utc_now()
    return [
        RowRecord(
            row=row,
            protocol=facts["protocol"],
            split=facts["split"],
            dataset=dataset or DatasetIdentity(facts.get("dataset", UNKNOWN), UNKNOWN),
            seed=seed_of(facts.get("seed")),
            package_version=__version__,
            written_at=written_at,
            extra={"imported": origin},
        )
        for row in as_rows(matrix)
    ]


def seed_of(text: str | None) -> int | None:
    """A seed as a record holds it; None where a file says something else."""
    if text is None or not text.isascii() or not text.removeprefix("-").isdecimal():
        return None
    value = int(text) if len(text) <= 20 else 2**64
    return value if -(2**63) <= value < 2**64 else None


def _read_same_data(metadata: ImportMetadata) -> Record | None:
    """Read the run whose data the imported files were tested on, or None if none was named."""
    if metadata.same_data_as is None:
        return None
    record = load_run(metadata.same_data_as).record
    name, digest = record.dataset.name, record.dataset.digest
    if digest == UNKNOWN or metadata.dataset not in (None, name):
        raise ConfigError(
            f"same_data_as names a run on dataset {safe_repr(name)} with the digest "
            f"{safe_repr(digest)}; expected a run with a known digest, and leave dataset out"
        )
    return record


def _imported_before(client: MlflowClient, experiment_id: str) -> dict[str, tuple[str, str]]:
    """Digest of what was imported into an experiment, to the id and the name of its run."""
    return {
        run.data.tags[names.IMPORTED_DIGEST_TAG]: (
            str(run.info.run_id),
            run.info.run_name or str(run.info.run_id),
        )
        for run in search_runs(client, [experiment_id], f"tags.`{names.IMPORTED_DIGEST_TAG}` != ''")
    }


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, str, str | None]]:
    """Files to import, labels, and why one is passed over; neither hidden ones nor links."""
    for root in paths:
        if not os.path.isdir(root):  # noqa: PTH112  (False, too, where one may not look)
            yield root, root.name, None
            continue
        num_files = 0
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            visible = sorted(name for name in files if not name.startswith("."))
            num_files += len(folders) + len(visible)
            if num_files > MAX_IMPORTED_FILES:
                raise DataError(
                    f"{safe_repr(root.name)} holds more than {MAX_IMPORTED_FILES} files; import "
                    "its folders one by one"
                )
            reasons = passed_over(visible)
            for path in (Path(folder, name) for name in visible):
                if path.is_file() and not path.is_symlink():
                    reason = reasons.get(path.name) or _reason(path)
                    yield path, str(path.relative_to(root)), reason


def _reason(path: Path) -> str | None:
    """Return why a file is not imported, by its content; None if it is to be imported."""
    if path.suffix.lower() in _ENDINGS:
        return None  # whoever reads it says what is wrong with it
    try:
        return None if recognise(load(path)) else "of no format that is read"
    except DataError as error:
        return str(error)
