"""Freed memory is kept: a large tensor's room is there again without new page faults."""

import subprocess
import sys

FAULTS = """
import resource, sys
import torch
from clear_mlflow.process.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(mode):
    command = [sys.executable, "-c", FAULTS, mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_of_freed_tensors_is_reused():
    """Ten tensors of 64 MiB one after another fault their pages in once, not ten times."""
    assert faults("keep") < faults("default") / 10
