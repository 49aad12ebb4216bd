"""What a training process is given: memory that it keeps, and threads that wait for a moment."""

import os
import subprocess
import sys

import pytest

from clear_mlflow.process.parent import child_environment

FAULTS = """
import resource
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        b"x" * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(environment):
    command = [sys.executable, "-c", FAULTS]
    return int(subprocess.check_output(command, env=environment, text=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the variables are glibc's")
def test_memory_that_is_freed_is_reused():
    """Ten times 64 MiB, one after another, fault their pages in once and not ten times."""
    assert faults(child_environment(os.environ)) < faults(dict(os.environ)) / 10


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MALLOC_MMAP_MAX_"])
def test_what_a_user_says_stays(name):
    """Of threads by either name."""
    given = child_environment({name: "7"})
    assert given[name] == "7"
    if name.startswith("MALLOC"):
        assert given["GOMP_SPINCOUNT"] == "3000"
    else:
        assert len({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(given)) == 1
