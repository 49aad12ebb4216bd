"""Untrusted files are read up to a limit, and only JSON that can be written again is accepted."""

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_line_errors import check_error

import clear_mlflow
from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import RecordError

PACKAGE = Path(clear_mlflow.__file__).parent
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\U0001f600"), inner),
    max_leaves=20,
)


@given(documents)
def test_every_document_is_read_as_json_reads_it(document):
    for escaped in (True, False):
        text = json.dumps(document, ensure_ascii=escaped)
        assert untrusted.parse_json(text, 10**6) == document
        assert untrusted.parse_json(text.encode(), 10**6) == document


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 33 + "]" * 33, "nested too deeply"),
        ('{"a": 1, "b": {"a": 1, "c": 2, "a": 3}}', "has the field 'a' twice"),
        ("[NaN]", "contains NaN"),
        ("[-Infinity]", "contains -Infinity"),
        ("[1e999]", "too large to read"),
        ("[" + "9" * 5000 + "]", "too large to read"),
        (r'{"\ud800": 1}', r"contains '\ud800', which is not a Unicode text"),
        ('["\ud800"]', "which is not a Unicode text"),
        ("{", "is not JSON"),
        (b"\xff", "is not a UTF-8 text"),
        (" " * 101, "larger than 100 bytes"),
        ('"' + "é" * 60 + '"', "larger than 100 bytes"),
        (b" " * 101, "larger than 100 bytes"),
    ],
)
def test_documents_that_cannot_be_written_again_are_rejected(text, words):
    largest = 10**6 if "100 bytes" not in words else 100
    check_error(RecordError, words, untrusted.parse_json, text, largest)


def test_the_depth_limit_is_exact():
    """An escaped backslash before a u is no surrogate."""
    deep = "[" * untrusted.MAX_JSON_LEVELS + "]" * untrusted.MAX_JSON_LEVELS
    assert untrusted.parse_json(deep, 10**6)
    assert untrusted.parse_json(r'"\\ud800"', 100) == r"\ud800"


def test_no_more_of_a_file_is_read_than_its_limit(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    assert untrusted.read_bytes(file, 100) == bytes(100)
    check_error(RecordError, "larger than 99 bytes", untrusted.read_bytes, file, 99)


@pytest.mark.parametrize("type_name", ["pipe", "socket", "device"])
def test_only_regular_files_are_opened(tmp_path, type_name):
    """Others may never end, or never begin."""
    file = Path("/dev/zero") if type_name == "device" else tmp_path / "file"
    if type_name == "pipe":
        os.mkfifo(file)
    elif type_name == "socket":
        os.mknod(file, 0o600 | stat.S_IFSOCK)
    for read in (lambda: untrusted.read_bytes(file, 2**20), lambda: untrusted.hash_file(file)):
        with pytest.raises((RecordError, OSError), match=r"not a regular file|No such device"):
            read()


@pytest.mark.slow
def test_deep_nesting_is_handled_only_by_parsers():
    handling = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "RecursionError"
    }
    assert handling == {"core/untrusted.py", "importers/_base.py", "sweeps/grid.py"}


_TYPES_IN_THREADS = """
import sys
from threading import Barrier, Thread
import msgspec
from clear_mlflow.core.untrusted import convert

sys.setswitchinterval(1e-6)
for _ in range(50):
    inner = msgspec.defstruct("Inner", [(f"field_{i}", int | None, None) for i in range(10)])
    outer = msgspec.defstruct("Outer", [("one", inner), ("more", list[inner])])
    together = Barrier(8)

    def read():
        together.wait()
        convert({"one": {"field_1": 3}, "more": [{}]}, outer)

    threads = [Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_type_is_first_used_by_several_threads():
    """Msgspec alone would crash."""
    done = subprocess.run([sys.executable, "-c", _TYPES_IN_THREADS], check=False)
    assert done.returncode == 0
