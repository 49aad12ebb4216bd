"""What is done once for many files comes out as if it were done for each."""

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.files import stored_path

BASE = Path("/data/train")
PARTS = st.sampled_from(
    [
        "images",
        "imagesx",
        "1",
        "a.jpg",
        ".",
        "..",
        "",
        " ",
        "a b",
        "x\\y",
        "\n",
        "é",
        ".hidden",
        "c.",
    ]
)


def one_by_one(stored, below):
    """As it is said: relative, below a folder of that name, not climbing, joined to the base."""
    if not stored.isprintable() or "\\" in stored:
        return None
    parts = PurePosixPath(stored).parts
    if len(parts) < 2 or parts[0] != below or ".." in parts:
        return None
    return BASE.joinpath(*parts)


@given(st.lists(PARTS, max_size=6).map("/".join) | st.text(max_size=12).map("images/".__add__))
def test_a_path_is_taken_or_refused_whatever_was_asked_before(stored):
    expected = one_by_one(stored, "images")
    for _ in range(2):
        if expected is None:
            with pytest.raises(DataError, match="expected a relative path"):
                stored_path(stored, base=BASE, below="images", named_in=Path("list"))
        else:
            found = stored_path(stored, base=BASE, below="images", named_in=Path("list"))
            assert found == expected
            assert str(found) == str(expected)


def test_a_slow_disk_is_looked_at_by_many_threads(digits_cache, monkeypatch):
    """Where one look takes long, the rest are made side by side; what is found is the same."""
    quick = load_stream("digits", "auto", cache_dir=digits_cache, protocol="iid", split="auto")
    monkeypatch.setattr("clear_mlflow.data.checking.content._QUICK_SECONDS", 0)
    slow = load_stream("digits", "auto", cache_dir=digits_cache, protocol="iid", split="auto")
    assert slow.digest == quick.digest
    for bucket, same in zip(slow.buckets, quick.buckets, strict=True):
        assert bucket.train.contents == same.train.contents
        assert bucket.test.contents == same.test.contents
