"""Warnings during training are one line, and never end it."""

import re

import numpy as np
import pytest
from closed_streams import run_without_stderr
from one_line_errors import check_error

from clear_mlflow import AccuracyMatrix, Score
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import format_count, safe_repr, show_blank, warn


def test_the_repr_of_an_array_is_one_line():
    assert safe_repr(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    assert safe_repr("two  spaces\n") == r"'two  spaces\n'"
    assert len(safe_repr(np.eye(9), 40)) == 40


@pytest.mark.parametrize(
    "call", [lambda: AccuracyMatrix(np.eye(3), num_instances=np.eye(3)), lambda: Score(np.eye(3))]
)
def test_an_error_that_prints_an_array_is_one_line(call):
    check_error(RecordError, "array([[1., 0., 0.], [0., 1., 0.]", call)


def test_a_warning_is_one_line_on_standard_error(capsys):
    warn("the store\nis \x1b[31maway\x1b[0m\r\n" + "x" * 10_000)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert err == line + "\n"
    assert line.startswith("warning: the store is \N{REPLACEMENT CHARACTER}[31maway")
    assert "\x1b" not in err
    assert len(line) <= len("warning: ") + 2000


def test_a_warning_to_a_closed_stream_is_ignored():
    code = """
import os, sys
from clear_mlflow.core.text import warn
sys.stdin.read()
warn("the store is away")
os.write(1, b"training goes on")
os._exit(0)
"""
    assert run_without_stderr(code) == (b"training goes on", 0)


def test_a_count_fits_its_noun():
    assert [format_count(n, "run") for n in (0, 1, 2, 1200)] == [
        *("0 runs", "1 run", "2 runs", "1,200 runs")
    ]
    assert format_count(1, "class is", "classes are") == "1 class is"
    assert format_count(0.5, "point") == "0.5 points"


@pytest.mark.parametrize("text", ["", "a", " a", "\u0301e", "ä", "7", "-", "é", "字", "\U0001f600"])
def test_a_visible_text_is_shown_as_it_is(text):
    assert show_blank(text) == text


def test_nothing_else_adds_a_plural_s(project):
    pattern = re.compile(r"""(?P<quote>['"])s(?P=quote) (if|\*)""")
    texts = {path: path.read_text() for path in (project / "clear_mlflow").rglob("*.py")}
    assert not [path.name for path, text in texts.items() if pattern.search(text)]
