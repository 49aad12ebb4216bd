"""Random damage to a dataset: it loads correctly, or is a one-line error with a path."""

import hashlib
import itertools
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from layout_trees import LAYOUTS, Photo, Photos, find_contents, list_buckets

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.stream import BucketStream

pytestmark = pytest.mark.slow

PHOTOS = Photos(buckets=("0", "1"), train=4, test=1)
OPTIONS = (("iid", "auto"), ("iid", "1"), ("iid", "9"), ("streaming", "auto"))
CORRUPTIONS_PER_LAYOUT = 30  # of 4 layouts: 120
HUGE = "9" * 5000


@dataclass
class Tree:
    """A dataset to damage, and its original content."""

    root: Path
    draw: random.Random
    # Damage that leaves no trace: an image or bucket that no list names any more. What is left of
    # the dataset then has to be right.
    may_lack: bool = False

    def files(self, *suffixes: str) -> list[Path]:
        return sorted(p for p in self.root.rglob("*") if p.suffix in suffixes and p.is_file())

    def pick(self, *suffixes: str) -> Path:
        candidates = self.files(*suffixes)
        if not candidates:
            raise NotApplicableError
        return self.draw.choice(candidates)

    @contextmanager
    def edit_json(self, path: Path | None = None) -> Iterator[tuple[Any, Any]]:
        path = path or self.pick(".json")
        value = json.loads(path.read_bytes())
        container = self.draw.choice([c for c in containers(value) if c])
        yield container, self.draw.choice(list_keys(container))
        path.write_text(json.dumps(value))

    def pick_list(self) -> tuple[Path, list[str]]:
        path = self.pick(".txt")
        return path, path.read_text(encoding="utf-8").split("\n")


class NotApplicableError(Exception):
    """The layout has nothing that this damage applies to."""


def containers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(c for v in value.values() for c in containers(v))]
    if isinstance(value, list):
        return [value, *(c for v in value for c in containers(v))]
    return []


def list_keys(container: Any) -> list[Any]:
    return [*container] if isinstance(container, dict) else [*range(len(container))]


def truncate(tree: Tree) -> None:
    path = tree.pick(".json", ".txt")
    size = path.stat().st_size
    os.truncate(path, tree.draw.randrange(size))
    # Cut between two lines, a list of all images is a shorter list.
    tree.may_lack = path.name == "all.txt"


def swap_values(tree: Tree) -> None:
    with tree.edit_json() as (container, key):
        other = tree.draw.choice(list_keys(container))
        container[key], container[other] = container[other], container[key]


def swap_files(tree: Tree) -> None:
    first = tree.pick(".json", ".txt")
    other = tree.draw.choice([p for p in tree.files(first.suffix) if p.name == first.name])
    content = first.read_bytes()
    first.write_bytes(other.read_bytes())
    other.write_bytes(content)


def swap_folders(tree: Tree) -> None:
    folders = sorted({p.parent for p in tree.files(".jpg")})
    if not tree.files(".json"):
        raise NotApplicableError  # the folders are all there is, so they are the truth
    if tree.draw.random() < 0.5:
        folders = sorted({folder.parent for folder in folders})
    first = tree.draw.choice(folders)
    other = tree.draw.choice([f for f in folders if f.parent == first.parent])
    aside = first.parent / "aside"
    first.rename(aside)
    if other != first:
        other.rename(first)
    aside.rename(other)


def drop_key(tree: Tree) -> None:
    with tree.edit_json() as (container, key):
        del container[key]
    tree.may_lack = True


def wrong_type(tree: Tree) -> None:
    path = tree.pick(".json")
    with tree.edit_json(path) as (container, key):
        container[key] = "MARK"
    wrong = tree.draw.choice(
        [
            *("null", "true", "0", "-7", "1e999", "NaN", HUGE, "[]", "{}", '[[""]]', '""'),
            *('"\\u0000"', '{"1": {}}', '["1"]', f'"{"x" * 9000}"', "[" * 20000 + "]" * 20000),
        ]
    )
    path.write_text(path.read_text().replace('"MARK"', wrong))


def climb(tree: Tree) -> None:
    folders = ("..", "labeled_images/../..", str(tree.root.parent), "labeled_images/./../../..")
    paths = [f"{folder}/outside.jpg" for folder in folders]
    outside = tree.draw.choice([*paths, "labeled_images\\..\\..\\outside.jpg", "~", "."])
    path = tree.pick(".json", ".txt")
    if path.suffix == ".txt":
        lines = path.read_text(encoding="utf-8").split("\n")
        number = tree.draw.randrange(len(lines) - 1)
        lines[number] = f"{outside} {lines[number].rpartition(' ')[2]}"
        path.write_text("\n".join(lines))
    else:
        with tree.edit_json(path) as (container, key):
            container[key] = outside


def shuffle_lines(tree: Tree) -> None:
    path, lines = tree.pick_list()
    tree.draw.shuffle(lines)
    path.write_text("\n".join(line for line in lines if line))


def spoil_line(tree: Tree) -> None:
    path, lines = tree.pick_list()
    number = tree.draw.randrange(len(lines) - 1)
    head = lines[number].rpartition(" ")[0]
    lines[number] = tree.draw.choice(
        [
            *("", " ", "\t", "0 0", head, f" {lines[number]}", f"{lines[number]} "),
            *(f"{lines[number]}\x00", f"{head}  0"),
            *(f"{head} {label}" for label in (HUGE, -1, 1.0, 0, 1)),
        ]
    )
    path.write_text("\n".join(lines))


def not_utf_8(tree: Tree) -> None:
    path = tree.pick(".json", ".txt")
    content = path.read_bytes()
    at = tree.draw.randrange(len(content))
    path.write_bytes(content[:at] + tree.draw.choice([b"\xff", b"\xc3", b"\0"]) + content[at:])


def odd_image(tree: Tree) -> None:
    path = tree.pick(".jpg")
    path.unlink()
    damage_number = tree.draw.randrange(5)
    if damage_number == 0:
        os.mkfifo(path)
    elif damage_number == 1:
        path.mkdir()
    else:
        path.symlink_to([tree.root.parent / "outside.jpg", path, "nowhere"][damage_number - 2])


def rename_anything(tree: Tree) -> None:
    path = tree.draw.choice(sorted(tree.root.rglob("*")))
    path.rename(path.with_name(path.name + tree.draw.choice(["~", ".part", " (1)", "\udcff"])))


def lose_folder(tree: Tree) -> None:
    folder = tree.draw.choice(sorted(p for p in tree.root.rglob("*") if p.is_dir()))
    # Where folders are the only list, a bucket that is gone was never there.
    tree.may_lack = not tree.files(".json")
    shutil.rmtree(folder)


DAMAGE: tuple[Callable[[Tree], None], ...] = (
    *(truncate, swap_values, swap_files, swap_folders, drop_key, wrong_type, climb, spoil_line),
    *(shuffle_lines, not_utf_8, odd_image, rename_anything, lose_folder),
)


@dataclass
class Whole:
    """An undamaged dataset and its stream."""

    root: Path
    truth: dict[str, Photo]
    digests: dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def intact_tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    trees = {}
    for layout, write in LAYOUTS.items():
        root = write(tmp_path_factory.mktemp("whole") / "data", PHOTOS)
        digests = {options: load(root, options).dataset.digest for options in OPTIONS}
        trees[layout] = Whole(root, find_contents(root, PHOTOS), digests)
    return trees


def load(root: Path, options: tuple[str, str]) -> BucketStream:
    protocol, split = options
    return load_stream("clear10", str(root), cache_dir=root, protocol=protocol, split=split)


def check(stream: BucketStream, full_run: Whole, options: tuple[str, str], tree: Tree) -> None:
    released = (options == ("iid", "auto")) and stream.layout == "released"
    seen_contents: set[str] = set()
    for bucket in list_buckets(stream):
        for part, images in (("train", bucket.train), ("test", bucket.test)):
            for path, label, content in zip(
                images.paths, images.labels.tolist(), images.contents, strict=True
            ):
                photo = full_run.truth[hashlib.sha256(path.read_bytes()).hexdigest()]
                assert full_run.truth[content] == photo
                assert photo.bucket == bucket.key
                assert photo.class_name == stream.dataset.class_names[label]
                assert photo.part == (part if released else "train")
                assert content not in seen_contents or options[0] == "streaming"
                seen_contents.add(content)
    assert stream.dataset.class_names == PHOTOS.classes
    if not tree.may_lack:
        assert stream.dataset.digest == full_run.digests[options]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_randomly_damaged_files_are_handled(tmp_path, intact_tree, layout):
    counts: Counter[str] = Counter()
    for seed in itertools.count(1):
        if counts.total() == CORRUPTIONS_PER_LAYOUT:
            break
        draw = random.Random(f"{layout} {seed}")
        folder = tmp_path / str(seed)
        root = folder / "data"
        shutil.copytree(intact_tree[layout].root, root)
        (folder / "outside.jpg").write_bytes(b"secret")
        tree = Tree(root, draw)
        damage = DAMAGE[seed % len(DAMAGE)]
        try:
            damage(tree)
        except NotApplicableError:
            continue
        options = draw.choice(OPTIONS)
        case = f"{damage.__name__}, seed {seed}, {options}"
        try:
            stream = load(root, options)
        except DataError as error:
            message = str(error)
            assert message.isprintable(), case
            assert str(root) in message, case
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(case) from error
        else:
            try:
                check(stream, intact_tree[layout], options, tree)
            except (AssertionError, KeyError) as error:
                raise AssertionError(case) from error
            counts["loaded"] += 1
        shutil.rmtree(folder)
    # Were all refused or all loaded, this would test but half of what it says.
    assert counts["refused"] >= CORRUPTIONS_PER_LAYOUT // 4
    assert counts["loaded"] >= 3
