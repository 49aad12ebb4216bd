"""The rehearsal benchmark writes archives that the package downloads, checks and loads."""

import argparse
import importlib
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from released_layout import read_any, write_image

from clear_mlflow.data.check import check_dataset
from clear_mlflow.data.download import Archive, Release, download


@pytest.fixture
def rehearsal(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("rehearsal")


def test_its_archives_are_served_downloaded_and_loaded(rehearsal, tmp_path, monkeypatch):
    monkeypatch.setitem(rehearsal.DATASETS, "clear10", (2, 4, 1, 3, 0.1))
    for number in range(2):
        write_image(tmp_path / "photos" / f"{number}.png", size=(64, 48), seed=str(number))
    options = {"dataset": "clear10", "share": 1, "scale": None, "pool": 2}
    hub = tmp_path / "hub"
    hub.mkdir()
    md5s = rehearsal.write_archives(hub, argparse.Namespace(**options, photos=tmp_path / "photos"))
    archives = [
        Archive(f"clear10-{split}.zip", md5, folder, 10**9)
        for split, md5, folder in zip(
            ("train-image-only", "test"), md5s, ("train_image_only", "test"), strict=True
        )
    ]
    release = Release("clear10", "someone/a-dataset", tuple(archives))
    handler = type("Handler", (rehearsal.HubHandler,), {"folder": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert download(release, tmp_path / "root", endpoint=url) == ("train_image_only", "test")
    finally:
        server.shutdown()
        server.server_close()
    assert check_dataset(str(tmp_path / "root")).problems == ()
    stream = read_any(tmp_path / "root", name="clear10")
    assert [len(bucket) for bucket in stream.train] == [2 * 4] * 11
    assert all(2 <= len(bucket) <= 2 * 3 for bucket in stream.test)
    assert len(set(stream.images.contents)) == len(stream.images)
