"""The JSON output of commands follows docs/json.md."""

import json
import re
from pathlib import Path

import pytest
from commands import invoke
from forked import run_forked
from stored_runs import stored_run

import clear_mlflow

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
SHAPES = {
    name: json.loads(block)
    for name, block in re.findall(r"## `clear-mlflow (\w+).*?```json\n(.*?)```", PAGE, re.S)
}
KINDS = {"text": str, "boolean": bool, "number": (int, float)}
# Null where it is not known, not defined, or not asked for, as the page says below the blocks.
MAY_BE_NULL = {
    "study",
    "across",
    "num_instances",
    "initial",
    "interval",
    "compared",
    "cost[]",
    "nearest",
}


def misfits(value, shape, where=""):
    """Return where a document differs from the page's description."""
    name = where.rpartition(".")[2]
    if isinstance(shape, dict) and isinstance(value, dict):
        if "NAME" in shape:
            shapes = {key: shape.get(key, shape["NAME"]) for key in value}
            return [m for k, v in value.items() for m in misfits(v, shapes[k], f"{where}.{k}")]
        lacks = shape.keys() - value.keys()
        wrong = [f"{where} lacks {key}" for key in lacks]
        wrong += [f"{where}.{key} is not on the page" for key in value.keys() - shape.keys()]
        common_keys = value.keys() & shape.keys()
        return wrong + [m for k in common_keys for m in misfits(value[k], shape[k], f"{where}.{k}")]
    if isinstance(shape, list) and isinstance(value, list):
        return [m for v in value for m in misfits(v, shape[0], f"{where}[]")]
    if value is None and (name in MAY_BE_NULL or str(shape).endswith(" or null")):
        return []
    types = KINDS.get(str(shape).removesuffix(" or null"), ())
    is_kind = isinstance(value, types) and (types is bool or not isinstance(value, bool))
    return [] if is_kind else [f"{where} is {value!r}, not {shape}"]


def run_for_json(*arguments, code=0):
    result = invoke(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def runs(trained_runs):
    keys = [("naive", 0), ("replay", 2), ("naive", 1), ("replay", 0), ("ncm", 0)]
    return [trained_runs[key].info.run_id for key in keys]


def test_a_run(runs):
    for run_id in runs[:2]:
        document = run_for_json("show", run_id)
        assert misfits(document, SHAPES["show"]) == []
        run = clear_mlflow.load(run_id)
        assert document == json.loads(json.dumps(run.to_dict()))
        for name, metric in run.metrics.items():
            assert document["metrics"][name]["value"] == metric.value
    undefined = document["metrics"]["renate/forgetting"]
    assert undefined["value"] is None
    assert undefined["reason"].startswith("needs a past bucket")


@pytest.mark.slow
def test_scoring_comparing_importing(runs, tmp_path):
    document = run_for_json("evaluate", "--runs", ",".join(runs), "--metrics", "tic")
    assert misfits(document, SHAPES["evaluate"]) == []
    assert [run["action"] for run in document["runs"]] == ["scored"] * len(runs)
    (partial,) = [run for run in document["runs"] if run["run_id"] == runs[1]]
    assert partial["metrics"]["renate/forgetting"] is None
    assert partial["reasons"]["renate/forgetting"].startswith("needs a past bucket")
    document = run_for_json("evaluate", "--runs", f"{runs[0]},none_such", code=2)
    assert [run["action"] for run in document["runs"]] == ["unchanged", "failed"]

    document = run_for_json("compare", *runs, "--group-by", "seed")
    assert misfits(document, SHAPES["compare"]) == []
    assert {m["run_id"] for group in document["groups"] for m in group["runs"]} == set(runs)

    assert misfits(run_for_json("identify", runs[0], "0.5", "-777"), SHAPES["identify"]) == []

    results = tmp_path / "results"
    results.mkdir()
    Path(results, "good.csv").write_text("0.9\n0.8,0.7\n")
    Path(results, "bad.csv").write_text("0.9,x\n")
    document = run_for_json("import", str(results), code=2)
    assert misfits(document, SHAPES["import"]) == []
    outcomes = {file["file"]: file["outcome"] for file in document["files"]}
    assert outcomes == {"bad.csv": "failed", "good.csv": "imported"}


def test_output_printed_by_a_metric_does_not_mix_with_json(
    store, experiment_id, tmp_path, monkeypatch
):
    (tmp_path / "loud.py").write_text(
        "import os\ndef half(matrix):\n    print('loud')\n    os.system('echo louder')\n"
        "    return 0.5\n"
    )
    monkeypatch.chdir(tmp_path)
    runs = [stored_run(store, experiment_id).info.run_id for _ in range(2)]
    result = run_forked("evaluate", runs[0], "--metrics", "loud:half", "--json")
    assert json.loads(result.stdout)["runs"][0]["metrics"]["loud/half"] == 0.5
    assert {"loud", "louder"} <= set(result.stderr.splitlines())
    metric = run_for_json("show", runs[0])["metrics"]["loud/half"]
    assert (metric["value"], metric["series"]["1"]) == (0.5, 0.5)
    assert clear_mlflow.load(runs[0]).metrics["loud/half"].value == 0.5
    assert "loud/half" not in run_for_json("show", runs[1])["metrics"]


def test_a_sweep(store, tmp_path, monkeypatch):
    (tmp_path / "lab_beside.py").write_text(
        "from clear_mlflow.learning.strategies import Strategy\nclass Mine(Strategy): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "fixed: {features: pixels, strategy: 'lab_beside:Mine'}\ngrid: {seed: [0, 1]}\n"
    )
    document = run_for_json("sweep", "--grid", str(grid), "--dry-run")
    assert misfits(document["runs"], SHAPES["sweep"]["runs"]) == []
    assert [run["state"] for run in document["runs"]] == ["not done", "not done"]
