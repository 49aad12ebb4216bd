"""Training states in a run's artifacts, from which a training resumes: two files after each row.

The state is stored first, then a manifest with its size and hash. A state whose manifest is missing
or does not match is incomplete. The previous state is kept until both files of the next one exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import (
    MAX_MANIFEST_BYTES,
    MAX_STATE_BYTES,
    convert,
    hash_file,
    parse_json_object,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The metadata of a stored training state: row, size and hash."""

    row: int  # row that was measured last
    written_at: str  # time in the file of that row
    size: int  # bytes in the state's file
    sha256: str  # hash of the state's file, hexadecimal
    data: Mapping[str, Any]  # what identifies the dataset; see resume.describe_data
    package_version: str
    torch_version: str  # another version may round differently

    def to_json(self) -> str:
        """Return the manifest as JSON text, which from_json reads."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> Manifest:
        """Parse and validate the JSON text of a manifest, ignoring unknown fields.

        source: file name, for the RecordError that is raised if the text is invalid.
        """
        try:
            document = parse_json_object(text, MAX_MANIFEST_BYTES)
            if document.get("format") != FORMAT:
                raise RecordError(f"expected format {FORMAT}")
            manifest: Manifest = convert(document, cls)
            return manifest
        except RecordError as error:
            raise RecordError(f"{source} is not a manifest of a training state: {error}") from error


@dataclass(frozen=True, eq=False)
class StoredState:
    """A complete training state in a file of this machine.

    It has weights, optimiser and random numbers.
    """

    manifest: Manifest
    file: Path


def store_state(client: MlflowClient, run: Run, manifest: Manifest, content: bytes) -> None:
    """Store a training state, then its manifest. Local ones survive power cuts.

    content: the bytes of the state's file. Raises TrackingError if the store does not take them.
    """
    state_file, manifest_file = _format_file_names(manifest.row)
    files = {state_file: content, manifest_file: manifest.to_json().encode()}
    folder = ArtifactFolder(client, run, names.STATE_FOLDER)
    with mlflow_errors(f"store the training state of run {run.info.run_id}"):
        for name, file_content in files.items():
            folder.write_file(name, file_content)


def remove_states(client: MlflowClient, run: Run, *, before: int | None = None) -> None:
    """Delete the training states of rows before *before*, or all, ignoring errors.

    Some stores cannot delete, and nothing depends on it. Manifests are deleted, too.
    """
    with suppress(Exception):
        folder = ArtifactFolder(client, run, names.STATE_FOLDER)
        # Sorted, each manifest precedes its state: a state that is half removed is not complete.
        for name in sorted(folder.list_sizes()):
            row = _parse_row(name)
            if row is not None and (before is None or row < before):
                folder.repository.delete_artifacts(name)
        if before is None and folder.local is not None:
            folder.remove_drafts()
            folder.local.rmdir()  # MLflow would show the empty folder


def list_state_rows(client: MlflowClient, run: Run) -> tuple[int, ...]:
    """List the rows that have a training state and its manifest.

    Only file names are read: a state may be damaged.
    """
    files = ArtifactFolder(client, run, names.STATE_FOLDER).list_sizes().keys()
    rows = {row for name in files if (row := _parse_row(name)) is not None}
    return tuple(sorted(row for row in rows if files >= {*_format_file_names(row)}))


def read_newest_state(
    client: MlflowClient, run: Run, scratch: Path
) -> tuple[StoredState | None, list[str]]:
    """Read the newest intact training state, or None, and describe damaged ones.

    The state is downloaded to *scratch* unless it is on this machine.
    """
    folder = ArtifactFolder(client, run, names.STATE_FOLDER)
    problems: list[str] = []
    for row in reversed(list_state_rows(client, run)):
        try:
            return _read_state(folder, row, scratch), problems
        except RecordError as error:
            problems.append(str(error))
    return None, problems


def _read_state(folder: ArtifactFolder, row: int, scratch: Path) -> StoredState:
    """Read a row's training state, or raise RecordError if it is damaged."""
    name, manifest_name = _format_file_names(row)
    content = folder.read_files([manifest_name], MAX_MANIFEST_BYTES)[manifest_name]
    manifest = Manifest.from_json(content, source=manifest_name)
    if manifest.row != row or not 0 < manifest.size <= MAX_STATE_BYTES:
        raise RecordError(
            f"{manifest_name} names row {manifest.row} and {manifest.size} bytes; expected row "
            f"{row} and at most {MAX_STATE_BYTES >> 30} GiB"
        )
    file = folder.fetch_file(name, scratch)
    sha256 = hash_file(file)
    if sha256 != manifest.sha256 or file.stat().st_size != manifest.size:
        raise RecordError(
            f"{name} is damaged: its hash is {sha256}; expected {manifest.sha256[:64]!r}"
        )
    return StoredState(manifest, file)


def _format_file_names(row: int) -> tuple[str, str]:
    return names.format_model_file_name(row), f"after_{row:03d}.json"


def _parse_row(name: str) -> int | None:
    return names.parse_model_file_name(re.sub(r"\.json$", ".safetensors", name))
