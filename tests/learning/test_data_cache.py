"""The cache of decoded images: the same pixels, built once, whatever happens to its builder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from released_layout import write_image

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import sha256_of
from clear_mlflow.data import cached_arrays
from clear_mlflow.data.cached_arrays import ForeignFileError, UnusableFileError, refuse_others
from clear_mlflow.data.checking import content as hashing
from clear_mlflow.data.checking.content import FILE_NAME, RememberedHashes
from clear_mlflow.data.decoding.decode import DecodedImages, Resize, decode
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.stream import ImageSet

RESIZE = Resize(16)


def image_set(*paths: Path) -> ImageSet:
    """Images with their contents hashed, as a dataset's reader gives them."""
    contents = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    return ImageSet(tuple(paths), np.zeros(len(paths), dtype=np.int64), contents)


def write_images(folder: Path, count: int = 40) -> ImageSet:
    folder.mkdir()
    paths = [folder / f"{n}.png" for n in range(count)]
    for n, path in enumerate(paths):
        write_image(path, size=(20 + n % 7, 16 + n % 5), seed=f"{folder.name}{n}")
    return image_set(*paths)


def quiet_cache(folder: Path) -> DecodedCache:
    def refuse(message: str) -> None:
        raise AssertionError(message)

    return DecodedCache(folder, warn=refuse)


def same(first: DecodedImages, other: DecodedImages) -> bool:
    sizes = np.array_equal(first.sizes, other.sizes)
    return sizes and np.array_equal(first.pixels, other.pixels)


BUILT = ["", ".json", ".npy"]  # the lock, what the array is of, the array


def suffixes(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def kept(folder: Path, pattern: str = "*.npy") -> list[Path]:
    return sorted(folder.glob(pattern))


def test_cached_images_are_the_decoded_ones_and_are_built_once(tmp_path):
    """First and second answers equal decode; the second one needs no image file any more."""
    images = write_images(tmp_path / "images")
    literal = decode(images, RESIZE)
    reported: list[int] = []
    first = quiet_cache(tmp_path / "cache").images(images, RESIZE, on_image=reported.append)
    assert same(first, literal)
    assert reported[-1] == len(images)
    for path in images.paths:
        path.unlink()
    reported.clear()
    second = quiet_cache(tmp_path / "cache").images(images, RESIZE, on_image=reported.append)
    assert same(second, literal)
    assert reported == [len(images)]
    assert suffixes(tmp_path / "cache") == BUILT


def test_pixels_are_mapped_and_what_is_done_to_them_does_not_reach_the_file(tmp_path):
    """A tensor takes the mapped memory as it is, without a warning; the file keeps its bytes."""
    images = write_images(tmp_path / "images", 3)
    cache = quiet_cache(tmp_path / "cache")
    pixels = cache.images(images, RESIZE).pixels
    before = pixels.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(pixels)
    assert tensor.data_ptr() == pixels.ctypes.data
    tensor.zero_()
    assert np.array_equal(cache.images(images, RESIZE).pixels, before)


@pytest.mark.parametrize("change", ["content", "order", "geometry", "fewer", "folder"])
def test_whatever_changes_a_pixel_changes_the_key(tmp_path, change):
    """Another content, order, number or geometry is another entry; another folder is none."""
    images = write_images(tmp_path / "images", 5)
    cache, resize = quiet_cache(tmp_path / "cache"), RESIZE
    cache.images(images, resize)
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
    changed = image_set(*paths)
    assert same(cache.images(changed, resize), decode(changed, resize))
    assert len(kept(tmp_path / "cache")) == (1 if change == "folder" else 2)


def _black_pixels(path: Path) -> None:
    """As a reviewer did it: the length and the header are as they were."""
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
    """Whole, with its own JSON, and of as many images of the same sizes."""
    others = write_images(path.parent / "others", 3)
    quiet_cache(path.parent / "elsewhere").images(others, RESIZE)
    for suffix in (".npy", ".json"):
        (other,) = kept(path.parent / "elsewhere", f"*{suffix}")
        other.replace(path.with_suffix(suffix))


DAMAGES = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "pickle": lambda path: np.save(path, np.array([object()]), allow_pickle=True),
    "black": _black_pixels,
    "sizes": _other_sizes,
    "no JSON": lambda path: path.with_suffix(".json").write_text("{"),
    "cut JSON": lambda path: path.with_suffix(".json").write_text('{"damaged": []}'),
    "other images": _write_entry_of_other_images,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_anew(tmp_path, damage):
    """A file that is not as it was written is replaced, never read as images; a line says so."""
    images = write_images(tmp_path / "images", 3)
    quiet_cache(tmp_path / "cache").images(images, RESIZE)
    (entry,) = kept(tmp_path / "cache")
    intact = [entry.read_bytes(), entry.with_suffix(".json").read_bytes()]
    DAMAGES[damage](entry)
    assert [entry.read_bytes(), entry.with_suffix(".json").read_bytes()] != intact
    messages: list[str] = []
    cache = DecodedCache(tmp_path / "cache", warn=messages.append)
    assert same(cache.images(images, RESIZE), decode(images, RESIZE))
    assert [entry.read_bytes(), entry.with_suffix(".json").read_bytes()] == intact
    (line,) = messages
    assert line.startswith(str(entry.with_suffix("")))
    assert "is not as it was written; its images are decoded anew" in line


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_a_file_that_others_may_write_to_is_built_anew(tmp_path, suffix):
    """And what is written can be written by its owner alone, whatever the umask allows."""
    images = write_images(tmp_path / "images", 3)
    umask = os.umask(0)
    try:
        quiet_cache(tmp_path / "cache").images(images, RESIZE)
        quiet_cache(tmp_path / "cache").images(images, RESIZE)
        (entry,) = kept(tmp_path / "cache")
        for file in (entry, entry.with_suffix(".json")):
            assert file.stat().st_mode & 0o777 == 0o644
        entry.with_suffix(suffix).chmod(0o664)
        messages: list[str] = []
        DecodedCache(tmp_path / "cache", warn=messages.append).images(images, RESIZE)
    finally:
        os.umask(umask)
    (line,) = messages
    assert "may be written by other users (mode 664)" in line
    assert entry.with_suffix(suffix).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("owner", "user", "mode", "why"),
    [
        (1000, 1000, 0o100644, None),
        (0, 1000, 0o100444, None),
        (1000, 1000, 0o100664, "may be written by other users"),
        (1001, 1000, 0o100644, "belongs to another user"),
        (1000, 1000, 0o010600, "is no plain file"),
    ],
)
def test_whose_files_count(monkeypatch, owner, user, mode, why):
    """The user's own and root's, where nobody else may write."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    status = os.stat_result((mode, 1, 1, 1, owner, owner, 10, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda path: status)
    if why is None:
        refuse_others(Path("file"))
    else:
        with pytest.raises(UnusableFileError, match=f"file {why}"):
            refuse_others(Path("file"))


def test_another_users_file_is_neither_read_nor_replaced(tmp_path, monkeypatch):
    """Images are decoded into memory, and one line says why."""
    images = write_images(tmp_path / "images", 3)
    quiet_cache(tmp_path / "cache").images(images, RESIZE)
    (entry,) = kept(tmp_path / "cache")
    _black_pixels(entry)
    black = entry.read_bytes()

    def stat_as_stranger(path: Path) -> None:
        raise ForeignFileError(f"{path} belongs to another user (uid 1234)")

    monkeypatch.setattr(cached_arrays, "refuse_others", stat_as_stranger)
    messages: list[str] = []
    cache = DecodedCache(tmp_path / "cache", warn=messages.append)
    for _ in range(2):
        assert same(cache.images(images, RESIZE), decode(images, RESIZE))
    assert entry.read_bytes() == black
    (line,) = messages
    assert f"{entry} belongs to another user (uid 1234)" in line
    assert "CLEAR_MLFLOW_CACHE" in line


def test_a_file_is_verified_once_in_a_process_and_again_where_it_changed(tmp_path, monkeypatch):
    """Asked for twice, as every training does, it is hashed once; what changed is refused."""
    images = write_images(tmp_path / "images", 3)
    quiet_cache(tmp_path / "cache").images(images, RESIZE)
    (entry,) = kept(tmp_path / "cache")
    hashed = []
    digest_of = cached_arrays._digest
    monkeypatch.setattr(
        cached_arrays, "_digest", lambda *arguments: hashed.append(1) or digest_of(*arguments)
    )
    messages: list[str] = []
    cache = DecodedCache(tmp_path / "cache", warn=messages.append)
    cache.damaged(images, RESIZE)
    cache.images(images, RESIZE)
    assert len(hashed) == 1
    os.utime(entry)  # the same content
    cache.images(images, RESIZE)
    assert len(hashed) == 2
    assert messages == []
    _black_pixels(entry)
    assert same(cache.images(images, RESIZE), decode(images, RESIZE))
    assert len(messages) == 1


BUILDER = """
import hashlib, json, resource, sys
from pathlib import Path
import numpy as np
from clear_mlflow.data.decoding.decode import Resize
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.stream import ImageSet

folder, images, what = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
paths = tuple(map(Path, images["paths"]))
images = ImageSet(paths, np.zeros(len(paths), np.int64), tuple(images["contents"]))
told = []

def on_image(done):
    told.append(done)
    if what == "pause" and len(told) == 1:
        print("half-way", flush=True)
        sys.stdin.readline()

if what == "small disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
print("asking", flush=True)
pixels = DecodedCache(folder).images(images, Resize(16), on_image=on_image)
digest = hashlib.sha256(pixels.sizes.tobytes() + pixels.pixels.tobytes())
print(json.dumps({"told": len(told), "pixels": digest.hexdigest()}))
"""


def builder(folder: Path, images: ImageSet, mode: str = "build") -> subprocess.Popen[str]:
    """A process that asks the cache for images; told to pause, it stops half-way."""
    described = {"paths": [str(path) for path in images.paths], "contents": images.contents}
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), json.dumps(described), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asking\n"
    if mode == "pause":
        assert process.stdout.readline() == "half-way\n"
    return process


def answer(process: subprocess.Popen[str]) -> tuple[dict, str]:
    """What a builder found, and what it wrote to standard error; told to go on where it paused."""
    with contextlib.suppress(BrokenPipeError):  # it may have ended already
        process.stdin.write("go on\n")
        process.stdin.close()
    # Not communicate(): some of the output may have been read already, with the line before.
    out, err = process.stdout.read(), process.stderr.read()
    assert process.wait(timeout=60) == 0, err
    return json.loads(out), err


def digest(images: ImageSet) -> str:
    decoded = decode(images, RESIZE)
    return hashlib.sha256(decoded.sizes.tobytes() + decoded.pixels.tobytes()).hexdigest()


def test_a_builder_killed_half_way_leaves_nothing_that_is_read(tmp_path):
    """After SIGKILL nothing counts as built; the next one builds all and clears up."""
    images, folder = write_images(tmp_path / "images", 60), tmp_path / "cache"
    with builder(folder, images, "pause") as process:
        process.kill()
    assert len(kept(folder, "*.part")) == 1
    assert kept(folder) == []
    counts: list[int] = []
    pixels = quiet_cache(folder).images(images, RESIZE, on_image=counts.append)
    assert same(pixels, decode(images, RESIZE))
    assert len(counts) > 1
    assert suffixes(folder) == BUILT


@pytest.mark.parametrize("killed", [False, True])
def test_of_several_builders_at_once_one_builds_and_the_others_wait(tmp_path, killed):
    """They read what the first one built; where it is killed, the lock goes with it."""
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
        reports = [answer(process)[0] for process in (first, second, third)[killed:]]
    assert {report["pixels"] for report in reports} == {digest(images)}
    assert sum(report["told"] > 1 for report in reports) == 1
    assert suffixes(folder) == BUILT


def test_where_the_disk_is_full_images_are_decoded_all_the_same(tmp_path):
    """What cannot be written whole is not kept at all; one line tells, and the pixels are right."""
    images, folder = write_images(tmp_path / "images", 60), tmp_path / "cache"
    report, err = answer(builder(folder, images, "small disk"))
    assert report["pixels"] == digest(images)
    assert len(err.splitlines()) == 1
    assert str(folder) in err
    assert suffixes(folder) == [""]


def test_where_the_folder_cannot_be_made_images_are_decoded_all_the_same(tmp_path):
    """The warning comes once, however many image sets are asked for."""
    (tmp_path / "file").write_text("no folder")
    messages: list[str] = []
    cache = DecodedCache(tmp_path / "file" / "cache", warn=messages.append)
    for name in ("one", "two"):
        images = write_images(tmp_path / name, 3)
        assert same(cache.images(images, RESIZE), decode(images, RESIZE))
        assert cache.damaged(images, RESIZE) == ()
    assert len(messages) == 1
    assert "CLEAR_MLFLOW_CACHE" in messages[0]


def test_a_file_changed_since_it_was_hashed_is_refused(tmp_path):
    """Pixels are never kept under the name of a content that they do not come from."""
    images = write_images(tmp_path / "images", 3)
    write_image(images.paths[1], size=(20, 20), seed="changed")
    with pytest.raises(DataError, match=r"1\.png is not the file whose content was hashed"):
        quiet_cache(tmp_path / "cache").images(images, RESIZE)
    assert kept(tmp_path / "cache") == []


def test_damaged_images_are_listed_all_and_remembered(tmp_path):
    """Each by position and reason; asked again, no file is opened."""
    images = write_images(tmp_path / "images", 40)
    images.paths[3].write_bytes(b"<html>")
    images.paths[35].write_bytes(images.paths[35].read_bytes()[:90])
    images = image_set(*images.paths)
    cache = quiet_cache(tmp_path / "cache")
    first = cache.damaged(images, RESIZE)
    assert [problem.position for problem in first] == [3, 35]
    assert [problem.path for problem in first] == [images.paths[3], images.paths[35]]
    assert len(kept(tmp_path / "cache", "*.json")) == 1
    with pytest.raises(DataError, match=r"2 images cannot be decoded; the first: .*3\.png"):
        cache.images(images, RESIZE)
    for path in images.paths:
        path.unlink()
    assert cache.damaged(images, RESIZE) == first


def wait_until_settled(path: Path, content: bytes = b"content") -> Path:
    path.write_bytes(content)
    return path


def looked_up(folder: Path, root: Path, *paths: Path) -> tuple[list[str], list[Path]]:
    """The hashes of files, and which of them were read for it."""
    with (
        mock.patch.object(hashing, "sha256_of", side_effect=sha256_of) as read,
        RememberedHashes(folder, root) as hashes,
    ):
        digests = [hashes.of(path, path.stat()) for path in paths]
    return digests, [call.args[0] for call in read.call_args_list]


@pytest.fixture
def clock(monkeypatch):
    """A clock that runs ten seconds ahead, so that files just written count as settled."""
    import time

    real = time.time_ns
    monkeypatch.setattr("clear_mlflow.data.checking.content.time.time_ns", lambda: real() + 10**10)


@pytest.mark.usefixtures("clock")
def test_a_file_that_is_as_it_was_is_hashed_once(tmp_path):
    """The second look computes nothing; a name that is no Unicode is as good as any."""
    paths = [
        wait_until_settled(tmp_path / "a"),
        wait_until_settled(tmp_path / os.fsdecode(b"\xff"), b"other"),
    ]
    first, computed = looked_up(tmp_path / "cache", tmp_path, *paths)
    assert computed == paths
    assert looked_up(tmp_path / "cache", tmp_path, *paths) == (first, [])
    assert looked_up(tmp_path / "cache", tmp_path / "elsewhere", *paths) == (first, paths)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_changed_file_is_hashed_anew(tmp_path, replaced):
    """Not even a file of the same size and time is taken for the old one."""
    path = wait_until_settled(tmp_path / "a")
    looked_up(tmp_path / "cache", tmp_path, path)
    before = path.stat()
    written = path.with_name("other") if replaced else path
    written.write_bytes(b"CONTENT")
    os.utime(written, ns=(before.st_atime_ns, before.st_mtime_ns))
    written.replace(path)
    digests, computed = looked_up(tmp_path / "cache", tmp_path, path)
    assert digests == [hashlib.sha256(b"CONTENT").hexdigest()]
    assert computed == [path]


def test_a_file_written_a_moment_ago_is_not_yet_remembered(tmp_path):
    """It may change again without a change of its times."""
    path = wait_until_settled(tmp_path / "a")
    os.utime(path, (0, 0))  # as an archive sets it, which says nothing of when it was written
    for _ in range(2):
        assert looked_up(tmp_path / "cache", tmp_path, path)[1] == [path]


@pytest.mark.usefixtures("clock")
def test_a_damaged_memory_is_begun_anew(tmp_path):
    """Hashes stay right, and the next run but one remembers again."""
    path = wait_until_settled(tmp_path / "a")
    first, _ = looked_up(tmp_path / "cache", tmp_path, path)
    file = tmp_path / "cache" / FILE_NAME
    file.write_bytes(b"no database, and longer than the header of one" * 100)
    assert looked_up(tmp_path / "cache", tmp_path, path) == (first, [path])
    assert looked_up(tmp_path / "cache", tmp_path, path) == (first, [])


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_hashes_that_others_may_write_to_are_not_believed(tmp_path, mode):
    """A hash that somebody wrote there would be the digest of images that were never read."""
    path = wait_until_settled(tmp_path / "a")
    looked_up(tmp_path / "cache", tmp_path, path)
    (tmp_path / "cache" / FILE_NAME).chmod(mode)
    _, computed = looked_up(tmp_path / "cache", tmp_path, path)
    assert computed == ([] if mode == 0o644 else [path])
    assert looked_up(tmp_path / "cache", tmp_path, path)[1] == []
