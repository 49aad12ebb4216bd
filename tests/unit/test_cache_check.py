"""``data check --cache``: what is as it was written, and each file that is not."""

from __future__ import annotations

import sqlite3
import time

import numpy as np
import pytest
from click.testing import CliRunner
from released_layout import write_released

from clear_mlflow.cli import main
from clear_mlflow.data import load_stream
from clear_mlflow.data.checking.cache_files import check_cache
from clear_mlflow.data.checking.hashes import FILE_NAME
from clear_mlflow.data.decoding.decode import Resize
from clear_mlflow.data.decoding.decoded_cache import DECODED_FOLDER, DecodedCache
from clear_mlflow.data.features.extracted import (
    Extraction,
    array_file,
    write_array,
    write_sidecar,
)
from clear_mlflow.data.stream import image_sets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache with some of everything."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(folder))
    real = time.time_ns
    monkeypatch.setattr("clear_mlflow.data.checking.hashes.time.time_ns", lambda: real() + 10**10)
    root = write_released(tmp_path / "data")
    stream = load_stream("clear10", str(root), cache_dir=folder)
    cache = DecodedCache(folder / DECODED_FOLDER)
    extraction = Extraction("mine", "made up", "random:0", "none")
    for number, images in enumerate(image_sets(stream)):
        cache.keep(images, Resize(8))
        features = np.zeros((len(images), 3), np.float32)
        place = array_file(extraction.folder(stream, cache_dir=folder), number)
        write_array(place, features, extraction.subject(images))
    write_sidecar(extraction.folder(stream, cache_dir=folder), extraction, stream, width=3)
    (folder / "decoded-v2").mkdir()
    (folder / "decoded-v2" / "0.npy").write_bytes(b"of an earlier version")
    return folder


def checked(*options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["data", "check", *options])
    return done.exit_code, done.stdout, done.stderr


def _decoded(folder):
    return sorted((folder / DECODED_FOLDER).glob("*.npy"))[2]


def _features(folder):
    return next(folder.glob("features/mine/*/003.npy"))


def _sidecar(folder):
    return next(folder.glob("features/mine/*/features.json"))


def _digit(folder):
    load_stream("digits", "auto", cache_dir=folder)
    return sorted(folder.glob("digits-v1/train/labeled_images/1/3/*.bmp"))[0]


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _remember_wrongly(folder):
    """Of one image, another one's hash."""
    with sqlite3.connect(folder / FILE_NAME) as database:
        (first, content), (second, _) = database.execute(
            "SELECT path, content FROM hashes ORDER BY path LIMIT 2"
        )
        assert first != second
        database.execute("UPDATE hashes SET content = ? WHERE path = ?", (content, second))


def test_a_cache_that_is_as_it_was_written(folder, tmp_path):
    """Exit code 0, each part in a line; files of an earlier version are named, not checked."""
    load_stream("digits", "auto", cache_dir=folder)
    code, out, _ = checked("--cache")
    assert code == 0
    for part in ("decoded-v3", "features/mine/", "digits-v1", FILE_NAME):
        (line,) = [line for line in out.splitlines() if line.startswith(part)]
        assert line.rstrip().endswith("as written")
    assert "decoded-v2" in out
    assert next(part.files for part in check_cache(folder, on_progress=lambda *_: None)) == 6
    # A file that has changed since, or is gone, is no wrong memory: it is hashed when it is read.
    images = sorted((tmp_path / "data").glob("train/labeled_images/1/bus/*"))
    images[0].unlink()
    _flip(images[1])
    assert checked("--cache")[0] == 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (_decoded, _decoded),
        (_features, _features),
        (_sidecar, lambda folder: _sidecar(folder).parent),
        (_digit, lambda folder: folder / "digits-v1"),
    ],
)
def test_one_changed_bit_is_found(folder, wrong, named):
    """Exit code 2, what to delete named on standard output, and one line of error."""
    _flip(wrong(folder))
    code, out, err = checked("--cache")
    assert code == 2
    assert str(named(folder)) in out
    assert [line for line in err.splitlines() if line.startswith("error: 1 of what")]


def test_a_file_that_others_may_write_to_is_found(folder):
    """It may be as it was written; nobody can tell."""
    _decoded(folder).chmod(0o666)
    code, out, _ = checked("--cache")
    assert code == 2
    assert f"{_decoded(folder)} may be written by other users" in out


def test_a_wrongly_remembered_hash_is_found(folder):
    """The file itself is hashed again."""
    _remember_wrongly(folder)
    code, out, _ = checked("--cache")
    assert code == 2
    assert "has another hash for" in out
    (folder / FILE_NAME).write_bytes(b"no database" * 1000)
    code, out, _ = checked("--cache")
    assert code == 2
    assert f"{folder / FILE_NAME} is damaged" in out


def test_an_empty_cache_and_what_is_no_question(tmp_path, monkeypatch):
    """A folder that is not there holds nothing wrong; DIR and --cache are two questions."""
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "none"))
    assert checked("--cache")[0] == 0
    assert not (tmp_path / "none").exists()
    for options in (["--cache", "DIR"], [], ["--cache", "--json"]):
        code, _, err = checked(*options)
        assert code == 2
        assert "--cache and nothing else" in err
