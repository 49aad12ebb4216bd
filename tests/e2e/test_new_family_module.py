"""A family of metrics that is one new module: the tests that there are take it without an edit."""

import os
import re
import shutil
from pathlib import Path

from forked import OTHER_COPY, run_python

ROOT = Path(__file__).parents[2]

# Tests that go through all metrics that are registered.
GENERIC = (
    "test_metrics_registry.py",
    "test_metrics_against_loops.py",
    "test_report_files.py",
    "test_report_pictures.py",
    "test_comparison.py",
    "test_comparison_page.py",
    "test_adapters_torchmetrics.py",
    "test_statistics_paired.py::test_the_bootstrap_is_its_slow_twin",
)


def test_a_new_module_passes_the_tests_there_are(tmp_path):
    """In a copy: one file and what the generator writes from it, and no test needs an edit."""
    for part in ("clear_mlflow", "docs", "examples", "tests", "tools"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("MLproject", "pyproject.toml"):
        shutil.copy(ROOT / part, tmp_path / part)
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r"^```python\n(# clear_mlflow/metrics/plasticity.*?)^```", guide, re.S | re.M
    )
    (tmp_path / "clear_mlflow" / "metrics" / "plasticity.py").write_text(code)
    found = {path.name: path for path in (tmp_path / "tests").rglob("test_*.py")}
    tests = [
        f"{found[name]}{separator}{test}"
        for name, separator, test in (generic.partition("::") for generic in GENERIC)
    ]

    def python(code, *arguments):
        return run_python(
            *("-c", OTHER_COPY + code, *arguments),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            timeout=600,
        )

    done = python(
        "import runpy; sys.path.insert(0, 'tools'); "
        "runpy.run_path('tools/generate.py', run_name='__main__')"
    )
    written = ["wrote docs/metrics.md"]
    assert done.stdout.splitlines() == written, done.stderr
    assert "| `plasticity/late_learning` |" in (tmp_path / "docs" / "metrics.md").read_text()
    # Pictures of confusions are of classes, and none of them is of a metric.
    options = ("-q", "-x", "-n0", "-p", "no:cacheprovider", "-k", "not confusion")
    done = python("import pytest; sys.exit(pytest.main())", *options, *tests)
    assert done.returncode == 0, done.stdout + done.stderr
