"""Matrices of other programs as MLflow runs, their rows stored as a training stores them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.api.bundle import BundleSource, is_bundle_path, read_bundles
from clear_mlflow.api.import_options import ImportOptions
from clear_mlflow.api.load import load
from clear_mlflow.core.dataset import UNKNOWN, DatasetDescription
from clear_mlflow.core.errors import ClearError, ConfigError, DataError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow, stack_all_rows
from clear_mlflow.core.record import (
    ROWS_FOLDER,
    Record,
    RowRecord,
    assemble,
    format_row_file_name,
    utc_now,
)
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import format_count, safe_repr, truncate
from clear_mlflow.core.untrusted import JSON, MAX_IMPORTED_FILES, format_document_name
from clear_mlflow.core.version import __version__
from clear_mlflow.importers import (
    ImportedRun,
    ReadOptions,
    detect_format,
    find_skipped_files,
    load_file,
    parse_runs,
)
from clear_mlflow.journal.reading import read_run
from clear_mlflow.journal.run_folder import (
    INFO_JSON,
    INPUTS_JSON,
    PARAMS_JSON,
    TAGS_JSON,
    RunFolder,
    StoredInfo,
)
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.metrics import ALL_METRICS, DEFAULT_FAMILIES, adapt_metrics, split_families
from clear_mlflow.scoring import ActionResult
from clear_mlflow.scoring.run_record import build_families_tag
from clear_mlflow.store import names
from clear_mlflow.store.client import connect_store, set_up_mlflow
from clear_mlflow.store.offline import NO_EXPERIMENT, is_offline_folder
from clear_mlflow.store.rows import parse_rows, unpack_matrix_tag
from clear_mlflow.store.search import find_or_create_experiment, search_runs
from clear_mlflow.tracking.copy_runs import COPIED, FAILED, IN_USE, STORED, RunCopier
from clear_mlflow.tracking.lifecycle import build_type_tags
from clear_mlflow.tracking.run_sources import RunSource, open_sources

IMPORTED, SKIPPED = "imported", "skipped"
_MAX_NAME_LENGTH = 150
# In a folder, a file with one of these endings is read as results; others only if they match.
_ENDINGS = (".csv", ".tsv", ".npy", ".npz", ".json", ".pyd")


@dataclass(frozen=True)
class _StoredImport:
    """An imported run of the experiment, earlier or now."""

    run_id: str
    run_name: str
    file: str  # name
    metadata: Mapping[str, str]  # strategy, seed and so on; may contain other tags
    digest: str  # "" of a run of this call
    matrix: AccuracyMatrix | None  # None if the run's tag lacks a readable one
    path: Path | None = None  # None for an earlier call


def import_runs(options: ImportOptions) -> Iterator[ActionResult]:
    """Store each matrix in files or folders as an MLflow run.

    Its metrics are logged as well. Yields what was done with each run and each file without a run.
    An error in a file is in its result and does not stop the others. A matrix that the experiment
    has, from any file, is not imported again unless ``again``, or with another explicit strategy,
    seed, dataset, protocol or split. The runs of bundles are copied as they are; an option other
    than ``experiment`` is an error in their results.

    Raises:
        ConfigError: ``same_data_as``, ``num_instances`` or ``metrics`` is not valid.
        RecordError: ``score`` is not valid, or the run in ``same_data_as`` lacks rows.
        DataError: a folder contains more than 10,000 files.
        TrackingError: the store cannot be reached at the start, or lacks that run.
    """
    families = DEFAULT_FAMILIES
    if options.metrics != AUTO:
        families = split_families(options.metrics)
    if options.seed != AUTO and parse_seed(str(options.seed)) is None:
        raise ConfigError(
            f"seed is {safe_repr(options.seed)}; expected an integer of at most 64 bits",
            parameter="seed",
        )
    set_up_mlflow()
    client = connect_store(experiment=options.experiment, can_be_offline=False)
    experiment_id = find_or_create_experiment(client, options.experiment)
    reference, dataset = None, None
    if options.same_data_as is not None:
        reference = _read_reference(options.same_data_as, options.dataset)
        dataset = reference.dataset
    counts, buckets = options.num_instances, options.buckets
    read_options = ReadOptions(
        scale=options.scale,
        initial=options.initial,
        future=options.future,
        orientation=options.orientation,
        columns=() if options.columns == AUTO else tuple(options.columns),
        row_labels=options.row_labels,
        rows=options.rows,
        table=options.table,
        row_metric=options.row_metric,
        num_instances=None if counts is None else _parse_counts(counts),
        buckets=None if buckets == AUTO else tuple(key.strip() for key in buckets.split(",")),
        score=Score(options.score, higher_is_better=not options.lower_is_better),
        same_data_as=None if reference is None else reference.matrix,
    )
    overrides = {
        "dataset": options.dataset if dataset is None else dataset.name,
        "strategy": options.strategy,
        "seed": str(options.seed),
        "protocol": options.protocol,
        "split": options.split,
    }
    copier = RunCopier(client, options.experiment)
    imported = [] if options.again else _find_imported_runs(client, experiment_id)
    for path, label, reason in _iter_files(map(Path, options.paths or ()), read_options):
        if reason is not None:
            yield ActionResult(None, "", SKIPPED, reason, label)
            continue
        try:
            if is_bundle_path(path):
                yield from _copy_bundle(copier, path, label, options.list_passed())
                continue
            for run in parse_runs(load_file(path, read_options), options.format):
                if same := _find_same_run(imported, run, overrides):
                    detail = f"contains the same matrix as {same.file}"
                    action = SKIPPED if same.path not in (None, path) else STORED
                    if same.path is None:
                        detail += ", imported before (--again imports it once more)"
                    yield ActionResult(same.run_id, same.run_name, action, detail, label)
                    continue
                name = options.name
                title = str(Path(label).with_suffix("")) if name == AUTO else name
                run_name = truncate(f"{title} {run.label}".rstrip(), _MAX_NAME_LENGTH)
                file = truncate(path.name, _MAX_NAME_LENGTH)
                metadata = _merge_metadata(run, overrides)
                tags = {MLFLOW_RUN_NAME: run_name, names.IMPORTED_FROM_TAG: file}
                tags |= build_families_tag(families, {})
                stored = _store_run(copier, run, tags, metadata, dataset, again=options.again)
                if stored.action != COPIED or stored.is_problem:
                    yield _rename_action(stored, label)
                    continue
                run_id = str(stored.run_id)
                imported.append(
                    _StoredImport(run_id, run_name, file, metadata, "", run.matrix, path)
                )
                num_rows = (~np.isnan(run.matrix.values)).any(axis=1).sum()
                detail = f"{num_rows} of {format_count(run.matrix.num_buckets, 'row')}"
                detail += f"; {run.proof}" if run.proof else ""
                yield ActionResult(run_id, run_name, IMPORTED, detail, label)
        except (ClearError, OSError) as error:
            parameter = error.parameter if isinstance(error, ClearError) else None
            yield ActionResult(
                None, "", FAILED, str(error), label, is_problem=True, parameter=parameter
            )


def _copy_bundle(
    copier: RunCopier, path: Path, label: str, passed: Sequence[str]
) -> Iterator[ActionResult]:
    if is_offline_folder(path):
        raise ConfigError(f"{label} is an offline folder; send its runs: clear-mlflow sync {path}")
    if passed:
        raise ConfigError(
            f"{passed[0]} is passed for {label}, whose runs are imported as they are; leave "
            f"{passed[0]} out",
            parameter=passed[0],
        )
    sources = [BundleSource(copier.client, run) for run in read_bundles(path)]
    for copy in copier.copy_runs(sources):
        yield _rename_action(copy, label)


def copy_runs(
    store: str, runs: Sequence[str], experiment: str | None = None
) -> Iterator[ActionResult]:
    """Copy runs of another store, and yield what was done.

    An error is in its result.

    store, runs: see :func:`clear_mlflow.tracking.copy_runs.open_sources`. experiment: see
    :class:`clear_mlflow.tracking.copy_runs.RunCopier`.
    """
    set_up_mlflow()
    copier = RunCopier(connect_store(experiment=experiment, can_be_offline=False), experiment)
    for copy in copier.copy_runs(open_sources(store, runs)):
        yield _rename_action(copy)


def _rename_action(copy: ActionResult, file: str | None = None) -> ActionResult:
    """Return a copied run's result as an import's.

    file: its bundle, or None.
    """
    action = {COPIED: IMPORTED, IN_USE: SKIPPED}.get(copy.action, copy.action)
    return replace(copy, action=action, source=file or copy.source)


def _store_run(
    copier: RunCopier,
    run: ImportedRun,
    tags: Mapping[str, str],
    metadata: Mapping[str, str],
    dataset: DatasetDescription | None,
    *,
    again: bool,
) -> ActionResult:
    """Write a matrix to a run folder, and store a run.

    The next import of the same matrix continues one that was killed, unless *again*. tags: name of
    the run and others, in addition to *metadata*. dataset: of the run in ``same_data_as``, or None.
    """
    adapt_metrics(ALL_METRICS, run.matrix.score)  # raises ConfigError if the name is taken
    digest, time = _hash_matrix(run.matrix), get_current_time_millis()
    identity = hashlib.sha256(repr((digest, sorted(metadata.items()))).encode()).hexdigest()
    all_tags = {
        **build_type_tags(names.KIND_TRAIN),
        names.IMPORT_FORMAT_TAG: run.format_name,
        names.IMPORTED_DIGEST_TAG: digest,
        **tags,
        **metadata,
    }
    origin: JSON = {"format": run.format_name, "digest": digest}
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as path:
        folder = RunFolder(Path(path), is_durable=False)
        folder.append_json(PARAMS_JSON, metadata)
        folder.append_json(TAGS_JSON, resolve_tags(all_tags))
        folder.append_json(INPUTS_JSON, [])
        info = StoredInfo(
            name=tags[MLFLOW_RUN_NAME], status="FINISHED", start_time=time, end_time=time
        )
        folder.append_json(INFO_JSON, info)
        for record in build_records(run.matrix, metadata, origin, dataset):
            name = f"{ROWS_FOLDER}/{format_row_file_name(record.row.row)}"
            folder.append(name, record.to_json())
        folder.close()
        run_id = uuid4().hex if again else identity[:32]
        source = RunSource(copier.client, read_run(Path(path), run_id, NO_EXPERIMENT))
        return next(copier.copy_runs([source]))


def build_records(
    matrix: AccuracyMatrix,
    metadata: Mapping[str, str],
    origin: JSON,
    dataset: DatasetDescription | None = None,
) -> list[RowRecord]:
    """Convert each measured row of a matrix to its stored format.

    metadata: must contain protocol and split. origin: format of the file and hash of its matrix.
    dataset: name and hash of the test data; None to use the name in *metadata*.
    """
    written_at = utc_now()
    counts = None if matrix.num_instances is None else matrix.num_instances.tolist()
    first = [] if matrix.initial is None else [(0, matrix.initial)]
    described = replace(
        dataset or DatasetDescription(name=metadata.get("dataset", UNKNOWN)),
        protocol=metadata["protocol"],
        split=metadata["split"],
        buckets=matrix.buckets,
        num_test=None if counts is None else tuple(counts),
        score=matrix.score,
    )
    return [
        RowRecord(
            row=AccuracyRow.from_values(row, matrix.buckets, cells.tolist(), counts, matrix.score),
            dataset=described,
            seed=parse_seed(metadata.get("seed")),
            package_version=__version__,
            written_at=written_at,
            extra={"imported": origin},
        )
        for row, cells in [*first, *enumerate(matrix.values, start=1)]
        if not np.isnan(cells).all()
    ]


def parse_seed(text: str | None) -> int | None:
    """Return a seed as an integer, None if above 64 bits."""
    if text is None or not text.isascii() or not text.removeprefix("-").isdecimal():
        return None
    seed = int(text) if len(text) <= 20 else 2**64
    return seed if -(2**63) <= seed < 2**64 else None


def _merge_metadata(run: ImportedRun, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return metadata such as the seed: the user's, else the file's."""
    metadata = {**run.metadata, **{key: text for key, text in overrides.items() if text != AUTO}}
    if parse_seed(metadata.get("seed")) is None:
        metadata.pop("seed", None)
    if not run.matrix.score.is_accuracy:
        metadata["score"] = run.matrix.score.name
    return {key: truncate(text, _MAX_NAME_LENGTH) for key, text in metadata.items() if text}


def _read_reference(run: str, dataset: str) -> Record:
    """Load the matrix and dataset of the run in ``same_data_as``."""
    record = load(run).record
    name, digest = record.dataset.name, record.dataset.digest
    if digest == UNKNOWN or dataset not in (AUTO, name):
        raise ConfigError(
            f"same_data_as names a run on dataset {safe_repr(name)} with the digest "
            f"{safe_repr(digest)}; expected a run with a known digest, and dataset=auto",
            parameter="same_data_as",
        )
    return record


def _find_imported_runs(client: MlflowClient, experiment_id: str) -> list[_StoredImport]:
    """Return the FINISHED imports of an experiment: others are imported again."""
    condition = f"tags.`{names.IMPORTED_DIGEST_TAG}` != '' and attributes.status = 'FINISHED'"
    return [
        _StoredImport(
            run.info.run_id,
            run.info.run_name or run.info.run_id,
            format_document_name(run.data.tags.get(names.IMPORTED_FROM_TAG, "")),
            run.data.tags,
            run.data.tags[names.IMPORTED_DIGEST_TAG],
            _read_tagged_matrix(run),
        )
        for run in search_runs(client, [experiment_id], condition)
    ]


def _read_tagged_matrix(run: Run) -> AccuracyMatrix | None:
    """Return the matrix in a run's tag, None if not readable."""
    rows = unpack_matrix_tag(run.info.run_id, run.data.tags.get(names.MATRIX_TAG))
    with suppress(RecordError):  # for example in a newer format
        return assemble(parse_rows(rows)).matrix if rows else None
    return None


def _find_same_run(
    imported: Iterable[_StoredImport], run: ImportedRun, overrides: Mapping[str, str]
) -> _StoredImport | None:
    """Return an import with the same matrix and metadata, or None.

    What the user passes must be what is stored; what only the file contains may be missing there.
    """
    digest, metadata = _hash_matrix(run.matrix), _merge_metadata(run, overrides)
    for other in imported:
        is_same = other.digest == digest or (
            other.matrix is not None and _is_same_matrix(run.matrix, other.matrix)
        )
        stated = {
            key for key in metadata if key in other.metadata or overrides.get(key, AUTO) != AUTO
        }
        if is_same and all(other.metadata.get(key) == metadata[key] for key in stated):
            return other
    return None


def _hash_matrix(matrix: AccuracyMatrix) -> str:
    """Return "sha256:..." of a matrix, buckets and counts, in float32."""
    counts = None if matrix.num_instances is None else matrix.num_instances.tolist()
    cells = stack_all_rows(matrix).astype(np.float32).tolist()
    content = repr((matrix.score, matrix.buckets, counts, cells))
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def _is_same_matrix(matrix: AccuracyMatrix, other: AccuracyMatrix) -> bool:
    """Return True if matrices are equal to single precision or four decimals."""
    if matrix.score != other.score or matrix.buckets != other.buckets:
        return False
    if not np.array_equal(np.array(matrix.num_instances), np.array(other.num_instances)):
        return False
    grids = stack_all_rows(matrix), stack_all_rows(other)
    is_rounded = any(np.allclose(g.round(4), g, 0, 1e-9, equal_nan=True) for g in grids)
    tolerance = 6e-5 if is_rounded and matrix.score.is_accuracy else 0
    return np.allclose(*grids, rtol=1e-7, atol=tolerance, equal_nan=True)


def _parse_counts(text: str) -> tuple[int, ...]:
    numbers = [number.strip() for number in text.split(",")]
    if not all(n.isascii() and n.isdecimal() and len(n) <= 16 for n in numbers):
        raise ConfigError(
            f"num_instances is {safe_repr(text)}; expected numbers of test images, for example "
            "550, or 550,545",
            parameter="num_instances",
        )
    return tuple(map(int, numbers))


def _iter_files(
    paths: Iterable[Path], options: ReadOptions
) -> Iterator[tuple[Path, str, str | None]]:
    """Yield visible files with relative path, and reason to skip or None.

    A bundle is one item. Symbolic links are left out. Raises DataError for too many files.
    """
    for root in paths:
        # isdir returns False if the folder of *root* cannot be read
        if is_bundle_path(root) or not os.path.isdir(root):  # noqa: PTH112
            yield root, root.name, None
            continue
        num_files = 0
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            visible = sorted(name for name in files if not name.startswith("."))
            bundles = [n for n in (*folders, *visible) if is_bundle_path(Path(folder, n))]
            num_files += len(folders) + len(visible)
            if num_files > MAX_IMPORTED_FILES:
                raise DataError(
                    f"{safe_repr(root.name)} contains more than {MAX_IMPORTED_FILES} files; import "
                    "its folders one by one"
                )
            for path in (Path(folder, name) for name in bundles):
                yield path, str(path.relative_to(root)), None
            folders[:] = [name for name in folders if name not in bundles]
            visible = [name for name in visible if name not in bundles]
            reasons = find_skipped_files(visible)
            for path in (Path(folder, name) for name in visible):
                if path.is_file() and not path.is_symlink():
                    reason = reasons.get(path.name) or _find_reason_to_skip(path, options)
                    yield path, str(path.relative_to(root)), reason


def _find_reason_to_skip(path: Path, options: ReadOptions) -> str | None:
    """Return why a file of a folder is not imported, or None."""
    if path.suffix.lower() in (*_ENDINGS, *([".parquet"] if options.table else [])):
        return None  # an error of such a file is reported
    try:
        file = load_file(path, options)
        if (options.rows or options.table) and "\x00" in file.head:  # any other file matches
            return "it is not a text"
        return None if detect_format(file) else "its format is not known"
    except DataError as error:
        return str(error)
