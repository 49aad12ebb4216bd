"""Modules that imports load."""

import subprocess
import sys

import pytest

PURE = [
    *("core.matrix", "metrics", "tracking.loop_rows", "metrics._user"),
    *("learning.parameters.values", "report.page.within_bucket", "core.record", "statistics"),
    *("report.terminal_tables", "report.markdown", "report.exports", "report.pictures"),
    *("importers", "comparison", "comparison.figures", "comparison.page", "comparison.tables"),
    *("comparison.terminal", "data.features", "cli.data"),
    "learning.parameters.strategy_names",
]


def loaded_after(code: str) -> set[str]:
    listing_code = f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.check_output([sys.executable, "-c", listing_code], text=True).split())


@pytest.mark.slow
def test_pure_packages_import_neither_torch_nor_mlflow():
    """Scoring rows needs only numpy, and matplotlib only to draw."""
    loaded = loaded_after("import clear_mlflow." + ", clear_mlflow.".join(PURE))
    assert "numpy" in loaded
    assert loaded.isdisjoint(["torch", "torchvision", "mlflow", "matplotlib"])


@pytest.mark.slow
def test_the_command_line_loads_before_mlflow_and_torch():
    """So that signals are handled from the start, and --help is fast."""
    code = "import clear_mlflow.data.decode; from clear_mlflow.cli import main; dict(main.commands)"
    loaded = loaded_after(code)
    heavy = ["torch", "torchvision", "mlflow", "matplotlib", "scipy", "sklearn", "ray"]
    assert loaded.isdisjoint(heavy)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["statistics", "comparison", "sweeps"])
def test_reading_and_comparing_runs_load_no_statistics_of_scipy(package):
    """They would take a fifth of the time of ``show`` and of ``compare``."""
    code = f"import clear_mlflow.{package}, sys; sys.exit('scipy.stats' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_untrusted_files_needs_only_numpy():
    loaded = loaded_after("import clear_mlflow.core.untrusted")
    assert loaded.isdisjoint(["mlflow", "torch", "PIL", "scipy", "pandas"])


@pytest.mark.slow
def test_drawing_uses_no_pyplot():
    """A thread must not change the user's figures."""
    code = (
        "import sys; from clear_mlflow import AccuracyMatrix\n"
        "from clear_mlflow.report.pictures import draw_heatmap_png\n"
        "draw_heatmap_png(AccuracyMatrix([[0.5]]), 'x')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    assert loaded_after(code).isdisjoint(["torch", "mlflow"])
