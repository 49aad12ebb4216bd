"""``clear-mlflow compare`` on the runs of a test's experiment, and what it stores."""

import json

from click.testing import CliRunner
from stored_runs import artifact_folder, only_run

from clear_mlflow.cli import main
from clear_mlflow.store import names


def load_comparison(store, experiment_id):
    comparison = only_run(store, experiment_id, f"tags.`{names.KIND_TAG}` = 'compare'")
    return comparison, artifact_folder(comparison)


def compare(store, experiment_id, *arguments):
    """Compare the test's runs. Return the printed text on one line, and what is stored as JSON."""
    options = ["compare", "--runs", "test", *arguments]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    _, folder = load_comparison(store, experiment_id)
    return " ".join(result.output.split()), json.loads((folder / names.COMPARED_JSON).read_text())
