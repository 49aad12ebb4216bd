"""The GPU benchmark runs small and on a CPU, so that it works the first time on a GPU."""

import importlib
import math
import re
from itertools import product
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow

SMALL = "--device cpu --size 32 --buckets 2 --train 12 --test 6 --epochs 1 --batch 8 --memory 6"


def test_each_strategy_is_measured_next_to_a_bare_loop(monkeypatch, capsys):
    """One line with the seconds of both. An unknown precision is reported."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    gpu = importlib.import_module("gpu")
    small = [*SMALL.split(), "--fisher", "2"]
    gpu.main([*small, "--precision", "off", "tf32"])
    gpu.main([*small, "--precision", "fp16", "--strategy", "ewc"])  # which a CPU is slow at
    output = capsys.readouterr().out
    line = r"\| 32 \| (off|fp16) \| (\w+) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|"
    lines = re.findall(line, output)
    assert [*map(itemgetter(0, 1), lines)] == [*product(["off"], gpu.STRATEGIES), ("fp16", "ewc")]
    for _, _, bare, own_seconds, ratio, speed in lines:
        assert math.isclose(float(own_seconds) / float(bare), float(ratio), rel_tol=0.5)
        assert float(speed.replace(",", "")) > 0
    assert output.count("| tf32 |") == output.count("not computed in here") == 4
    peaks = [SimpleNamespace(peak_bytes=gigabytes * 2**30) for gigabytes in (1, 3, 2)]
    assert gpu.format_peak(peaks) == "3.0", "that of the last bucket"
