"""Unpacking: what comes out is what went in, and nothing that could do harm is written."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import DataError
from clear_mlflow.data.download import unpack


def write_zip(path: Path, entries: list[tuple[str, bytes]], *, packed: bool = False) -> Path:
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            info.filename = info.orig_filename = name  # as it is, whatever zipfile would mend
            info.compress_type = method
            archive.writestr(info, content)
    return path


def written_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_come_out_as_they_went_in(tmp_path):
    """Folders with entries of their own and without, empty files, spaces in names."""
    entries = [("a/", b""), ("a/one.txt", b"1" * 5000), ("b c/d/two.jpg", b""), ("top", b"x")]
    reported = []
    archive = write_zip(tmp_path / "x.zip", entries, packed=True)
    unpack(archive, tmp_path / "out", on_bytes=lambda done, total: reported.append((done, total)))
    assert written_below(tmp_path / "out") == dict(entries[1:])
    assert reported[-1] == (5001, 5001)


@pytest.mark.parametrize(
    "name",
    [
        "../out.txt",
        "a/../../out.txt",
        "/tmp/out.txt",
        "a//b",
        "./a",
        "a\\..\\b",
        "C:/a",
        "a/\x1b[31m",
        "a\nb",
        "..",
        "n" * 256,
        "/".join("d" * 17),
    ],
)
def test_a_path_that_is_not_plain_is_refused_before_anything_is_written(tmp_path, name):
    """The message has the name escaped. Not even the good entry before it is written."""
    archive = write_zip(tmp_path / "x.zip", [("good", b"1"), (name, b"2")])
    with pytest.raises(DataError, match="names the path") as error:
        unpack(archive, tmp_path / "deep" / "out")
    assert str(error.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


def test_a_name_with_a_nul_is_refused(tmp_path):
    """The library cuts such a name short, so that one would unpack what another one checked."""
    archive = write_zip(tmp_path / "x.zip", [("good_name", b"1")])
    archive.write_bytes(archive.read_bytes().replace(b"good_name", b"good\0name"))
    with pytest.raises(DataError, match="names the path"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("link_type", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
def test_links_and_devices_are_refused(tmp_path, link_type):
    """An archive of images has neither."""
    info = zipfile.ZipInfo("a")
    info.external_attr = (link_type | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="a link or a device"):
        unpack(tmp_path / "x.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("bound", "value", "message"),
    [
        ("MAX_UNPACKED_FILES", 2, "contains 3 entries; expected 2 at most"),
        ("MAX_UNPACKED_BYTES", 5_999, "unpacks to 6000 bytes"),
    ],
)
def test_bounds_are_kept(tmp_path, monkeypatch, bound, value, message):
    """Too many files, too many bytes."""
    archive = write_zip(tmp_path / "x.zip", [(name, bytes(2000)) for name in "abc"], packed=True)
    monkeypatch.setattr(untrusted, bound, value)
    with pytest.raises(DataError, match=message):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(untrusted, bound, value + 1)
    unpack(archive, tmp_path / "out")


def test_a_file_is_no_folder_too(tmp_path):
    """One line, whichever way the file system says it."""
    archive = write_zip(tmp_path / "x.zip", [("a", b"1"), ("a/b", b"2")])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")


def test_a_lie_about_a_size_is_found(tmp_path):
    """No more is written than the archive declares, whatever is packed in it."""
    archive = write_zip(tmp_path / "x.zip", [("a", b"7" * 4000)], packed=True)
    content = archive.read_bytes()
    assert content.count((4000).to_bytes(4, "little")) == 2  # in the entry and in the directory
    archive.write_bytes(content.replace((4000).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(DataError, match="not a complete zip archive"):
        unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "a").stat().st_size <= 100


def test_every_truncation_and_every_flipped_byte_ends_in_one_line(tmp_path):
    """A damaged archive unpacks to what it held, or to a message. Never to a traceback."""
    entries = [("a/one", b"one" * 50), ("a/two", b"two" * 50)]
    archive_bytes = write_zip(tmp_path / "whole.zip", entries, packed=True).read_bytes()
    damaged = [archive_bytes[:length] for length in range(len(archive_bytes))]
    damaged += [
        archive_bytes[:offset] + bytes([archive_bytes[offset] ^ bit]) + archive_bytes[offset + 1 :]
        for offset in range(len(archive_bytes))
        for bit in (0x01, 0xFF)
    ]
    refused = whole_again = 0
    for number, content in enumerate(damaged):
        archive = tmp_path / "x.zip"
        archive.write_bytes(content)
        folder = tmp_path / str(number)
        try:
            unpack(archive, folder)
        except DataError as error:
            refused += "\n" not in str(error)
        else:
            whole_again += 1
            assert set(written_below(folder).values()) <= {content for _, content in entries}
    assert refused + whole_again == len(damaged)
    assert refused > len(damaged) / 2
