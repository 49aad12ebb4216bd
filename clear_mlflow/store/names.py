"""Names of the tags, metrics and artifacts of our runs, described in docs/tracking.md."""

import re

KIND_TAG = "clear_mlflow.kind"
KIND_TRAIN = "train"
KIND_EVALUATE = "evaluate"
KIND_COMPARE = "compare"
KIND_ENSEMBLE = "ensemble"
KIND_RESUME = "resume"
KIND_SWEEP = "sweep"
# Runs of these kinds refer to other runs and lack rows: searches for rows skip them.
WITHOUT_ROWS = (KIND_EVALUATE, KIND_COMPARE, KIND_ENSEMBLE, KIND_RESUME, KIND_SWEEP)

ROWS_TAG = "clear_mlflow.rows"
SCORED_TAG = "mlflow.clear_mlflow.scored"
MATRIX_TAG = "mlflow.clear_mlflow.matrix"
METRICS_TAG = "clear_mlflow.metrics"
VERSIONS_TAG = "mlflow.clear_mlflow.metric_versions"
NOTE_TAG = "mlflow.clear_mlflow.note"
ERROR_TAG = "clear_mlflow.error"
DIVERGED_TAG = "diverged"
PREDICTIONS_TAG = "clear_mlflow.predictions"
ANYTIME_TAG = "clear_mlflow.anytime"
PREQUENTIAL_TAG = "clear_mlflow.prequential"
PARAMETERS_TAG = "clear_mlflow.parameters"
PROCESSES_TAG = "clear_mlflow.processes"
RESUMED_TAG = "clear_mlflow.resumed_run"
STATE_PROBLEM_TAG = "clear_mlflow.state_problem"
RESUMES_TAG = "clear_mlflow.resumed"
PROCESS_TAG = "mlflow.clear_mlflow.process"
HOLDER_TAG = "mlflow.clear_mlflow.holder"
VERSION_TAG = "clear_mlflow.version"
SOFTWARE_TAG = "clear_mlflow.software"
COMMIT_TAG = "clear_mlflow.commit"
MODEL_ROW_TAG = "clear_mlflow.row"
MEMBERS_TAG = "clear_mlflow.members"

SWEEP_TAG = "clear_mlflow.sweep"
SWEEP_COMPARISON_TAG = "mlflow.clear_mlflow.sweep_comparison"
SWEEP_RUN_TAG = "clear_mlflow.sweep_run"
SWEEP_GOES_ON_TAG = "clear_mlflow.sweep_goes_on"

# What the parameters of a run were chosen on: name and digest of the stream, how many combinations
# were tried, and the sweep that tried them. Runs that differ in them belong to different groups.
TUNED_ON, TUNED_ON_DIGEST, TUNED_DRAWS, TUNED_IN = (
    "tuned_on",
    "tuned_on_digest",
    "draws",
    "tuned_in",
)
TUNED_TAGS = (TUNED_ON, TUNED_ON_DIGEST, TUNED_DRAWS, TUNED_IN)
STUDY_TAU = "study/kendall_tau"

COMPARED_TAG = "clear_mlflow.compared_runs"
COMPARED_COUNT_TAG = "clear_mlflow.compared_count"

LEADER_TAG = "leader"

IMPORTED_FROM_TAG = "clear_mlflow.imported_from"
IMPORT_FORMAT_TAG = "clear_mlflow.import_format"
IMPORTED_DIGEST_TAG = "clear_mlflow.imported_sha256"

COPIED_FROM_TAG = "clear_mlflow.copied_from"
COPIED_STATE_TAG = "mlflow.clear_mlflow.copied_state"

# MLflow's tag for the description of a run.
MLFLOW_NOTE = "mlflow.note.content"

LEADER_METRICS = "leader/"

# Metrics of single buckets, with any score: test_rmse/bucket_01.
_BUCKET_SERIES = re.compile(r"test_[A-Za-z][A-Za-z0-9_-]*/bucket_")

CURVE_LOSS = "train/loss"
CURVE_LR = "train/lr"
CURVE_SPEED = "train/images_per_second"
CURVE = (CURVE_LOSS, CURVE_LR, CURVE_SPEED)

MATRIX_FOLDER = "accuracy_matrix"
MATRIX_JSON = f"{MATRIX_FOLDER}/matrix.json"
MATRIX_CSV = f"{MATRIX_FOLDER}/matrix.csv"
HEATMAP_PNG = f"{MATRIX_FOLDER}/heatmap.png"
CONFIG_JSON = "config.json"
REPORT_HTML = "report.html"
MODELS_FOLDER = "models"
STATE_FOLDER = "training_state"

SWEEP_GRID = "sweep.yaml"
SWEEP_RUNS_JSON = "sweep_runs.json"
STUDY_FILE = "study.yaml"
STUDY_JSON = "study.json"

COMPARISON_PAGE = "comparison.html"
LEADERBOARD_TABLE = "leaderboard.json"
LEADERBOARD_CSV = "leaderboard.csv"
LEADERBOARD_TEX = "leaderboard.tex"
COMPARED_JSON = "compared_runs.json"
FIGURES_FOLDER = "figures"
MORE_SEEDS = "more_seeds.yaml"
CHOSEN = "chosen.yaml"
BASELINES = "baselines.yaml"

IMAGE_PER_ROW = "accuracy_matrix_by_row"
IMAGE_FINAL = "accuracy_matrix"


def is_bucket_series(metric: str) -> bool:
    """Return True if a metric belongs to one bucket, like "test_rmse/bucket_01"."""
    return _BUCKET_SERIES.match(metric) is not None


def format_model_file_name(row: int) -> str:
    """Return the file name of the weights after *row* buckets: "after_004.safetensors"."""
    return f"after_{row:03d}.safetensors"


def parse_model_file_name(name: str) -> int | None:
    """Return the trained buckets in a weights file's name, else None."""
    match = re.fullmatch(r"after_([0-9]{3,9})\.safetensors", name)
    return int(match[1]) if match and format_model_file_name(int(match[1])) == name else None
