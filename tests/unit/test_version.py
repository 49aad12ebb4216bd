"""Versions of the software that a run computes with."""

import sys
from types import ModuleType

import pytest
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.version import import_custom, list_software_versions


def test_a_package_with_another_distribution_name_has_its_own_version(monkeypatch):
    package = ModuleType("tensorflow")
    setattr(package, "__version__", "2.99.0")  # noqa: B010  (unknown to type checkers)
    monkeypatch.setitem(sys.modules, "tensorflow", package)
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert {"tensorflow 2.99.0", "jax unknown"} <= set(list_software_versions().split(", "))


@pytest.mark.parametrize("value", ["", "0", "1", "'no GPU\\nhere'"])
@pytest.mark.parametrize("option", ["dataset", "model", "strategy"])
def test_a_custom_module_that_exits_is_an_error_in_one_line(tmp_path, monkeypatch, option, value):
    """With the code 0, the process would end as if it had succeeded."""
    (tmp_path / "exiting.py").write_text(f"import sys\nsys.exit({value})\n")
    monkeypatch.chdir(tmp_path)
    message = f"{option} exiting:make cannot be loaded (SystemExit"
    check_error(ConfigError, message, import_custom, option, "exiting:make", "function")
