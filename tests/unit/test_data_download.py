"""Downloading from a small, unreliable hub on this machine."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from file_server import REPOSITORY, Hub, serving
from huggingface_hub import constants
from one_line_errors import check_error
from released_layout import write_released

from clear_mlflow.cli import main
from clear_mlflow.core.errors import DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.download import (
    MARKER,
    RELEASES,
    WORK_FOLDER,
    Archive,
    Release,
    RetryLimits,
    download,
)

IMPORTS = """
import os, resource
from pathlib import Path
from clear_mlflow.core.errors import DataError
from clear_mlflow.data.download import Archive, Release, download
"""
HURRIED = RetryLimits(stall=0.3, attempts=3, wait=0.01)
TRAIN, TEST = "small-train-image-only.zip", "small-test.zip"


def zip_files(folder: Path, archive: Path, *, below: str) -> bytes:
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted(folder.rglob("*")):
            opened.write(path, f"{below}{path.relative_to(folder)}")
    return archive.read_bytes()


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    return write_released(tmp_path_factory.mktemp("tree"), train_folder="train_image_only")


@pytest.fixture(scope="session")
def files(tree, tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("archives")
    train = zip_files(tree / "train_image_only", folder / TRAIN, below="train_image_only/")
    zip_files(tree / "test", folder / TEST, below="small/test/")
    with zipfile.ZipFile(folder / TEST, "a") as opened:
        opened.writestr("__MACOSX/small/._class_names.txt", "x")
    return {TRAIN: train, TEST: (folder / TEST).read_bytes()}


@pytest.fixture(scope="session")
def release(files) -> Release:
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    train = Archive(TRAIN, md5[TRAIN], "train_image_only", 10**7)
    return Release("small", REPOSITORY, (train, Archive(TEST, md5[TEST], "test", 10**7)))


@pytest.fixture
def hub(files):
    with serving(Hub(files=dict(files))) as hub:
        yield hub


def fetch(release: Release, root: Path, hub: Hub, **options) -> tuple[str, ...]:
    options = {"endpoint": hub.url, "retry_limits": HURRIED, "revision": "main", **options}
    return download(release, root, **options)


def same_as(tree: Path, root: Path) -> bool:
    names = sorted(path.name for path in root.iterdir())
    streams = [load_stream("small", str(folder), cache_dir=root) for folder in (tree, root)]
    return (
        names == ["test", "train_image_only"]
        and streams[0].dataset.digest == streams[1].dataset.digest
    )


def test_the_released_archives_are_the_ones_that_the_authors_published():
    assert {a.file: a.md5 for release in RELEASES.values() for a in release.archives} == {
        "clear10-train-image-only.zip": "5171f720810d60b471c308dee595d430",
        "clear10-test.zip": "bf9a85bfb78fe742c7ed32648c9a3275",
        "clear100-train-image-only.zip": "ea85cdba9efcb3abf77eaab5554052c8",
        "clear100-test.zip": "e160815fb5fd4bc71dacd339ff41e6a9",
    }
    (repository,) = {release.repository for release in RELEASES.values()}
    assert repository == "elvishelvis6/CLEAR-Continual_Learning_Benchmark"


def test_a_download_is_what_the_loader_reads(release, hub, tree, tmp_path):
    reported = []
    root = tmp_path / "deep" / "root"
    done = fetch(release, root, hub, on_progress=lambda *report: reported.append(report))
    assert done == ("train_image_only", "test")
    assert same_as(tree, root)
    for stage in ("downloading", "checking", "unpacking"):
        reports = [report for report in reported if report[0] == f"{stage} {TRAIN}"]
        assert reports[-1][1] == reports[-1][2] > 0
    assert reported[-1] == ("writing test to the disk", 0, 0)  # which may take minutes
    num_requests = len(hub.requests)
    assert fetch(release, root, hub) == ()
    assert len(hub.requests) == num_requests


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize(
    "moods",
    [
        *(["stall", "good"], ["503", "429 9000", "good"]),
        *(["truncate", mood, "good"] for mood in ("truncate", "416", "corrupt", "ignore")),
        *([mood, "good"] for mood in ("html", "loop", "reset", "gzip", "short", "long", "204")),
        *(["truncate", mood, "good"] for mood in ("html", "loop", "reset", "gzip", "moved", "304")),
        *(["drip"], ["long"]),
    ],
)
def test_temporary_errors_are_retried(release, hub, tree, tmp_path, moods):
    hub.moods = moods
    fetch(release, tmp_path / "root", hub)
    assert same_as(tree, tmp_path / "root")


def test_a_second_download_continues_the_first(release, hub, files, tree, tmp_path):
    hub.moods = ["good", "truncate", "503"]
    check_error(DataError, "the server responds 503", fetch, release, tmp_path, hub)
    assert (tmp_path / "train_image_only" / MARKER).is_file()
    assert not (tmp_path / "test").exists()
    hub.requests.clear()
    hub.moods = ["good"]
    assert fetch(release, tmp_path, hub) == ("test",)
    assert hub.ranges == [f"bytes={len(files[TEST]) // 2}-"]
    assert same_as(tree, tmp_path)


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("404", "the server responds 404; check the revision"),
        ("401", "the server responds 401; .* token in HF_TOKEN"),
        ("429 9000", r"the server responds 429 \(3 attempts in a row\)"),
        ("corrupt", "was downloaded twice with wrong content"),
        ("truncate", r"\(3 attempts in a row\)"),
        ("html", r"the server sends a web page instead of the file \(3 attempts in a row\)"),
        ("loop", r"redirects.* \(3 attempts in a row\)"),
        ("reset", r"\(3 attempts in a row\)"),
        ("gzip", "was downloaded twice with wrong content"),
        ("short", "was downloaded twice with wrong content"),
        ("204", r"the server responds 204 \(3 attempts in a row\)"),
    ],
)
def test_a_permanent_error_is_one_line_with_a_remedy(release, hub, tmp_path, mood, message):
    hub.moods = [mood]
    with pytest.raises(DataError, match=message) as error:
        fetch(release, tmp_path, hub)
    line = str(error.value)
    assert "\n" not in line
    command = "clear-mlflow data download small DIR"
    assert f"{command}' on another machine and copy DIR to {tmp_path}" in line
    assert [path.name for path in tmp_path.iterdir()] == [WORK_FOLDER]


@pytest.mark.parametrize("mood", ["endless", "endless chunks", "huge"])
def test_a_reply_that_is_too_large_ends_the_download(release, hub, tmp_path, mood):
    hub.moods = [mood]
    message = f"{TRAIN} cannot be downloaded: the server sends more than 10.0 MB, which the file"
    check_error(DataError, message, fetch, release, tmp_path, hub)
    assert len(hub.ranges) == 1
    assert (tmp_path / WORK_FOLDER / f"{TRAIN}.part").stat().st_size == 0
    hub.moods = ["good"]
    assert fetch(release, tmp_path, hub) == ("train_image_only", "test")


@pytest.mark.parametrize("mood", ["html", "204", "304"])
def test_a_reply_without_the_file_keeps_what_has_arrived(release, hub, files, tmp_path, mood):
    """Such as the login page of a network, after gigabytes."""
    hub.moods = ["truncate", mood]
    with pytest.raises(DataError, match=r"\(3 attempts in a row\)"):
        fetch(release, tmp_path, hub)
    half = len(files[TRAIN]) // 2
    assert (tmp_path / WORK_FOLDER / f"{TRAIN}.part").read_bytes() == files[TRAIN][:half]
    assert hub.ranges == [None, *[f"bytes={half}-"] * 2]
    hub.moods = ["good"]
    assert fetch(release, tmp_path, hub) == ("train_image_only", "test")


def test_a_file_that_changes_between_two_ranges_is_not_unpacked(release, hub, tmp_path):
    hub.moods = ["truncate", "changed", "good"]
    message = "was downloaded twice with wrong content"
    check_error(DataError, message, fetch, release, tmp_path, hub)
    assert [path.name for path in tmp_path.iterdir()] == [WORK_FOLDER]
    assert [path.name for path in (tmp_path / WORK_FOLDER).iterdir()] == ["lock"]


def test_a_complete_part_is_used(release, hub, tree, files, tmp_path):
    """A process was killed before it checked it."""
    work = tmp_path / WORK_FOLDER
    work.mkdir()
    (work / f"{TRAIN}.part").write_bytes(files[TRAIN])
    fetch(release, tmp_path, hub)
    assert same_as(tree, tmp_path)
    assert hub.ranges == [f"bytes={len(files[TRAIN])}-", None]


def test_an_unrelated_partial_file_is_replaced(release, hub, tree, files, tmp_path):
    work = tmp_path / WORK_FOLDER
    work.mkdir()
    (work / f"{TRAIN}.part").write_bytes(bytes(len(files[TRAIN]) + 5))
    (work / f"{TEST}.part").write_bytes(bytes(100))
    (work / f"{TRAIN}.unpacking").mkdir()
    fetch(release, tmp_path, hub)
    assert same_as(tree, tmp_path)


@pytest.mark.slow
def test_a_crash_while_unpacking_leaves_no_partial_split(release, hub, tree, tmp_path):
    code = f"""{IMPORTS}
def stop(what, done, total):
    if what.startswith("unpacking") and done > total / 2:
        os.kill(os.getpid(), 9)
download({release!r}, Path({str(tmp_path)!r}), endpoint={hub.url!r}, on_progress=stop)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == [WORK_FOLDER]
    hub.requests.clear()
    fetch(release, tmp_path, hub)
    assert len(hub.ranges) == 1  # the archive that had arrived is not fetched again
    assert same_as(tree, tmp_path)


def test_an_existing_folder_is_left_unchanged(release, hub, tree, tmp_path):
    shutil.copytree(tree / "test", tmp_path / "test")
    for marker in (None, json.dumps({"md5": "0" * 32}), "[" * 100_000):
        if marker:
            (tmp_path / "test" / MARKER).write_text(marker)
        check_error(DataError, "was not unpacked from", fetch, release, tmp_path, hub)
    assert hub.requests == []


def test_two_at_once_download_once(release, hub, tree, tmp_path):
    reported = []
    (tmp_path / WORK_FOLDER).mkdir()
    with (tmp_path / WORK_FOLDER / "lock").open("wb") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = {"on_progress": lambda stage, *_: reported.append(stage)}
        second = pool.submit(fetch, release, tmp_path, hub, **options)
        while not reported:
            time.sleep(0.01)
        assert reported == [f"another process is downloading to {tmp_path}: waiting"]
        assert hub.requests == []
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert second.result() == ("train_image_only", "test")
    assert same_as(tree, tmp_path)


def test_the_required_disk_space_is_printed_first(release, hub, files, tmp_path):
    reported = []
    hub.sizes = {TRAIN: 3_000_000_000, TEST: 2_000_000_000}
    hub.moods = ["404"]
    with pytest.raises(DataError, match="404"):
        fetch(release, tmp_path, hub, on_progress=lambda stage, *_: reported.append(stage))
    assert f"small to {tmp_path}: 5.0 GB to download, 7.0 GB of disk needed, " in reported[0]
    hub.sizes = {TRAIN: 10**18}
    hub.requests.clear()
    with pytest.raises(DataError, match=r"2000000000.0 GB of disk needed, [^\n]*; free some"):
        fetch(release, tmp_path, hub)
    assert hub.ranges == []


def test_an_unwritable_folder_is_reported(release, hub, tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/clear")):
        check_error(DataError, f"{root} cannot be written: ", fetch, release, root, hub)
    assert hub.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("below", [1000, 500_000])
def test_a_full_disk_is_a_one_line_error(hub, tmp_path, below):
    archive = tmp_path / "large.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("class_names.txt", os.urandom(500).hex() * 20_000)
    hub.files[TRAIN] = archive.read_bytes()
    assert 1000 < len(hub.files[TRAIN]) < 500_000
    md5 = hashlib.md5(hub.files[TRAIN]).hexdigest()
    train_archive = Archive(TRAIN, md5, "train_image_only", 10**7)
    root = tmp_path / "root"
    release = Release("small", REPOSITORY, (train_archive,))
    code = f"""{IMPORTS}
resource.setrlimit(resource.RLIMIT_FSIZE, ({below}, {below}))
try:
    download({release!r}, Path({str(root)!r}), endpoint={hub.url!r})
except DataError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"[^\n]+ cannot be written[^\n]+File too large[^\n]+\n", done.stdout)
    assert [path.name for path in root.iterdir()] == [WORK_FOLDER]
    assert not list((root / WORK_FOLDER).glob("*.unpacking"))


@pytest.mark.slow
def test_mirror_and_token_come_from_the_environment(release, hub, tree, tmp_path):
    code = f"{IMPORTS}\ndownload({release!r}, Path({str(tmp_path / 'root')!r}))"
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}
    environment["HF_HOME"] = str(tmp_path / "home")
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    # The hub's library may ask for other things on its own account, without the token.
    resolved = [(path, token) for _, path, _, token in hub.requests if "/resolve/" in path]
    assert [token for _, token in resolved] == ["Bearer hf_secret"] * 4  # sizes, and files
    assert same_as(tree, tmp_path / "root")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("HF_ENDPOINT", f"http://127.0.0.1{end}") for end in (":99999", ":1 ", ":0", ":x")),
        *(("HF_ENDPOINT", value) for value in ("", "http://", "ftp://hub", "localhost:1")),
        ("HF_ENDPOINT", "http://[::1"),
        ("HF_ENDPOINT", "http://user:secret@hub:99999"),
        ("HF_TOKEN", "hf_secrét"),
    ],
)
def test_an_invalid_variable_of_the_hub_is_one_line(
    release, tmp_path, monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    line = check_error(DataError, f"{variable} ", download, release, tmp_path / "root")
    assert "or unset it" in line
    assert "secr" not in line
    assert not (tmp_path / "root").exists()


def test_offline_mode_is_an_immediate_error(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as the variable sets it
    done = CliRunner().invoke(main, ["data", "download", "clear10", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "HF_HUB_OFFLINE" in line
    assert "clear10-train-image-only.zip cannot be downloaded" in line
    assert str(tmp_path) in line
