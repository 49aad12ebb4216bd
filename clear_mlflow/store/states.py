"""What a training resumes from, as artifacts of its run: two files after each row.

The state is stored first, then a manifest with its size and hash: what has no manifest, or does not
match it, was cut off. The state of the row before stays until both files of the next one are there.
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

from clear_mlflow.core.errors import RecordError, StateError, TrackingError
from clear_mlflow.core.untrusted import (
    MAX_MANIFEST_BYTES,
    MAX_STATE_BYTES,
    MAX_STATES,
    convert,
    json_object,
    sha256_of,
)
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder, log_durably
from clear_mlflow.store.client import mlflow_errors

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known of a state without reading it."""

    row: int  # the last row that was measured
    written_at: str  # the time that is written into that row's file
    size: int  # of the state's file, bytes
    sha256: str  # of the state's file, hexadecimal
    data: Mapping[str, Any]  # what identifies the dataset; see resume.describe_data
    package_version: str
    torch_version: str  # another one may round differently

    def to_json(self) -> str:
        """The text of the manifest's file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> Manifest:
        """Read what :meth:`to_json` wrote; nothing is trusted, later fields are ignored."""
        try:
            document = json_object(text, MAX_MANIFEST_BYTES)
            if document.get("format") != FORMAT:
                raise RecordError(f"expected format {FORMAT}")
            found: Manifest = convert(document, cls)
            return found
        except RecordError as error:
            raise StateError(f"{source} is no manifest of a training state: {error}") from error


@dataclass(frozen=True, eq=False)
class StoredState:
    """A whole state, and where this machine can read it."""

    manifest: Manifest
    file: Path


def state_names(row: int) -> tuple[str, str]:
    """Names of the files of the state after a row, the manifest last."""
    return names.format_model_file_name(row), f"after_{row:03d}.json"


def store_state(client: MlflowClient, run_id: str, manifest: Manifest, content: bytes) -> None:
    """Store a state; when this returns, it is whole."""
    file, manifest_file = state_names(manifest.row)
    with mlflow_errors(f"store the training state of run {run_id}"):
        for name, what in ((file, content), (manifest_file, manifest.to_json().encode())):
            log_durably(client, run_id, what, f"{names.STATE_FOLDER}/{name}")


def remove_states(client: MlflowClient, run: Run, *, before: int | None = None) -> None:
    """Remove the states *before* a row, or all; where the store cannot delete, they stay."""
    # The first reason not to is also the last: nothing depends on it, and some stores cannot.
    with suppress(Exception):
        states = ArtifactFolder(client, run, names.STATE_FOLDER)
        # Each manifest before its state: what is half removed is then no state.
        for name in sorted(_listed(run, states)):
            row = _row_of(name)
            if row is not None and (before is None or row < before):
                states.repository.delete_artifacts(name)
        if before is None and states.local is not None:
            states.local.rmdir()  # MLflow would show it, with nothing in it


def list_state_rows(client: MlflowClient, run: Run) -> tuple[int, ...]:
    """The rows that states with a manifest are stored of, ascending; whether whole is not known."""
    return _with_manifest(_listed(run, ArtifactFolder(client, run, names.STATE_FOLDER)))


def read_newest_state(
    client: MlflowClient, run: Run, folder: Path
) -> tuple[StoredState | None, list[str]]:
    """The newest whole state, brought into *folder*, and what is wrong with each newer one."""
    states = ArtifactFolder(client, run, names.STATE_FOLDER)
    sizes = _listed(run, states)
    problems: list[str] = []
    for row in reversed(_with_manifest(sizes)):
        try:
            return _read_state(run, row, states, sizes, folder), problems
        except StateError as error:
            problems.append(str(error))
    return None, problems


def _read_state(
    run: Run, row: int, states: ArtifactFolder, sizes: Mapping[str, int | None], folder: Path
) -> StoredState:
    name, manifest_name = state_names(row)
    size = sizes[manifest_name]
    if size is not None and size > MAX_MANIFEST_BYTES:
        raise StateError(f"{manifest_name} has {size} bytes; a manifest has at most 1 MiB")
    with mlflow_errors(f"read {manifest_name} of run {run.info.run_id}"):
        content = states.fetch_file(manifest_name, folder).read_bytes()
    manifest = Manifest.from_json(content, source=manifest_name)
    if manifest.row != row or not 0 < manifest.size <= MAX_STATE_BYTES:
        raise StateError(
            f"{manifest_name} is of row {manifest.row} and {manifest.size} bytes; expected row "
            f"{row} and at most {MAX_STATE_BYTES >> 30} GiB"
        )
    with mlflow_errors(f"read {name} of run {run.info.run_id}"):
        file = states.fetch_file(name, folder)
    found = sha256_of(file)
    if found != manifest.sha256 or file.stat().st_size != manifest.size:
        raise StateError(
            f"{name} is damaged: its hash is {found}, its manifest says {manifest.sha256[:64]!r}"
        )
    return StoredState(manifest, file)


def _listed(run: Run, states: ArtifactFolder) -> dict[str, int | None]:
    """Names of the files in the state folder that are of a state, and their bytes where known."""
    with mlflow_errors(f"list the training states of run {run.info.run_id}"):
        found = states.list_sizes()
    found = {name: size for name, size in found.items() if _row_of(name) is not None}
    if len(found) > MAX_STATES:
        raise TrackingError(f"run {run.info.run_id} holds {len(found)} files of training states")
    return found


def _with_manifest(listed: Mapping[str, object]) -> tuple[int, ...]:
    """The rows of whose states both files are there, ascending."""
    rows = {row for name in listed if (row := _row_of(name)) is not None}
    return tuple(sorted(row for row in rows if set(state_names(row)) <= listed.keys()))


def _row_of(name: str) -> int | None:
    return names.parse_model_file_name(re.sub(r"\.json$", ".safetensors", name))
