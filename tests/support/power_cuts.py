"""Disks after a power cut at every moment of a program.

Before each flush, rename and removal, two disks are kept that a cut may leave: one without anything
that was not flushed, and one with all names, but without such content. A flushed file has its name
on the disk, too, and a database is taken as it is, since SQLite flushes what it commits.
"""

import itertools
import os
import pathlib
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow_stores import copy_database


@dataclass(frozen=True)
class Disk:
    """The content of a disk after a cut."""

    when: str  # before what
    files: Mapping[Path, bytes]
    database: bytes
    note: int  # what the test knew at that moment


class Recorder:
    """Records flushes below some folders."""

    def __init__(self, folders, database, note):
        self.disks: list[Disk] = []
        self._folders, self._database, self._note = folders, database, note
        self._ids: dict[int, int] = {}  # inode to file: a removed one's inode is given out again
        self._next = itertools.count()
        self._flushed: dict[int, bytes] = {}  # file to content
        self._named: dict[Path, int] = {}  # path to file, as far as the names are on the disk
        self._lock = threading.RLock()

    def before(self, action):
        """Keep both disks of a cut at this moment."""
        with self._lock:
            file_ids = self._files()
            names = {path: self._flushed.get(node, b"") for path, node in file_ids.items()}
            flushed_files = {
                path: self._flushed.get(node, b"") for path, node in self._named.items()
            }
            copied = self._database.with_suffix(".copy")
            copy_database(self._database, copied)
            database = copied.read_bytes()
            for files in (flushed_files, names):
                self.disks.append(Disk(action, files, database, self._note()))

    def record_flush(self, descriptor):
        path = resolve_descriptor(descriptor)
        if not any(path.is_relative_to(folder) for folder in self._folders):
            return
        with self._lock:
            if path.is_dir():
                file_ids = self._files()
                by_node = {node: at for at, node in file_ids.items()}
                # What lies there now, or lay there: further down, what moved along with a folder.
                below = {at: node for at, node in self._named.items() if at.is_relative_to(path)}
                for at in below:
                    del self._named[at]
                for node in below.values():
                    if node in by_node:
                        self._named[by_node[node]] = node
                self._named |= {at: node for at, node in file_ids.items() if at.parent == path}
            else:
                node = self._id(os.fstat(descriptor))
                self._flushed[node] = path.read_bytes()
                self._named[path] = node

    @contextmanager
    def removing(self, path):
        """Yield the content that a rename or removal affects."""
        with self._lock:
            with suppress(FileNotFoundError):
                if (status := Path(path).lstat()).st_nlink == 1:
                    self._ids.pop(status.st_ino, None)
            yield

    def _id(self, status):
        if status.st_ino not in self._ids:
            self._ids[status.st_ino] = next(self._next)
        return self._ids[status.st_ino]

    def _files(self):
        file_ids = {}
        for folder in self._folders:
            for folder_path, _, names in os.walk(folder):
                for name in names:
                    path = Path(folder_path, name)
                    try:
                        file_ids[path] = self._id(path.stat())
                    except FileNotFoundError:  # removed by another thread just now
                        continue
        return file_ids


@contextmanager
def record_cuts(monkeypatch, folders, database, note) -> Iterator[list[Disk]]:
    """Yield the disks that cuts in a block may leave."""
    recorder = Recorder(folders, database, note)
    fsync = os.fsync

    def noting(name):
        real = getattr(os, name)

        def function(*arguments, **options):
            if any(str(folder) in str(arguments[0]) for folder in folders):
                recorder.before(f"{name} {arguments[0]}")
            if name == "link":
                return real(*arguments, **options)
            with recorder.removing(find_removed(arguments, options)):
                return real(*arguments, **options)

        return function

    def flush(descriptor):
        recorder.before(f"flush {resolve_descriptor(descriptor)}")
        fsync(descriptor)
        recorder.record_flush(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", flush)
        # pathlib of Python 3.10 keeps the functions that it found when it was loaded.
        path_functions = getattr(pathlib, "_normal_accessor", os)
        for name in ("link", "rename", "replace", "unlink"):
            noted = noting(name)
            patch.setattr(os, name, noted)
            patch.setattr(path_functions, name, noted)
        yield recorder.disks
        recorder.before("the end")


def find_removed(arguments, options):
    """Return the files that a rename replaces, or a removal removes.

    Names may be relative to a folder.
    """
    folder = options.get("dir_fd")
    return arguments[-1] if folder is None else resolve_descriptor(folder) / arguments[-1]


def resolve_descriptor(descriptor):
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def restore(disk: Disk, folders, database) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for path, content in disk.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    copied = database.with_suffix(".copy")
    copied.write_bytes(disk.database)
    copy_database(copied, database)
