"""Versions of the software that a run computes with."""

import sys
from types import ModuleType

from clear_mlflow.core.version import list_software_versions


def test_a_package_with_another_distribution_name_has_its_own_version(monkeypatch):
    package = ModuleType("tensorflow")
    setattr(package, "__version__", "2.99.0")  # noqa: B010  (unknown to type checkers)
    monkeypatch.setitem(sys.modules, "tensorflow", package)
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert {"tensorflow 2.99.0", "jax unknown"} <= set(list_software_versions().split(", "))
