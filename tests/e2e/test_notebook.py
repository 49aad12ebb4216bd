"""The example notebook, executed by a kernel as Jupyter does it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def outputs(cell, output_type):
    return [out.data[output_type] for out in cell.outputs if output_type in out.get("data", {})]


def test_the_example_notebook_runs(tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    trained, displayed, wrong, compared = code[2:]
    live, result = outputs(trained, "text/html")
    assert "10 of 10 buckets" in live
    assert live.count("after ") == result.count("after ") == 10
    assert "renate/forgetting" in result
    assert outputs(displayed, "image/png")
    (error,) = (out for out in wrong.outputs if out.output_type == "error")
    assert error.ename == "ConfigError"
    assert len(error.traceback) == 1
    assert error.traceback[0].startswith("error: memory is '-5'")
    assert "&lt;h1&gt;Comparison&lt;/h1&gt;" in outputs(compared, "text/html")[-1]
