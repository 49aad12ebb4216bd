"""Custom metrics: names, types and errors."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from courses import explain
from one_line_errors import check_error

from clear_mlflow import AccuracyMatrix
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.metrics import METRICS, load_custom_metrics, summarize

MATRIX = AccuracyMatrix([[0.8, 0.6], [0.7, 0.9]])
MODULE = """
import numpy as np
from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics import Metric

def worst(matrix): return matrix.values.min()
def answers(predictions, class_index=0): return float(predictions.k)
def whole(matrix): return 1
def undefined(matrix): raise UndefinedMetricError("needs more")
def failing(matrix): raise KeyError("no\\nsuch")
def exiting(matrix): raise SystemExit(0)
def gives_none(matrix): return None
def gives_nan(matrix): return np.nan
def gives_text(matrix): return "0.5"
def gives_array(matrix): return np.array([0.5])
def two(a, b): return 0.5
def nothing(): return 0.5
other = lambda m: 0.5
number = 3
named = Metric(name="mylab/worst", function=worst, higher_is_better=False, version=4)
rival = Metric(name="mylab/worst", function=whole)
of_answers = Metric(name="mylab/answers", function=answers, needs="predictions")
taken = Metric(name="renate/forgetting", function=worst)
squatting = Metric(name="calibration/mine", function=worst)
strange = Metric(name="../x", function=worst)
METRICS = (named, Metric(name="mylab/whole", function=whole), of_answers)
twice = [named, rival]
mixed = [named, worst]
empty = ()

class Group:
    @staticmethod
    def inside(matrix): return 0.25
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of metrics in the working folder, which console scripts do not import from."""
    (tmp_path / "lab_module.py").write_text(MODULE)
    (tmp_path / "lab_broken.py").write_text("import sys\nsys.exit('not\\nnow')\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("lab")
def test_functions_are_named_by_package_and_function() -> None:
    own = load_custom_metrics(
        [f"lab_module:{name}" for name in ("worst", "answers", "whole", "Group.inside", "worst")]
    )
    assert {m.name: m.needs for m in own} == {
        "lab_module/worst": "matrix",
        "lab_module/answers": "predictions",
        "lab_module/whole": "matrix",
        "lab_module/inside": "matrix",
    }
    assert summarize(MATRIX, "iid", [m for m in own if m.needs == "matrix"]) == {
        "lab_module/worst": 0.6,
        "lab_module/whole": 1.0,
        "lab_module/inside": 0.25,
    }


def test_the_working_folder_precedes_installed_packages(tmp_path, monkeypatch) -> None:
    """As under ``python -m``."""
    for folder, value in (("installed", 0.1), ("here", 0.2)):
        package = tmp_path / folder / "lab_examples"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "own.py").write_text(f"def value(matrix):\n    return {value}\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.chdir(tmp_path / "here")
    before = list(sys.path)
    (metric,) = load_custom_metrics(["lab_examples.own:value"])
    assert metric.function(MATRIX) == 0.2
    assert sys.path == before


@pytest.mark.usefixtures("lab")
def test_custom_metrics_declare_family_direction_and_version() -> None:
    own = load_custom_metrics(["lab_module:METRICS"])
    assert [m.name for m in own] == ["mylab/worst", "mylab/whole", "mylab/answers"]
    assert (own[0].higher_is_better, own[0].version) == (False, 4)
    copied = pickle.loads(pickle.dumps(own))
    assert summarize(MATRIX, metrics=copied[:2]) == {"mylab/worst": 0.6, "mylab/whole": 1.0}


@pytest.mark.usefixtures("lab")
def test_errors_of_a_function_name_it() -> None:
    wrong = (
        "undefined",
        "failing",
        "exiting",
        "gives_none",
        "gives_nan",
        "gives_text",
        "gives_array",
    )
    own = load_custom_metrics([f"lab_module:{name}" for name in (*wrong, "worst")])
    assert summarize(MATRIX, "iid", (*METRICS, *own)).keys() > {"lab_module/worst"}
    reasons = explain(MATRIX, "iid", own)
    assert reasons == {
        "lab_module/undefined": "needs more",
        "lab_module/failing": "lab_module:failing raised KeyError: 'no\\nsuch'",
        "lab_module/exiting": "lab_module:exiting raised SystemExit: 0",
        "lab_module/gives_none": reasons["lab_module/gives_none"],
        "lab_module/gives_nan": "lab_module:gives_nan returned nan; expected a finite number",
        "lab_module/gives_text": "lab_module:gives_text returned '0.5'; expected a number",
        "lab_module/gives_array": reasons["lab_module/gives_array"],
    }
    assert reasons["lab_module/gives_none"].startswith("lab_module:gives_none raised TypeError")
    assert reasons["lab_module/gives_array"].startswith("lab_module:gives_array ")
    assert not any("\n" in reason for reason in reasons.values())


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("lab_module", "expected package.module:function"),
        ("lab module:worst", "expected package.module:function"),
        ("../lab_module:worst", "expected package.module:function"),
        (":worst", "expected package.module:function"),
        ("lab_module:", "expected package.module:function"),
        ("no_such_module_here:x", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("lab_module:no_such", "has no attribute 'no_such'"),
        ("lab_broken:x", "cannot be loaded: SystemExit: not"),
        ("lab_module:two", "takes a, b; expected a function of one argument"),
        ("lab_module:nothing", "takes no argument; expected"),
        ("lab_module:other", "takes m; expected"),
        ("lab_module:number", "is 3; expected"),
        ("lab_module:Group", "expected a function of one argument"),
        ("lab_module:taken", "the family 'renate' is taken"),
        ("lab_module:squatting", "the family 'calibration' is taken"),
        ("lab_module:strange", "MLflow refuses the metric name"),
        ("lab_module:twice", "two metrics are named 'mylab/worst'"),
        ("lab_module:mixed", "or a sequence of metrics"),
        ("lab_module:empty", "is (); expected"),
        ("lab_module:named,lab_module:rival", "two metrics are named 'mylab/worst'"),
    ],
)
def test_an_invalid_metric_is_rejected_in_one_line(reference: str, message: str) -> None:
    check_error(ConfigError, message, load_custom_metrics, reference.split(","))


def test_a_function_may_have_optional_arguments(tmp_path, monkeypatch):
    function = "def best(matrix, *args, scale=1.0, **options): return scale * matrix.values.max()\n"
    (tmp_path / "lab_optional.py").write_text(function)
    monkeypatch.chdir(tmp_path)
    (metric,) = load_custom_metrics(["lab_optional:best"])
    assert metric.function(MATRIX) == 0.9
