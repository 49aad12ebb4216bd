"""The GPU benchmark runs small and on a CPU, so that it works the first time on a GPU."""

import importlib
import math
import re
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch

from clear_mlflow.learning.strategies import list_strategies

pytestmark = pytest.mark.slow

SMALL = "--device cpu --size 32 --buckets 2 --train 12 --test 6 --epochs 1 --batch 8 --memory 6"
SMALL += " --fisher 2 --photos 3 --model small_cnn --backbone resnet18 --runs 1"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("gpu")


def read_cells(output, part):
    """Return the cells of each line of a part's tables."""
    (lines,) = re.findall(rf"## {part}\n(.*?)(?=\n## |\Z)", output, re.DOTALL)
    return [row.strip("| ").split(" | ") for row in re.findall(r"^\| .*", lines, re.MULTILINE)]


def test_each_training_is_measured_next_to_a_bare_loop(monkeypatch, gpu, capsys):
    compile_model = mock.Mock(side_effect=lambda model, dynamic: model)
    monkeypatch.setattr(torch, "compile", compile_model)
    gpu.main([*SMALL.split(), "--part", "loop", "--precision", "off", "tf32", "fp16"])
    _, *lines = read_cells(capsys.readouterr().out, "loop")
    assert [line[1:4] for line in lines] == [
        *(["off", "naive", ""], ["tf32", "naive", ""], ["fp16", "naive", ""]),
        *(["off", "naive", "compile"], ["off", "naive", "contiguous"]),
        *(["off", name, ""] for name in ("replay", "ewc", "derpp")),
    ]
    assert lines.pop(1)[4] == "not computed in here"
    for _, _, _, _, bare, loop, ratio, speed, peak in lines:
        assert math.isclose(float(loop) / float(bare), float(ratio), rel_tol=0.5)
        assert float(speed.replace(",", "")) > 0
        assert float(peak) > 0
    assert compile_model.call_count == 3, "the bare loop's model, and the package's for both sizes"


def test_all_other_parts_run_to_their_end(gpu, capsys):
    parts = [part for part in gpu.PARTS if part != "loop"]
    gpu.main([*SMALL.split(), "--part", *parts, "--precision", "off"])
    output = capsys.readouterr().out
    _, *strategies = read_cells(output, "strategies")
    assert [line[0] for line in strategies] == [*list_strategies()]
    _, *resumed = read_cells(output, "resume")
    assert [line[2:] for line in resumed] == [["3 of 3", "0"], ["2 of 2", "0"]] * 4
    (_, allocation, _, *trainings) = read_cells(output, "memory")
    assert allocation[-1] == "yes"
    assert [line[1] for line in trainings] == ["all rows"] * 2
    for part in ("features", "shared"):
        _, *lines = read_cells(output, part)
        assert lines
        assert all(float(line[1]) >= 0 for line in lines)


def test_a_part_that_fails_does_not_end_the_others(monkeypatch, gpu, capsys):
    failing = mock.Mock(side_effect=RuntimeError("no such kernel\nmore lines"))
    monkeypatch.setitem(gpu.PARTS, "resume", failing)
    monkeypatch.setattr(gpu, "list_strategies", lambda: ["naive", "ncm"])
    monkeypatch.setattr(gpu.Photos, "build_vectors", failing)
    with pytest.raises(SystemExit, match="failed: resume, ncm"):
        gpu.main([*SMALL.split(), "--precision", "off", "--part", "resume", "strategies"])
    output = capsys.readouterr().out
    assert "failed: RuntimeError: no such kernel\n" in output
    _, naive, ncm = read_cells(output, "strategies")
    assert (naive[0], ncm[:2]) == ("naive", ["ncm", "RuntimeError: no such kernel"])


def test_no_part_begins_after_the_time_is_over(gpu, capsys):
    gpu.main([*SMALL.split(), "--seconds", "0"])
    assert capsys.readouterr().out.count("no time is left") == len(gpu.PARTS)


def test_waits_are_counted_by_place(gpu):
    with gpu.count_waits("cpu") as waits:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert waits.total() == 1
    assert re.fullmatch(r"test_gpu_benchmark.py:\d+", *waits)
