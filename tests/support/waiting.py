"""Waiting for programs, and for what they store."""

import time

LONG = 240  # seconds: a bound against hangs, not a measurement


def wait_until(condition, process=None, seconds=LONG):
    """Wait until a condition is true, and return its result. The process must not end before."""
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, f"it did not happen within {seconds} s"
        time.sleep(0.05)
    return result


def finish(process, seconds=LONG):
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output


def finish_well(process, seconds=LONG):
    code, output = finish(process, seconds)
    assert code == 0, output
    return output
