"""Files that must not replace existing ones, and the folders that variables name."""

import os
import re

import pytest
from flushes import record_flushes
from one_line_errors import check_error

from clear_mlflow.core import disk
from clear_mlflow.core.disk import (
    create_durably,
    default_cache_dir,
    default_data_dir,
    find_offline_folder,
    write_durably,
)
from clear_mlflow.core.errors import DataError


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


def test_default_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for ours, xdg, folder in (
        ("~/mine", f"{tmp_path}/xdg", "mine"),
        ("", f"{tmp_path}/xdg", "xdg/clear_mlflow"),
        ("", "relative", ".cache/clear_mlflow"),
        ("", None, ".cache/clear_mlflow"),
        ("  ", " ", ".cache/clear_mlflow"),
        (" ~/mine ", None, "mine"),
    ):
        monkeypatch.setenv("CLEAR_MLFLOW_CACHE", ours)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if xdg is not None:
            monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert default_cache_dir() == tmp_path / folder


@pytest.mark.parametrize("get_folder", [default_cache_dir, default_data_dir, find_offline_folder])
def test_a_home_folder_that_is_not_known_is_a_one_line_error(monkeypatch, get_folder):
    for name in ("CLEAR_MLFLOW_CACHE", "CLEAR_MLFLOW_DATA", "CLEAR_MLFLOW_OFFLINE"):
        monkeypatch.setenv(name, "~nobody_of_this_name/x")
    assert re.search("set .*to", check_error(DataError, "", get_folder))


@pytest.mark.parametrize(
    ("variable", "get_folder"),
    [
        ("CLEAR_MLFLOW_CACHE", default_cache_dir),
        ("CLEAR_MLFLOW_DATA", default_data_dir),
        ("CLEAR_MLFLOW_OFFLINE", find_offline_folder),
    ],
)
def test_the_folder_that_a_variable_names(monkeypatch, tmp_path, variable, get_folder):
    for name in ("HOME", "CLEAR_MLFLOW_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for text, folder in (("~/a", "a"), ("a b/c\t", "a b/c"), (f" {tmp_path}/d", "d"), ("~", ".")):
        monkeypatch.setenv(variable, text)
        assert get_folder() == tmp_path / folder
    monkeypatch.delenv(variable)
    without = get_folder()
    for blank in ("", " ", "\t\n"):
        monkeypatch.setenv(variable, blank)
        assert get_folder() == without
    assert list(tmp_path.iterdir()) == []
