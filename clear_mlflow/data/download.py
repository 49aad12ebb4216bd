"""Download CLEAR's archives from the Hugging Face hub, and unpack them for the loader.

Unfinished files are in ``.clear-mlflow-download``. A split is unpacked there, gets a marker and is
then renamed, so that readers never see an incomplete one. ``huggingface_hub`` provides addresses,
tokens and sessions; its ``hf_hub_download`` would start again after an interruption.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.disk import default_data_dir
from clear_mlflow.core.errors import DataError, RecordError
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.core.untrusted import MAX_MANIFEST_BYTES, parse_json_object, read_bytes
from clear_mlflow.core.version import __version__
from clear_mlflow.data.files import CLASS_LIST, path_text, reason
from clear_mlflow.data.layouts import find_layout

MARKER = ".clear-mlflow.json"
WORK_FOLDER = ".clear-mlflow-download"

_BLOCK_BYTES = 2**20
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Archive:
    """One file of a release: a split of the dataset, zipped."""

    file: str
    md5: str  # hexadecimal
    folder: str  # name of the folder that it is unpacked to
    max_bytes: int  # of a reply, several times what is expected: the exact size is not published


@dataclass(frozen=True)
class Release:
    """A dataset that its authors published on the hub."""

    name: str
    repository: str
    archives: tuple[Archive, ...]


@dataclass(frozen=True)
class RetryLimits:
    """When a download is retried, and when it fails."""

    stall: float = 20.0  # seconds without data
    attempts: int = 5  # in a row, without data
    wait: float = 2.0  # seconds before the second attempt; doubled before each further one


_REPOSITORY = "elvishelvis6/CLEAR-Continual_Learning_Benchmark"
RELEASES = {
    name: Release(
        name,
        _REPOSITORY,
        (
            Archive(f"{name}-train-image-only.zip", train_md5, "train_image_only", max_bytes),
            Archive(f"{name}-test.zip", test_md5, "test", max_bytes),
        ),
    )
    for name, max_bytes, train_md5, test_md5 in (
        ("clear10", 2**34, "5171f720810d60b471c308dee595d430", "bf9a85bfb78fe742c7ed32648c9a3275"),
        ("clear100", 2**37, "ea85cdba9efcb3abf77eaab5554052c8", "e160815fb5fd4bc71dacd339ff41e6a9"),
    )
}

# Receives the name of a step, the bytes done, and their total: None if it is unknown, 0 if only the
# name is reported.
OnProgress = Callable[[str, int, "int | None"], None]


def download(
    release: Release,
    root: Path,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    retry_limits: RetryLimits = RetryLimits(),
    on_progress: OnProgress = lambda step, done, total: None,
) -> tuple[str, ...]:
    """Download and unpack a dataset to *root*, or continue an earlier call.

    Waits while another process downloads to *root*. Each archive is deleted once it is unpacked.
    Returns the names of the new folders, none if all exist.
    revision: branch, tag or commit on the hub. endpoint: address of the hub, or None for the
    default of ``huggingface_hub``. Raises DataError if the download fails, the disk is too small,
    or a folder has other files, and if HF_ENDPOINT or HF_TOKEN is invalid.
    """
    if not _list_missing(release, root):
        return ()
    _check_environment()
    with _lock(root, on_progress) as work:
        hub = _Hub(release, root, revision, endpoint, work, retry_limits, on_progress)
        missing = _list_missing(release, root)  # another process may have finished meanwhile
        _check_disk(hub, missing)
        for archive in missing:
            file = hub.fetch(archive)
            _unpack_split(file, archive, root=root, work=work, on_progress=on_progress)
            file.unlink()
    (work / "lock").unlink(missing_ok=True)
    with suppress(OSError):  # parts of another release's archives remain
        work.rmdir()
    return tuple(archive.folder for archive in missing)


def _check_environment() -> None:
    # The hub's package would fail in its import, or in the middle of a request.
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        url = urlsplit(endpoint)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port above 65535, or half an IPv6 address
        is_valid = False
    if not is_valid or not endpoint.isprintable() or " " in endpoint:
        raise DataError(
            f"HF_ENDPOINT is {safe_repr(mask_credentials(endpoint))}; expected an address such as "
            "https://huggingface.co, or unset it"
        )
    if not os.environ.get("HF_TOKEN", "").isascii():
        raise DataError(
            "HF_TOKEN contains a character that is not ASCII; expected a token of the hub, or "
            "unset it"
        )


def fetch_clear(name: str, on_progress: OnProgress = lambda step, done, total: None) -> Path:
    """Return CLEAR-10's or CLEAR-100's folder, downloaded if missing."""
    root = default_data_dir() / name
    try:
        is_complete = not (root / WORK_FOLDER).exists() and bool(find_layout(root, names=(name,)))
    except DataError:
        is_complete = False
    if not is_complete:
        download(RELEASES[name], root, on_progress=on_progress)
    return root


def _list_missing(release: Release, root: Path) -> list[Archive]:
    return [archive for archive in release.archives if not _is_finished(root, archive)]


def _is_finished(root: Path, archive: Archive) -> bool:
    """Return True if unpacked, False without a folder, or raise DataError."""
    folder = root / archive.folder
    if not os.path.lexists(folder):
        return False
    with suppress(OSError, RecordError):
        marker = read_bytes(folder / MARKER, MAX_MANIFEST_BYTES)
        if parse_json_object(marker, MAX_MANIFEST_BYTES).get("md5") == archive.md5:
            return True
    raise DataError(
        f"{path_text(folder)} exists and was not unpacked from {archive.file} by this command; "
        "choose another folder or move that one away"
    )


@contextmanager
def _lock(root: Path, on_progress: OnProgress) -> Iterator[Path]:
    """Lock, empty and yield the folder for unfinished files, keeping downloads."""
    work = root / WORK_FOLDER
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / "lock").open("wb")
    except OSError as error:
        raise DataError(
            f"{path_text(root)} cannot be written: {reason(error)}; choose a folder in which you "
            "may write"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(f"another process is downloading to {path_text(root)}: waiting", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        for folder in work.glob("*.unpacking"):  # after a crash
            shutil.rmtree(folder, ignore_errors=True)
        yield work


class _WrongReplyError(Exception):
    """A server's reply does not contain the file."""


@dataclass(frozen=True)
class _Hub:
    """Fetches a release's archives. Unfinished files are in *work*."""

    release: Release
    root: Path
    revision: str
    endpoint: str | None
    work: Path
    retry_limits: RetryLimits
    on_progress: OnProgress

    def fetch(self, archive: Archive) -> Path:
        """Return an archive's path, downloaded if missing, twice after wrong checksums."""
        file = self.work / archive.file
        part = self.work / f"{archive.file}.part"
        if file.is_file():
            if _compute_md5(file, archive, self.on_progress) == archive.md5:
                return file
            file.unlink()
        for _ in range(2):
            self._fetch_part(archive, part)
            md5 = _compute_md5(part, archive, self.on_progress)
            if md5 == archive.md5:
                part.replace(file)
                return file
            part.unlink()
        raise self._build_error(
            f"{archive.file} was downloaded twice with wrong content, the second time with MD5 "
            f"{md5}, not {archive.md5}"
        )

    def _build_error(self, problem: str) -> DataError:
        return DataError(
            f"{problem}; run the command again to continue; without a network, run 'clear-mlflow "
            f"data download {self.release.name} DIR' on another machine and copy DIR to "
            f"{path_text(self.root)}"
        )

    def fetch_size(self, archive: Archive) -> int | None:
        """Return an archive's size in bytes, None if unknown or unreachable."""
        from huggingface_hub import get_hf_file_metadata

        try:
            return get_hf_file_metadata(self._url(archive), timeout=self.retry_limits.stall).size
        except _network_errors():
            return None

    def _url(self, archive: Archive) -> str:
        # Imported here because it takes half a second, and training does not need it.
        from huggingface_hub import hf_hub_url

        return hf_hub_url(
            self.release.repository,
            archive.file,
            repo_type="dataset",
            revision=self.revision,
            endpoint=self.endpoint,
        )

    def _fetch_part(self, archive: Archive, part: Path) -> None:
        """Append an archive's remaining bytes to *part*, and retry after temporary problems."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        limits, failed = self.retry_limits, 0
        while True:
            start = _get_file_size(part)
            try:
                return self._receive(archive, part)
            except HfHubHTTPError as error:
                status = error.response.status_code
                if status == 416 and start:  # no bytes remain: the checksum is compared next
                    return None
                if status not in _TRANSIENT:
                    raise self._build_error(
                        f"{archive.file} of dataset {self.release.repository} at revision "
                        f"{self.revision!r} cannot be downloaded: the server responds {status}; "
                        "check the revision, and the token in HF_TOKEN"
                    ) from None
                problem = f"the server responds {status}"
            except OfflineModeIsEnabled:
                raise self._build_error(
                    f"{archive.file} cannot be downloaded: HF_HUB_OFFLINE forbids it"
                ) from None
            except OSError as error:  # of the disk: the network raises other errors
                raise DataError(
                    f"{path_text(part)} cannot be written: {reason(error)}; free some space or "
                    "choose another folder, then run the command again, which continues from there"
                ) from None
            except _network_errors() as error:
                problem = one_line(str(error) or type(error).__name__, 200)
            failed = 1 if _get_file_size(part) > start else failed + 1
            if failed >= limits.attempts:
                raise self._build_error(
                    f"{archive.file} cannot be downloaded: {problem} ({failed} attempts in a row)"
                )
            wait = limits.wait * 2 ** (failed - 1)
            self.on_progress(f"{archive.file}: {problem}; trying again in {wait:g} s", 0, 0)
            time.sleep(wait)

    def _receive(self, archive: Archive, part: Path) -> None:
        """Append the remaining bytes, or all if the server ignores ranges."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            hf_raise_for_status,
        )

        headers = build_hf_headers(library_name="clear_mlflow", library_version=__version__)
        headers["Accept-Encoding"] = "identity"  # ranges refer to the body as it is sent
        with part.open("ab") as file:
            if done := file.tell():
                headers["Range"] = f"bytes={done}-"
            with get_session().stream(
                "GET",
                self._url(archive),
                headers=headers,
                timeout=self.retry_limits.stall,
                follow_redirects=True,
            ) as response:
                hf_raise_for_status(response)
                media_type = response.headers.get("Content-Type", "").lower()
                if media_type.startswith("text/html"):  # a login page: keep what has arrived
                    raise _WrongReplyError("the server sends a web page instead of the file")
                if response.status_code not in (200, 206):
                    raise _WrongReplyError(f"the server responds {response.status_code}")
                if response.status_code == 200:  # some servers always send the complete file
                    file.truncate(done := 0)
                length = response.headers.get("Content-Length")
                total = None if length is None else done + int(length)
                self.on_progress(f"downloading {archive.file}", done, total)
                for block in response.iter_raw():
                    done += file.write(block)
                    if max(done, total or 0) > archive.max_bytes:
                        file.truncate(0)
                        raise self._build_error(
                            f"{archive.file} cannot be downloaded: the server sends more than "
                            f"{_format_size(archive.max_bytes)}, which the file does not have; "
                            "check HF_ENDPOINT"
                        )
                    self.on_progress(f"downloading {archive.file}", done, total)


def _network_errors() -> tuple[type[Exception], ...]:
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, _WrongReplyError, *HfHubHTTPError.__bases__)


def _get_file_size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _check_disk(hub: _Hub, missing: list[Archive]) -> None:
    """Report a download's size if known, or raise DataError without room."""
    to_fetch = unpacked = needed = 0
    for archive in missing:
        if (size := hub.fetch_size(archive)) is None:
            return
        files = (hub.work / archive.file, hub.work / f"{archive.file}.part")
        remaining = max(size - sum(map(_get_file_size, files)), 0)
        to_fetch += remaining
        needed = max(needed, unpacked + remaining + size)
        unpacked += size
    free = shutil.disk_usage(hub.root).free
    summary = (
        f"{hub.release.name} to {path_text(hub.root)}: {_format_size(to_fetch)} to download, "
        f"{_format_size(needed)} of disk needed, {_format_size(free)} free"
    )
    if needed > free:
        raise DataError(
            f"{summary}; free some space or name another folder (CLEAR_MLFLOW_DATA, or DIR of "
            "clear-mlflow data download), then run the command again"
        )
    hub.on_progress(summary, 0, 0)


def _format_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _compute_md5(path: Path, archive: Archive, on_progress: OnProgress) -> str:
    content = hashlib.md5(usedforsecurity=False)  # published by the authors; not for security
    try:
        total, done = path.stat().st_size, 0
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                content.update(block)
                done += len(block)
                on_progress(f"checking {archive.file}", done, total)
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
    return content.hexdigest()


def _unpack_split(
    source: Path, archive: Archive, *, root: Path, work: Path, on_progress: OnProgress
) -> None:
    """Unpack a verified archive, and mark its folder with the MD5."""
    unpacking = work / f"{archive.file}.unpacking"
    try:
        with zipfile.ZipFile(source) as opened:
            entries, done = opened.infolist(), 0
            total = sum(entry.file_size for entry in entries)
            for entry in entries:
                opened.extract(entry, unpacking)
                done += entry.file_size
                on_progress(f"unpacking {archive.file}", done, total)
        # An archive has the class list at the top, or one or two folders below.
        patterns = (CLASS_LIST, f"*/{CLASS_LIST}", f"*/*/{CLASS_LIST}")
        split = next(path for pattern in patterns for path in unpacking.glob(pattern)).parent
        marker = {"archive": archive.file, "md5": archive.md5}
        (split / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
        # Write all files to the disk before the rename: a power cut could leave empty files.
        on_progress(f"writing {archive.folder} to the disk", 0, 0)  # this may take minutes
        os.sync()
        split.rename(root / archive.folder)
    except OSError as error:
        raise DataError(
            f"{path_text(root / archive.folder)} cannot be written: {reason(error)}; free some "
            "space or choose another folder, then run the command again"
        ) from None
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)
