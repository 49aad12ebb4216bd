"""Warnings during training are one line, and never end it."""

import subprocess
import sys

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
    code = (
        "import os, sys\n"
        "from clear_mlflow.core.text import warn\n"
        "sys.stdin.read()\n"
        "warn('the store is away')\n"
        "os.write(1, b'training goes on')\n"
        "os._exit(0)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stderr.close()
    output, _ = process.communicate(timeout=120)
    assert (output, process.returncode) == (b"training goes on", 0)
