"""What a process flushes to the disk, in order."""

import os
from pathlib import Path


def record_flushes(monkeypatch) -> list[Path]:
    flushed = []
    fsync = os.fsync

    def record(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return flushed
