"""Names of tags and artifacts in stored runs never change, so that old runs stay readable."""

from clear_mlflow.core.anytime import ANYTIME_FOLDER, format_anytime_file_name
from clear_mlflow.core.record import ROWS_FOLDER, format_row_file_name
from clear_mlflow.store import names

# Spelled in two parts each, so that a search and replace of a module name does not change them.
PREFIX = "clear_" + "mlflow."
# The constant of each is its name in capitals.
TAGS = [
    *("kind", "rows", "scored", "matrix", "metrics", "note", "error", "diverged", "predictions"),
    *("anytime", "processes", "state_problem", "process", "holder", "version", "software"),
    *("commit", "members", "sweep", "sweep_comparison", "sweep_run", "sweep_goes_on"),
    *("compared_count", "leader", "imported_from", "import_format", "copied_from"),
    *("copied_state", "parameters", "prequential"),
]


def test_names_of_stored_tags_do_not_change():
    tag_names = {key: text for key, text in vars(names).items() if key.endswith("_TAG")}
    hidden = {key for key, text in tag_names.items() if text.startswith("mlflow.")}
    tag_names = {key: text.removeprefix("mlflow.") for key, text in tag_names.items()}
    assert {key: text.removeprefix(PREFIX) for key, text in tag_names.items()} == {
        **{f"{tag.upper()}_TAG": tag for tag in TAGS},
        "VERSIONS_TAG": "metric_versions",
        "RESUMED_TAG": "resumed_run",
        "RESUMES_TAG": "resumed",
        "MODEL_ROW_TAG": "row",
        "COMPARED_TAG": "compared_runs",
        "IMPORTED_DIGEST_TAG": "imported_sha256",
    }
    foreign = {key for key, text in tag_names.items() if not text.startswith(PREFIX)}
    assert foreign == {"DIVERGED_TAG", "LEADER_TAG"}
    assert hidden == {
        *("SCORED_TAG", "MATRIX_TAG", "VERSIONS_TAG", "NOTE_TAG"),
        *("SWEEP_COMPARISON_TAG", "PROCESS_TAG", "HOLDER_TAG", "COPIED_STATE_TAG"),
    }


def test_names_of_stored_artifacts_do_not_change():
    assert f"{ROWS_FOLDER}/{format_row_file_name(3)}" == "accuracy_matrix/rows/row_003.json"
    test = f"{ANYTIME_FOLDER}/{format_anytime_file_name(3, 12)}"
    assert test == "anytime_accuracy/bucket_003_test_0012.json"
    assert names.CONFIG_JSON == "config.json"
    assert names.MATRIX_JSON == "accuracy_matrix/matrix.json"
    assert names.REPORT_HTML == "report.html"
    assert names.STATE_FOLDER == "training_state"
    model = f"{names.MODELS_FOLDER}/{names.format_model_file_name(4)}"
    assert model == "models/after_004.safetensors"
