"""Files that must not replace existing ones."""

import os

import pytest
from flushes import record_flushes

from clear_mlflow.core import disk
from clear_mlflow.core.disk import create_durably, write_durably


def test_an_existing_file_is_not_replaced(tmp_path):
    file = tmp_path / "rows" / "row.json"
    assert create_durably(file, b"first")
    assert not create_durably(file, b"second")
    assert file.read_bytes() == b"first"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("write", [create_durably, write_durably])
def test_contents_and_names_are_flushed_in_order(tmp_path, monkeypatch, write):
    flushed = record_flushes(monkeypatch)
    write(tmp_path / "rows" / "row.json", b"content")
    new_folder, draft, folder = flushed
    assert (new_folder, draft.parent, folder) == (tmp_path, folder, tmp_path / "rows")
    assert draft.name.startswith(".row.json.")


def test_a_file_written_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    """While this process was stopped."""
    file = tmp_path / "row.json"
    write_and_flush = disk.write_and_flush

    def stop(draft, content):
        write_and_flush(draft, content)
        file.write_bytes(b"another's")

    monkeypatch.setattr(disk, "write_and_flush", stop)
    assert not create_durably(file, b"late")
    assert file.read_bytes() == b"another's"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    number = 1  # EPERM
    assert create_durably(tmp_path / "row.json", b"content")
    assert (tmp_path / "row.json").read_bytes() == b"content"
    number = 28  # ENOSPC
    with pytest.raises(OSError, match="No space"):
        create_durably(tmp_path / "other.json", b"content")
    assert list(tmp_path.iterdir()) == [tmp_path / "row.json"]


@pytest.mark.parametrize("write", [write_durably, create_durably])
def test_two_writers_of_a_file_do_not_disturb_each_other(tmp_path, monkeypatch, write):
    file = tmp_path / "row.json"
    write_and_flush = disk.write_and_flush

    def interrupt(draft, content):
        monkeypatch.setattr(disk, "write_and_flush", write_and_flush)
        with draft.open("wb") as stream:
            stream.write(b"slow")
            stream.flush()
            write(file, b"fast")
            stream.write(b" writer")

    monkeypatch.setattr(disk, "write_and_flush", interrupt)
    assert write(file, b"slow writer") is not True
    assert file.read_bytes() == (b"slow writer" if write is write_durably else b"fast")
    assert list(tmp_path.iterdir()) == [file]
