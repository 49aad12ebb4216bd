"""Warnings during training are one line, and never end it."""

from closed_streams import run_without_stderr

from clear_mlflow.core.text import warn


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
