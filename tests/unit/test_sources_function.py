"""Streams of custom functions: names, calls and errors."""

import itertools
import re
import sys
from pathlib import Path

import pytest
from one_line_errors import check_error
from own_streams import CLASSES, YEARS, load_source, write_years
from released_layout import write_image

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data import Entry, build_index, load_stream
from clear_mlflow.data.sources import needs_folder, stream_name
from clear_mlflow.learning.arguments import complete_dataset_arguments
from clear_mlflow.learning.parameters.config import TrainConfig

MODULE = """
from pathlib import Path
from clear_mlflow.data import Entry, ImageIndex, build_index

def years(root: Path, *, first: int = 2004, upper: bool = False, share: float = 1.0) -> ImageIndex:
    found = [p for p in sorted(root.glob("*/*/*.png")) if int(p.parts[-3]) >= first]
    name = str.upper if upper else str
    return build_index((Entry(p, name(p.parts[-2]), p.parts[-3]) for p in found), root=root)

def outside(root):
    (root.parent / "a").mkdir()
    paths = {"x": root.parent / "a" / "b.png", "y": root / "c.png"}
    return build_index([Entry(path, name, "1") for name, path in paths.items()], root=root)

def days(root: Path) -> ImageIndex:
    paths = sorted(root.glob("*/*/*.png"))
    days = [f"{p.parts[-3]}-{1 + i % 12:02d}-17" for i, p in enumerate(paths)]
    return build_index(
        (Entry(p, p.parts[-2], day) for p, day in zip(paths, days)), root=root
    )

def odd_split(root):
    return build_index([Entry(root / "c.png", "y", "1", "valid")], root=root)

def vectors(root):
    entries = [Entry(row, "ab"[row % 2], "12"[row // 2]) for row in range(4)]
    return build_index(entries, root=root, vectors=[[1.0], [2.0], [3.0], [4.0]])

def raises(root):
    raise RuntimeError("not today\\nor ever")

def exits(root):
    raise SystemExit(3)

def has_name(root, *, name: str = "x"):
    return None

def has_licence(root, *, licence: int = 3):
    return None

def nothing(root):
    return None

def untyped(root, first=1):
    return None

def no_default(root, first: int):
    return None

def of_lists(root, years: list = ()):
    return None

def of_nothing():
    return None

number = 3
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "own_photos.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    write_years(tmp_path / "yearbook", train=4)
    yield tmp_path / "yearbook"
    sys.modules.pop("own_photos", None)


def load(root, function, **arguments):
    return load_source(f"own_photos:{function}", root, **arguments)


def test_borders_divide_the_stream_of_a_function(root):
    """By the dates that its buckets are called: years are the folders again."""
    folder = load_source("folder", root, split="0")
    stream = load(root, "days", borders="year", split="0")
    assert (stream.dataset.digest, stream.dataset.buckets) == (
        folder.dataset.digest,
        folder.dataset.buckets,
    )
    assert load(root, "days", borders="equal:2", split="stream:1").dataset.buckets == ("1", "2")
    message = "bucket 2004, which lacks the quarter; expected times that are exact enough"
    check_error(DataError, message, load, root, "years", borders="quarter", split="0")


def test_a_function_returns_the_stream_of_the_folder(root):
    folder = load_source("folder", root)
    stream = load(root, "years")
    assert (stream.dataset.digest, stream.dataset.class_names) == (
        folder.dataset.digest,
        folder.dataset.class_names,
    )
    assert stream.dataset.name == "years"
    assert stream.dataset.source == f"own_photos:years, {root}"
    options = {"first": "2005", "upper": "yes", "licence": "CC0"}
    arguments = complete_dataset_arguments("own_photos:years", str(root), options)
    assert arguments == {
        "name": "years", "licence": "CC0", "first": 2005, "upper": True, "share": 1.0
    }  # fmt: skip
    stream = load(root, "years", **arguments)
    assert list(stream.dataset.buckets) == list(YEARS[1:])
    assert stream.dataset.class_names == ("BUS", "CAMERA")
    assert stream.dataset.licence == "CC0"
    with pytest.raises(ConfigError, match="expected a whole number"):
        complete_dataset_arguments("own_photos:years", str(root), {"first": "soon"})
    with pytest.raises(ConfigError, match="expected name, licence, first, upper, share"):
        complete_dataset_arguments("own_photos:years", str(root), {"last": "2005"})


def test_naming_a_function_does_not_import_it():
    config = TrainConfig.resolve({"dataset": "lab.photos:by_year"})
    assert (config.stream_name, config.memory) == ("by_year", 0.1)
    assert not needs_folder("lab.photos:by_year")
    assert stream_name("lab.photos:by_year", "/data", {"name": "faces"}) == "faces"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("missing", "cannot be loaded (AttributeError"),
        ("untyped", "takes first=1; expected a function of the folder"),
        ("no_default", "takes first: int; expected"),
        ("of_lists", "takes years: list = (); expected"),
        ("of_nothing", "takes no folder"),
        ("number", "cannot be called"),
        ("raises", "raised RuntimeError: not today or ever"),
        ("exits", "raised SystemExit: 3"),
        ("has_name", "takes name, an argument of every dataset; expected"),
        ("has_licence", "takes licence, an argument of every dataset; expected"),
        ("nothing", "returned None; expected an ImageIndex"),
        ("outside", "is not in"),
        ("odd_split", "has a split 'valid'"),
    ],
)
def test_an_error_of_a_function_is_one_line(root, function, message):
    check_error((ConfigError, DataError), message, load, root, function)


def test_the_function_of_the_docs_runs(tmp_path, project, monkeypatch):
    page = (project / "docs" / "own-streams.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(# photos.py.*?)^```$", page, re.S | re.M)
    (tmp_path / "photos.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    for year, name, i in itertools.product(YEARS, CLASSES, range(4)):
        seed = f"{year}-{name}-{i}"
        write_image(tmp_path / "all" / f"{seed}.png", size=(8, 8), seed=seed)
    stream = load_source("photos:by_year", tmp_path / "all", first=2005)
    sys.modules.pop("photos")
    assert list(stream.dataset.buckets) == ["2005", "2006"]
    assert stream.dataset.class_names == CLASSES


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_class_that_the_list_of_classes_lacks_is_an_error(tmp_path, split):
    images = itertools.product(("bus", "camera"), ("train", "test"))
    entries = [Entry(tmp_path / f"{name}{part}.png", name, "1", part) for name, part in images]
    entries.append(Entry(tmp_path / "c.png", "cat", "1", split))
    with pytest.raises(DataError, match="class 'cat', but the list of classes does not name it"):
        build_index(entries, root=tmp_path, class_names=["bus", "camera"])


IMAGES = [Entry(Path(f"{name}{key}.png"), name, key) for name in ("bus", "cat") for key in "12"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"root": None}, "root is None; expected the folder of the data: pass data_root"),
        ({"root": 3}, "root is 3; expected the folder of the data"),
        ({"root": "years"}, "is not in "),
        ({"entries": None}, "has nothing to train on"),
        ({"entries": [None]}, "lists None; expected Entry(path, class_name, bucket)"),
        ({"entries": [tuple(entry) for entry in IMAGES]}, "expected Entry(path, class_name"),
        ({"entries": IMAGES[0]}, "expected Entry(path, class_name, bucket)"),
        ({"order": [1, 2]}, "and order=1:2 differ: bucket '1' is only in the data"),
        ({"order": ["1", None]}, "and order=1:None differ: bucket '2' is only in the data"),
    ],
)
def test_a_wrong_argument_of_build_index_is_an_error_that_names_it(
    tmp_path, monkeypatch, arguments, message
):
    (tmp_path / "years").mkdir()
    monkeypatch.chdir(tmp_path)
    entries = [entry._replace(path=tmp_path / entry.path) for entry in IMAGES]
    arguments = {"entries": entries, "root": tmp_path} | arguments
    check_error(DataError, message, lambda: build_index(**arguments))


def test_a_function_without_a_folder_is_told_what_to_pass(root):
    message = "root is None; expected the folder of the data: pass data_root to the training"
    cache = {"cache_dir": root.parent}
    check_error(DataError, message, load_stream, "own_photos:vectors", "auto", **cache)
