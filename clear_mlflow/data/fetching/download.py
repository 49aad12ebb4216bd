"""Fetch CLEAR: make a dataset that the loader reads from archives of the Hugging Face hub.

Unfinished things lie in ``.clear-mlflow-download``; a split is unpacked there whole, gets a marker
and is then renamed to its place, so that a reader never sees half of one. Addresses, tokens and
sessions are ``huggingface_hub``'s; its ``hf_hub_download`` throws away what it has when stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clear_mlflow.core.disk import default_data_dir
from clear_mlflow.core.errors import DataError, RecordError
from clear_mlflow.core.text import one_line
from clear_mlflow.core.untrusted import (
    MAX_ARCHIVE_BYTES,
    MAX_MANIFEST_BYTES,
    json_object,
    read_bytes,
)
from clear_mlflow.core.version import __version__
from clear_mlflow.data.fetching.archives import unpack
from clear_mlflow.data.files import CLASS_LIST, is_folder, path_text, reason
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
    folder: str  # what the split is called where it is unpacked to


@dataclass(frozen=True)
class Release:
    """A dataset as its authors published it in a dataset repository on the hub."""

    name: str
    repository: str
    archives: tuple[Archive, ...]


@dataclass(frozen=True)
class Patience:
    """Seconds that a download may stall, and attempts that may bring nothing in a row."""

    stall: float = 20.0
    attempts: int = 5
    wait: float = 2.0  # before the next attempt; twice as long before each that follows


_REPOSITORY = "elvishelvis6/CLEAR-Continual_Learning_Benchmark"
RELEASES = {
    name: Release(
        name,
        _REPOSITORY,
        (
            Archive(f"{name}-train-image-only.zip", train_md5, "train_image_only"),
            Archive(f"{name}-test.zip", test_md5, "test"),
        ),
    )
    for name, train_md5, test_md5 in (
        ("clear10", "5171f720810d60b471c308dee595d430", "bf9a85bfb78fe742c7ed32648c9a3275"),
        ("clear100", "ea85cdba9efcb3abf77eaab5554052c8", "e160815fb5fd4bc71dacd339ff41e6a9"),
    )
}

# Called with what is being done, how far it is, and its end, in bytes; None for an unknown end, 0
# for news that have no extent.
OnProgress = Callable[[str, int, "int | None"], None]


def download(
    release: Release,
    root: Path,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    patience: Patience = Patience(),
    on_progress: OnProgress = lambda what, done, total: None,
) -> tuple[str, ...]:
    """Make *root* hold the dataset; continue where an earlier call stopped."""
    if not _missing(release, root):
        return ()
    with _locked(root, on_progress) as work:
        hub = _Hub(release, root, revision, endpoint, work, patience, on_progress)
        missing = _missing(release, root)  # another process may have finished while this one waited
        _expect_room(hub, missing)
        for archive in missing:
            whole = hub.fetch(archive)
            _unpack_split(whole, archive, root=root, work=work, on_progress=on_progress)
            whole.unlink()
    (work / "lock").unlink(missing_ok=True)
    with suppress(OSError):  # parts of another release's archives stay
        work.rmdir()
    return tuple(archive.folder for archive in missing)


def clear_folder(name: str, on_progress: OnProgress = lambda what, done, total: None) -> Path:
    """The folder of CLEAR-10 or CLEAR-100 below the data folder, downloaded where it is missing."""
    root = default_data_dir() / name
    try:
        there = not (root / WORK_FOLDER).exists() and bool(find_layout(root, names=(name,)))
    except DataError:
        there = False
    if not there:
        download(RELEASES[name], root, on_progress=on_progress)
    return root


def _missing(release: Release, root: Path) -> list[Archive]:
    return [archive for archive in release.archives if not _is_finished(root, archive)]


def _is_finished(root: Path, archive: Archive) -> bool:
    """Whether an archive's split is in its place."""
    folder = root / archive.folder
    if not os.path.lexists(folder):
        return False
    try:
        content = read_bytes(folder / MARKER, MAX_MANIFEST_BYTES)
        found = json_object(content, MAX_MANIFEST_BYTES).get("md5")
    except (OSError, RecordError):
        found = None
    if found == archive.md5:
        return True
    whose = "holds another dataset" if found else "was not unpacked by this command"
    raise DataError(
        f"{path_text(folder)} is there, and {whose}; expected to unpack {archive.file} to it: "
        "choose another folder or move that one away"
    )


@contextmanager
def _locked(root: Path, on_progress: OnProgress) -> Iterator[Path]:
    """The folder for unfinished things, made, cleaned of a crash's leavings, and held alone."""
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
            pass  # a file system without locks: then the user must see to it
        for leaving in work.glob("*.unpacking"):
            shutil.rmtree(leaving, ignore_errors=True)
        yield work


@dataclass(frozen=True)
class _Hub:
    """Where archives are fetched from, and how; what is unfinished lies in *work*."""

    release: Release
    root: Path
    revision: str
    endpoint: str | None
    work: Path
    patience: Patience
    on_progress: OnProgress

    def fetch(self, archive: Archive) -> Path:
        """Fetch one archive, and once more from the beginning where its content is wrong."""
        whole = self.work / archive.file
        part = self.work / f"{archive.file}.part"
        if whole.is_file():
            if _md5(whole, archive, self.on_progress) == archive.md5:
                return whole
            whole.unlink()
        for _ in range(2):
            self._fetch_part(archive, part)
            found = _md5(part, archive, self.on_progress)
            if found == archive.md5:
                part.replace(whole)
                return whole
            part.unlink()
        raise self._unreachable(
            f"{archive.file} arrived twice with a wrong content, the second time with MD5 {found}, "
            f"and not {archive.md5}"
        )

    def _unreachable(self, why: str) -> DataError:
        return DataError(
            f"{why}; run the command again to go on; without a network here, run 'clear-mlflow "
            f"data download {self.release.name} DIR' where there is one and copy DIR to "
            f"{path_text(self.root)}"
        )

    def size(self, archive: Archive) -> int | None:
        """The archive's bytes, as the hub says; None where it does not: fetching it says why."""
        from huggingface_hub import get_hf_file_metadata

        try:
            return get_hf_file_metadata(self._url(archive), timeout=self.patience.stall).size
        except _network_errors():
            return None

    def _url(self, archive: Archive) -> str:
        # Here and not above: it takes half a second, and training never needs it.
        from huggingface_hub import hf_hub_url

        return hf_hub_url(
            self.release.repository,
            archive.file,
            repo_type="dataset",
            revision=self.revision,
            endpoint=self.endpoint,
        )

    def _fetch_part(self, archive: Archive, part: Path) -> None:
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        patience, failed = self.patience, 0
        while True:
            start = _size(part)
            try:
                return self._receive(archive, part)
            except HfHubHTTPError as error:
                status = error.response.status_code
                if status == 416 and start:  # nothing follows: the checksum shows if it is complete
                    return None
                if status not in _TRANSIENT:
                    raise self._unreachable(self._refused(status, archive)) from None
                why = f"the server answers {status}"
            except OfflineModeIsEnabled:
                raise self._unreachable(
                    f"{archive.file} cannot be downloaded: HF_HUB_OFFLINE forbids it"
                ) from None
            except OSError as error:  # the network's are none of the system's
                raise DataError(
                    f"{path_text(part)} cannot be written: {reason(error)}; make room or choose "
                    "another folder, then run the command again, which goes on from there"
                ) from None
            except _network_errors() as error:
                why = one_line(str(error) or type(error).__name__, 200)
            failed = 1 if _size(part) > start else failed + 1
            if failed >= patience.attempts:
                raise self._unreachable(
                    f"{archive.file} cannot be downloaded: {why} ({failed} attempts in a row)"
                )
            wait = patience.wait * 2 ** (failed - 1)
            self.on_progress(f"{archive.file}: {why}; trying again in {wait:g} s", 0, 0)
            time.sleep(wait)

    def _receive(self, archive: Archive, part: Path) -> None:
        """One attempt: append to *part* from where it ends."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            hf_raise_for_status,
        )

        headers = build_hf_headers(library_name="clear_mlflow", library_version=__version__)
        headers["Accept-Encoding"] = "identity"  # a range of a compressed body is none of the file
        with part.open("ab") as file:
            if done := file.tell():
                headers["Range"] = f"bytes={done}-"
            with get_session().stream(
                "GET",
                self._url(archive),
                headers=headers,
                timeout=self.patience.stall,
                follow_redirects=True,
            ) as response:
                hf_raise_for_status(response)
                if response.status_code != 206:  # some servers send all of it, always
                    file.truncate(done := 0)
                length = response.headers.get("Content-Length")
                total = None if length is None else done + int(length)
                self.on_progress(f"downloading {archive.file}", done, total)
                for block in response.iter_raw():
                    done += file.write(block)
                    self.on_progress(f"downloading {archive.file}", done, total)
                    if done > MAX_ARCHIVE_BYTES:
                        break  # the checksum will show that it is wrong

    def _refused(self, status: int, archive: Archive) -> str:
        where = f"dataset {self.release.repository} at revision {self.revision!r}"
        no_file = f"it has no such file in {where}"
        token = "it wants another token than the one in HF_TOKEN, if any"  # noqa: S105
        why = {401: f", so {token}", 403: f", so {token}", 404: f", so {no_file}"}.get(status, "")
        return f"{archive.file} cannot be downloaded: the server answers {status}{why}"


def _network_errors() -> tuple[type[Exception], ...]:
    """The bases of all that the HTTP library raises, whichever one the hub's client uses."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *HfHubHTTPError.__bases__)


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _expect_room(hub: _Hub, missing: list[Archive]) -> None:
    """Say how much is fetched, and how much room it takes beside what it unpacks to."""
    to_fetch = unpacked = needed = 0
    for archive in missing:
        if (size := hub.size(archive)) is None:
            return
        there = (hub.work / archive.file, hub.work / f"{archive.file}.part")
        more = max(size - sum(map(_size, there)), 0)
        to_fetch += more
        needed = max(needed, unpacked + more + size)
        unpacked += size
    free = shutil.disk_usage(hub.root).free
    say = (
        f"{hub.release.name} to {path_text(hub.root)}: {_gb(to_fetch)} to download, {_gb(needed)} "
        f"of disk needed, {_gb(free)} free"
    )
    if needed > free:
        raise DataError(
            f"{say}; make room or name another folder (CLEAR_MLFLOW_DATA, or DIR of clear-mlflow "
            "data download), then run the command again"
        )
    hub.on_progress(say, 0, 0)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _md5(path: Path, archive: Archive, on_progress: OnProgress) -> str:
    content = hashlib.md5(usedforsecurity=False)  # what the authors published; guards no secret
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
    unpacking = work / f"{archive.file}.unpacking"
    try:
        what = f"unpacking {archive.file}"
        unpack(source, unpacking, lambda done, total: on_progress(what, done, total))
        split = _split_in(unpacking, source)
        marker = {"archive": archive.file, "md5": archive.md5}
        (split / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
        # All of it on the disk before its name is: a power cut would else leave a named split of
        # empty files.
        os.sync()
        split.rename(root / archive.folder)
    except OSError as error:
        raise DataError(
            f"{path_text(root / archive.folder)} cannot be written: {reason(error)}; make room or "
            "choose another folder, then run the command again"
        ) from None
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)


def _split_in(unpacked: Path, source: Path) -> Path:
    """The folder with the class list: archives hold it bare, or below one or two folders."""
    for pattern in (CLASS_LIST, f"*/{CLASS_LIST}", f"*/*/{CLASS_LIST}"):
        found = sorted(path.parent for path in unpacked.glob(pattern))
        if len(found) == 1 and is_folder(found[0]):
            return found[0]
        if found:
            break
    raise DataError(
        f"{path_text(source)} holds {len(found)} folders with {CLASS_LIST}; expected one, as in "
        "CLEAR's released archives"
    )
