"""What a type checker says to a caller of train and train_ensemble."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_callers_types_are_checked(project, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import clear_mlflow\n"
        "clear_mlflow.train(strategy='replay', epochs=5, memory=0.1, compile=True)\n"
        "clear_mlflow.train_ensemble(seeds=[0, 1], features='pixels')\n"
        "clear_mlflow.train(epoch=5)\n"
        "clear_mlflow.train(optimizer='sdg')\n"
    )
    # Check only this package: no other package affects what these calls accept.
    options = ["--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", "--config-file=", *options, str(program)]
    done = subprocess.run(command, cwd=project, stdout=subprocess.PIPE, text=True, check=False)
    error_lines = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    assert error_lines == ["4", "5"], done.stdout


def test_an_editor_resolves_the_package_outside_of_the_checkout(tmp_path):
    """The package is importable by path; type checkers do not run import hooks."""
    look = "from importlib.machinery import PathFinder; assert PathFinder.find_spec('clear_mlflow')"
    subprocess.run([sys.executable, "-c", look], cwd=tmp_path, check=True, timeout=60)
