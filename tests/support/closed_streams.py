"""Runs a program whose standard error is closed, as that of a terminal that is gone."""

import sys
from subprocess import PIPE, Popen


def run_without_stderr(code: str) -> tuple[bytes, int]:
    process = Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    process.stderr.close()
    output, _ = process.communicate(timeout=120)
    return output, process.returncode
