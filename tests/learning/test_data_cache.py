"""The cache of decoded images: the same pixels, built once, also if a builder is killed."""

import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from image_tables import build_table
from released_layout import write_image

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import hash_file
from clear_mlflow.data import cache as caching
from clear_mlflow.data.cache import (
    HASHES_FILE,
    ForeignFileError,
    HashCache,
    UnusableFileError,
    stat_private,
)
from clear_mlflow.data.decode import DecodedCache, DecodedImages, Resize, decode
from clear_mlflow.data.images import ImageTable

RESIZE = Resize(16)


def build_image_set(*paths: Path) -> ImageTable:
    contents = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    return build_table(paths, contents=contents)


def write_images(folder: Path, count: int = 40) -> ImageTable:
    folder.mkdir()
    paths = [folder / f"{n}.png" for n in range(count)]
    for n, path in enumerate(paths):
        write_image(path, size=(20 + n % 7, 16 + n % 5), seed=f"{folder.name}{n}")
    return build_image_set(*paths)


def quiet_cache(folder: Path) -> DecodedCache:
    def refuse(message: str) -> None:
        raise AssertionError(message)

    return DecodedCache(folder, warn=refuse)


def same(one: DecodedImages, other: DecodedImages) -> bool:
    sizes = np.array_equal(one.sizes, other.sizes)
    return sizes and np.array_equal(one.pixels, other.pixels)


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images", 3)


@pytest.fixture
def entry(tmp_path, images):
    quiet_cache(tmp_path / "cache").load(images, RESIZE)
    (entry,) = list_entries(tmp_path / "cache")
    return entry


def load_with_warnings(folder: Path, images: ImageTable, times: int = 1) -> list[str]:
    messages: list[str] = []
    cache = DecodedCache(folder, warn=messages.append)
    for _ in range(times):
        assert same(cache.load(images, RESIZE), decode(images, RESIZE))
    return messages


BUILT = ["", ".json", ".npy"]  # the lock, what the array is of, the array


def suffixes(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def list_entries(folder: Path, pattern: str = "*.npy") -> list[Path]:
    return sorted(folder.glob(pattern))


def test_cached_images_equal_decoded_ones_and_are_built_once(tmp_path):
    images = write_images(tmp_path / "images")
    literal = decode(images, RESIZE)
    reported: list[int] = []
    first = quiet_cache(tmp_path / "cache").load(images, RESIZE, on_image=reported.append)
    assert same(first, literal)
    assert reported[-1] == len(images)
    for path in images.paths:
        path.unlink()
    reported.clear()
    second = quiet_cache(tmp_path / "cache").load(images, RESIZE, on_image=reported.append)
    assert same(second, literal)
    assert reported == [len(images)]
    assert suffixes(tmp_path / "cache") == BUILT


def test_changes_of_mapped_pixels_do_not_reach_the_file(tmp_path, images):
    """A tensor shares the mapped memory without a warning. The file keeps its bytes."""
    cache = quiet_cache(tmp_path / "cache")
    pixels = cache.load(images, RESIZE).pixels
    before = pixels.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(pixels)
    assert tensor.data_ptr() == pixels.ctypes.data
    tensor.zero_()
    assert np.array_equal(cache.load(images, RESIZE).pixels, before)


@pytest.mark.parametrize("change", ["content", "order", "geometry", "fewer", "folder"])
def test_whatever_changes_a_pixel_changes_the_key(tmp_path, change):
    images = write_images(tmp_path / "images", 5)
    cache, resize = quiet_cache(tmp_path / "cache"), RESIZE
    cache.load(images, resize)
    paths = list(images.paths)
    if change == "content":
        write_image(paths[2], size=(20, 20), seed="another")
    elif change == "order":
        paths.reverse()
    elif change == "fewer":
        paths.pop()
    elif change == "folder":
        (tmp_path / "images").rename(tmp_path / "moved")
        paths = [tmp_path / "moved" / path.name for path in paths]
    else:
        resize = Resize(16, square=True)
    changed = build_image_set(*paths)
    assert same(cache.load(changed, resize), decode(changed, resize))
    assert len(list_entries(tmp_path / "cache")) == (1 if change == "folder" else 2)


def _black_pixels(path: Path) -> None:
    """Replace the pixels, but keep length and header."""
    with path.open("r+b") as file:
        np.lib.format.read_magic(file)
        (pixels,), _, _ = np.lib.format.read_array_header_1_0(file)
        file.seek(file.tell())
        file.write(bytes(pixels))


def _other_sizes(path: Path) -> None:
    metadata = json.loads(path.with_suffix(".json").read_text())
    metadata["sizes"][:4] = metadata["sizes"][2:4] + metadata["sizes"][:2]
    path.with_suffix(".json").write_text(json.dumps(metadata))


def _write_entry_of_other_images(path: Path) -> None:
    others = write_images(path.parent / "others", 3)
    quiet_cache(path.parent / "elsewhere").load(others, RESIZE)
    for suffix in (".npy", ".json"):
        (other,) = list_entries(path.parent / "elsewhere", f"*{suffix}")
        other.replace(path.with_suffix(suffix))


def _damage_and_keep_time(path: Path, index: int | None = None) -> None:
    before, content = path.stat(), bytearray(path.read_bytes())
    if index is None:
        del content[-1]
    else:
        content[index] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut, same time": _damage_and_keep_time,
    **{f"byte {i}, same time": partial(_damage_and_keep_time, index=i) for i in (128, 1500, -1)},
    "pickle": lambda path: np.save(path, np.array([object()]), allow_pickle=True),
    "black": _black_pixels,
    "sizes": _other_sizes,
    "no JSON": lambda path: path.with_suffix(".json").write_text("{"),
    "cut JSON": lambda path: path.with_suffix(".json").write_text('{"damaged": []}'),
    "other images": _write_entry_of_other_images,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_again(tmp_path, images, entry, damage):
    before = [path.read_bytes() for path in (entry, entry.with_suffix(".json"))]
    DAMAGES[damage](entry)
    assert [path.read_bytes() for path in (entry, entry.with_suffix(".json"))] != before
    (line,) = load_with_warnings(tmp_path / "cache", images)
    metadata = json.loads(entry.with_suffix(".json").read_text())
    assert entry.read_bytes() == before[0]
    assert metadata == {**json.loads(before[1]), "mtime_ns": entry.stat().st_mtime_ns}
    assert line.startswith(str(entry.with_suffix("")))
    assert "is not as it was written; images of damaged files are decoded again" in line


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_a_file_that_others_may_write_is_built_again(tmp_path, images, suffix):
    umask = os.umask(0)
    try:
        quiet_cache(tmp_path / "cache").load(images, RESIZE)
        quiet_cache(tmp_path / "cache").load(images, RESIZE)
        (entry,) = list_entries(tmp_path / "cache")
        for file in (entry, entry.with_suffix(".json")):
            assert file.stat().st_mode & 0o777 == 0o644
        entry.with_suffix(suffix).chmod(0o664)
        (line,) = load_with_warnings(tmp_path / "cache", images)
    finally:
        os.umask(umask)
    assert "may be written by other users (mode 664)" in line
    assert entry.with_suffix(suffix).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("owner", "user", "mode", "why"),
    [
        (1000, 1000, 0o100644, None),
        (0, 1000, 0o100444, None),
        (1000, 1000, 0o100664, "may be written by other users"),
        (1001, 1000, 0o100644, "belongs to another user"),
        (1000, 1000, 0o010600, "is not a regular file"),
    ],
)
def test_which_owners_files_are_trusted(monkeypatch, owner, user, mode, why):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    status = os.stat_result((mode, 1, 1, 1, owner, owner, 10, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda path: status)
    if why is None:
        stat_private(Path("file"))
    else:
        with pytest.raises(UnusableFileError, match=f"file {why}"):
            stat_private(Path("file"))


def test_another_users_file_is_neither_read_nor_replaced(tmp_path, images, entry, monkeypatch):
    _black_pixels(entry)
    black = entry.read_bytes()

    def stat_as_stranger(path: Path) -> None:
        raise ForeignFileError(f"{path} belongs to another user (uid 1234)")

    monkeypatch.setattr(caching, "stat_private", stat_as_stranger)
    (line,) = load_with_warnings(tmp_path / "cache", images, times=2)
    assert entry.read_bytes() == black
    assert f"{entry} belongs to another user (uid 1234)" in line
    assert "CLEAR_MLFLOW_CACHE" in line


@pytest.fixture
def complete_reads(monkeypatch):
    paths: list[str] = []
    hash_all = caching._hash_all
    record = lambda file, *rest: paths.append(file.name) or hash_all(file, *rest)  # noqa: E731
    monkeypatch.setattr(caching, "_hash_all", record)
    return paths


def test_a_start_reads_only_a_sample_of_a_file(tmp_path, images, complete_reads):
    quiet_cache(tmp_path / "cache").load(images, RESIZE)
    assert len(complete_reads) == 1
    cache = quiet_cache(tmp_path / "cache")
    cache.find_damaged(images, RESIZE)
    cache.load(images, RESIZE)
    assert len(complete_reads) == 1
    assert caching._SAMPLES * caching._SAMPLE_BYTES == 2**18


def test_a_file_with_another_time_is_verified_completely_once(
    tmp_path, images, entry, complete_reads
):
    mtime = entry.stat().st_mtime_ns
    os.utime(entry)  # the same content
    for _ in range(3):
        quiet_cache(tmp_path / "cache").load(images, RESIZE)
    assert complete_reads == [str(entry)]
    assert entry.stat().st_mtime_ns == mtime
    _black_pixels(entry)
    assert len(load_with_warnings(tmp_path / "cache", images)) == 1


def test_a_file_whose_time_cannot_be_set_is_verified_once_in_a_process(
    tmp_path, images, entry, complete_reads, monkeypatch
):
    """For example, of a cache that root copied for a group."""
    os.utime(entry)
    monkeypatch.setattr(os, "utime", mock.Mock(side_effect=PermissionError))
    for _ in range(3):
        quiet_cache(tmp_path / "cache").load(images, RESIZE)
    assert complete_reads == [str(entry)]


def test_an_entry_of_an_earlier_version_is_verified_completely(
    tmp_path, images, entry, complete_reads
):
    metadata = json.loads(entry.with_suffix(".json").read_text())
    earlier = {name: metadata[name] for name in ("key", "sizes", "damaged", "sha256")}
    entry.with_suffix(".json").write_text(json.dumps(earlier))
    assert same(quiet_cache(tmp_path / "cache").load(images, RESIZE), decode(images, RESIZE))
    assert complete_reads == [str(entry)]


BUILDER = """
import hashlib, json, resource, sys
from pathlib import Path
import numpy as np
from clear_mlflow.data.decode import Resize
from clear_mlflow.data.decode import DecodedCache
from clear_mlflow.data.images import ImageTable

folder, images, what = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
zeros = np.zeros(len(images["files"]), np.int64)
images = ImageTable(tuple(images["files"]), zeros, zeros, zeros == 1, tuple(images["contents"]))
reported = []

def on_image(done):
    reported.append(done)
    if what == "pause" and len(reported) == 1:
        print("half-way", flush=True)
        sys.stdin.readline()

if what == "small disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
print("asking", flush=True)
pixels = DecodedCache(folder).load(images, Resize(16), on_image=on_image)
digest = hashlib.sha256(pixels.sizes.tobytes() + pixels.pixels.tobytes())
print(json.dumps({"reported": len(reported), "pixels": digest.hexdigest()}))
"""


def builder(folder: Path, images: ImageTable, what: str = "build") -> subprocess.Popen[str]:
    """Start a process that requests images from the cache. With mode "pause", it stops half-way."""
    described = {"files": images.files, "contents": images.contents}
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), json.dumps(described), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asking\n"
    if what == "pause":
        assert process.stdout.readline() == "half-way\n"
    return process


def answer(process: subprocess.Popen[str]) -> tuple[dict, str]:
    with contextlib.suppress(BrokenPipeError):  # it may have ended already
        process.stdin.write("go on\n")
        process.stdin.close()
    # Not communicate(): some of the output may have been read already, with the line before.
    out, err = process.stdout.read(), process.stderr.read()
    assert process.wait(timeout=60) == 0, err
    return json.loads(out), err


def digest(images: ImageTable) -> str:
    decoded = decode(images, RESIZE)
    return hashlib.sha256(decoded.sizes.tobytes() + decoded.pixels.tobytes()).hexdigest()


def test_a_killed_builder_leaves_no_entry(tmp_path):
    images, folder = write_images(tmp_path / "images", 60), tmp_path / "cache"
    with builder(folder, images, "pause") as process:
        process.kill()
    assert len(list_entries(folder, "*.part")) == 1
    assert list_entries(folder) == []
    reported: list[int] = []
    pixels = quiet_cache(folder).load(images, RESIZE, on_image=reported.append)
    assert same(pixels, decode(images, RESIZE))
    assert len(reported) > 1
    assert suffixes(folder) == BUILT


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_of_several_builders_at_once_one_builds_and_the_others_wait(tmp_path, killed):
    images, folder = write_images(tmp_path / "images", 60), tmp_path / "cache"
    with (
        builder(folder, images, "pause") as first,
        builder(folder, images) as second,
        builder(folder, images) as third,
    ):
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=0.5)
        if killed:
            first.kill()
        results = [answer(process)[0] for process in (first, second, third)[killed:]]
    assert {one["pixels"] for one in results} == {digest(images)}
    assert sum(one["reported"] > 1 for one in results) == 1
    assert suffixes(folder) == BUILT


def test_images_are_decoded_if_the_disk_is_full(tmp_path):
    images, folder = write_images(tmp_path / "images", 60), tmp_path / "cache"
    results, err = answer(builder(folder, images, "small disk"))
    assert results["pixels"] == digest(images)
    assert len(err.splitlines()) == 1
    assert str(folder) in err
    assert suffixes(folder) == [""]


def test_images_are_decoded_if_the_folder_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("no folder")
    messages: list[str] = []
    cache = DecodedCache(tmp_path / "file" / "cache", warn=messages.append)
    for name in ("one", "two"):
        images = write_images(tmp_path / name, 3)
        assert same(cache.load(images, RESIZE), decode(images, RESIZE))
        assert cache.find_damaged(images, RESIZE) == {}
    assert len(messages) == 1
    assert "CLEAR_MLFLOW_CACHE" in messages[0]


def test_a_file_changed_since_it_was_hashed_is_rejected(tmp_path, images):
    """Pixels are never stored under another content's hash."""
    write_image(images.paths[1], size=(20, 20), seed="changed")
    with pytest.raises(DataError, match=r"1\.png is not the file whose content was hashed"):
        quiet_cache(tmp_path / "cache").load(images, RESIZE)
    assert list_entries(tmp_path / "cache") == []


def test_damaged_images_are_all_listed_and_cached(tmp_path):
    images = write_images(tmp_path / "images", 40)
    images.paths[3].write_bytes(b"<html>")
    images.paths[35].write_bytes(images.paths[35].read_bytes()[:90])
    images = build_image_set(*images.paths)
    cache = quiet_cache(tmp_path / "cache")
    first = cache.find_damaged(images, RESIZE)
    assert list(first) == [3, 35]
    assert len(list_entries(tmp_path / "cache", "*.json")) == 1
    with pytest.raises(DataError, match=r"2 images cannot be decoded; the first: .*3\.png"):
        cache.load(images, RESIZE)
    for path in images.paths:
        path.unlink()
    assert cache.find_damaged(images, RESIZE) == first


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "a").write_bytes(b"content")
    return tmp_path / "a"


def looked_up(folder: Path, root: Path, *paths: Path) -> tuple[list[str], list[Path]]:
    with (
        mock.patch.object(caching, "hash_file", side_effect=hash_file) as read,
        HashCache(folder, root) as hashes,
    ):
        results = [hashes.hash_file(str(path)) for path in paths]
    return results, [Path(call.args[0]) for call in read.call_args_list]


@pytest.fixture
def clock(monkeypatch):
    """A clock that runs ten seconds ahead, so that files just written count as settled."""
    real = time.time_ns
    monkeypatch.setattr("clear_mlflow.data.cache.time.time_ns", lambda: real() + 10**10)


@pytest.mark.usefixtures("clock")
def test_an_unchanged_file_is_hashed_once(tmp_path, file):
    paths = [file, tmp_path / os.fsdecode(b"\xff")]
    paths[1].write_bytes(b"other")
    first, computed = looked_up(tmp_path / "cache", tmp_path, *paths)
    assert computed == paths
    assert looked_up(tmp_path / "cache", tmp_path, *paths) == (first, [])
    assert looked_up(tmp_path / "cache", tmp_path / "elsewhere", *paths) == (first, paths)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_changed_file_is_hashed_again(tmp_path, file, replaced):
    looked_up(tmp_path / "cache", tmp_path, file)
    before = file.stat()
    written = file.with_name("other") if replaced else file
    written.write_bytes(b"CONTENT")
    os.utime(written, ns=(before.st_atime_ns, before.st_mtime_ns))
    written.replace(file)
    expected = [hashlib.sha256(b"CONTENT").hexdigest()], [file]
    assert looked_up(tmp_path / "cache", tmp_path, file) == expected


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_killed_process_keeps_what_it_hashed(tmp_path, file, seconds, monkeypatch):
    monkeypatch.setattr(caching, "_SECONDS_BETWEEN_SAVES", seconds)
    hashes = HashCache(tmp_path / "cache", tmp_path)
    hashes.hash_file(str(file))
    hashes.save_at_times()
    assert looked_up(tmp_path / "cache", tmp_path, file)[1] == ([] if seconds == 0 else [file])
    (tmp_path / "cache" / HASHES_FILE).unlink()
    hashes.__exit__()
    assert looked_up(tmp_path / "cache", tmp_path, file)[1] == ([file] if seconds == 0 else [])


@pytest.mark.usefixtures("clock")
def test_hashes_wait_while_another_process_writes(tmp_path, file, monkeypatch):
    looked_up(tmp_path / "cache", tmp_path, file)
    other = file.with_name("other")
    other.write_bytes(b"other")
    monkeypatch.setattr(caching, "_SECONDS_TO_WAIT", 0)
    with contextlib.closing(sqlite3.connect(tmp_path / "cache" / HASHES_FILE)) as database:
        database.execute("BEGIN EXCLUSIVE")
        hashes = HashCache(tmp_path / "cache", tmp_path)
        hashes.hash_file(str(other))
        monkeypatch.setattr(caching, "_SECONDS_BETWEEN_SAVES", 0)
        hashes.save_at_times()
        database.rollback()
    hashes.save_at_times()
    assert looked_up(tmp_path / "cache", tmp_path, other)[1] == []


def test_the_hash_of_a_just_written_file_is_not_cached(tmp_path, file):
    """It may change again within the resolution of its time."""
    os.utime(file, (0, 0))  # as an archive sets it, which says nothing of when it was written
    for _ in range(2):
        assert looked_up(tmp_path / "cache", tmp_path, file)[1] == [file]


@pytest.mark.usefixtures("clock")
def test_a_damaged_hash_cache_is_replaced(tmp_path, file):
    first, _ = looked_up(tmp_path / "cache", tmp_path, file)
    damage = b"no database, and longer than the header of one" * 100
    (tmp_path / "cache" / HASHES_FILE).write_bytes(damage)
    assert looked_up(tmp_path / "cache", tmp_path, file) == (first, [file])
    assert looked_up(tmp_path / "cache", tmp_path, file) == (first, [])


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_hashes_that_others_may_write_are_not_trusted(tmp_path, file, mode):
    """A false hash would become the digest of images that were never read."""
    looked_up(tmp_path / "cache", tmp_path, file)
    (tmp_path / "cache" / HASHES_FILE).chmod(mode)
    _, computed = looked_up(tmp_path / "cache", tmp_path, file)
    assert computed == ([] if mode == 0o644 else [file])
    assert looked_up(tmp_path / "cache", tmp_path, file)[1] == []
