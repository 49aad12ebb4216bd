"""Names of the tags and artifacts that clear_mlflow writes into an MLflow run."""

import re

from clear_mlflow.core.predictions import PREDICTIONS_FOLDER

# Kind of the run: one of the kinds below.
KIND_TAG = "clear_mlflow.kind"
# A training, a loop of your own or an imported matrix: it holds rows.
KIND_TRAIN = "train"
# A call of "evaluate", which re-scored other runs.
KIND_EVALUATE = "evaluate"
# A comparison of other runs.
KIND_COMPARE = "compare"
# The run above the members of an ensemble.
KIND_ENSEMBLE = "ensemble"
# The run that "mlflow run -P resume=RUN" opens beside the resumed one.
KIND_RESUME = "resume"
# The run above the runs of a sweep.
KIND_SWEEP = "sweep"
# Kinds that are about other runs and hold no rows: no search for rows looks at them.
WITHOUT_ROWS = (KIND_EVALUATE, KIND_COMPARE, KIND_ENSEMBLE, KIND_RESUME, KIND_SWEEP)

# How many rows of the accuracy matrix are stored: "complete", "partial" or "none".
ROWS_TAG = "clear_mlflow.rows"
# Digest of the rows that the stored scores were computed from; whether heat maps were drawn.
SCORED_TAG = "mlflow.clear_mlflow.scored"
# Fingerprint of the content of report.html; when it changes, the report is written again.
REPORT_TAG = "mlflow.clear_mlflow.report"
# The rows, as text: a listing of runs brings them without reading artifacts.
MATRIX_TAG = "mlflow.clear_mlflow.matrix"
# Families of metrics that the run logs, with commas between; without it, CLEAR's and Renate's.
METRICS_TAG = "clear_mlflow.metrics"
# Version of the definition by which each metric was computed, as JSON: name to version.
VERSIONS_TAG = "mlflow.clear_mlflow.metric_versions"
# Fingerprint of the generated description; a description that you wrote yourself stays.
NOTE_TAG = "mlflow.clear_mlflow.note"
# Why the training ended early: the one line that was printed.
ERROR_TAG = "clear_mlflow.error"
# "true" on a run whose loss or output was no longer a finite number.
DIVERGED_TAG = "diverged"
# Stored predictions: "labels" or "probs". Without this tag the run has none.
PREDICTIONS_TAG = "clear_mlflow.predictions"
# Fingerprint of what was computed from the predictions; whether a picture was drawn of it.
PREDICTIONS_SCORED_TAG = "mlflow.clear_mlflow.predictions_scored"
# How often the run tests inside its buckets, as test_every says it, or "own" in a loop of your own;
# none without such tests.
ANYTIME_TAG = "clear_mlflow.anytime"
# Fingerprint of what was computed from these tests.
ANYTIME_SCORED_TAG = "mlflow.clear_mlflow.anytime_scored"
# Number of processes that trained together, where it was more than one.
PROCESSES_TAG = "clear_mlflow.processes"
# On a run of kind "resume": the id of the run that was resumed.
RESUMED_TAG = "clear_mlflow.resumed_run"
# How many times the run was resumed.
RESUMES_TAG = "clear_mlflow.resumed"
# Host, process and last heartbeat of the training, as JSON; removed when the run is closed.
PROCESS_TAG = "mlflow.clear_mlflow.process"
# The process that holds the run, as JSON: only that one stores something in it.
HOLDER_TAG = "mlflow.clear_mlflow.holder"
# Version of clear_mlflow that wrote the run.
VERSION_TAG = "clear_mlflow.version"
# Commit of clear_mlflow itself, where it runs from a checkout; ``-dirty`` if it was changed.
COMMIT_TAG = "clear_mlflow.commit"
# On a logged model: the number of buckets that it was trained on.
MODEL_ROW_TAG = "clear_mlflow.row"
# Id of the run whose stored models this run tested again.
RETESTED_TAG = "clear_mlflow.retested_from"
# On a run of kind "evaluate": how many runs it scored.
EVALUATED_TAG = "clear_mlflow.evaluated_runs"
# On the run above an ensemble: the number of members.
MEMBERS_TAG = "clear_mlflow.members"

# On the run above a sweep: a digest of the runs that its grid asks for.
SWEEP_TAG = "clear_mlflow.sweep"
# On the run above a sweep: the id of its comparison.
SWEEP_COMPARISON_TAG = "mlflow.clear_mlflow.sweep_comparison"
# On each run of a sweep: a fingerprint of the parameters that it was started with.
SWEEP_RUN_TAG = "clear_mlflow.sweep_run"
# On the run of a repeated "mlflow run -e sweep": the id of the run above the sweep.
SWEEP_GOES_ON_TAG = "clear_mlflow.sweep_goes_on"

# On a comparison: the ids of the compared runs, as many as a tag holds.
COMPARED_TAG = "clear_mlflow.compared_runs"
# On a comparison: the number of compared runs.
COMPARED_COUNT_TAG = "clear_mlflow.compared_count"

# On a comparison and on a sweep: the group that leads.
LEADER_TAG = "leader"

# On an imported run: the name of the file, without its folder.
IMPORTED_FROM_TAG = "clear_mlflow.imported_from"
# On an imported run: the format of the file.
IMPORT_FORMAT_TAG = "clear_mlflow.import_format"
# On an imported run: SHA-256 of what was read, the file or a line of it.
IMPORTED_DIGEST_TAG = "clear_mlflow.imported_sha256"

# MLflow's own: a run's description, and the tables that its evaluation view offers.
MLFLOW_NOTE = "mlflow.note.content"
MLFLOW_TABLES = "mlflow.loggedArtifacts"

# The leading group's mean of a metric, on a comparison and on a sweep.
LEADER_METRICS = "leader/"

# Test accuracy on each bucket; the step is the number of buckets trained. In MLflow's charts, which
# are sorted by name, the prefix puts them behind the summary metrics. Of another score, its name is
# in the place of accuracy: test_rmse/bucket_01.
BUCKET_SERIES = "test_accuracy/bucket_"
# Of any score, as test_rmse/bucket_01.
_ANY_BUCKET_SERIES = re.compile(r"test_[A-Za-z][A-Za-z0-9_-]*/bucket_")

# Mean loss of a window of training steps; the step is that of the optimiser.
CURVE_LOSS = "train/loss"
# Learning rate of the last step in that window.
CURVE_LR = "train/lr"
# Images of the bucket that training took in a second of that window.
CURVE_SPEED = "train/images_per_second"
CURVE = (CURVE_LOSS, CURVE_LR, CURVE_SPEED)

# The accuracy matrix: its rows, and what is assembled from them.
MATRIX_FOLDER = "accuracy_matrix"
# The assembled matrix, for programs.
MATRIX_JSON = f"{MATRIX_FOLDER}/matrix.json"
# The assembled matrix, for spreadsheets.
MATRIX_CSV = f"{MATRIX_FOLDER}/matrix.csv"
# The assembled matrix in percent, as a table that MLflow's evaluation view shows.
MATRIX_TABLE = f"{MATRIX_FOLDER}/table.json"
# The assembled matrix as a heat map.
HEATMAP_PNG = f"{MATRIX_FOLDER}/heatmap.png"
# Rows that a resumed run measured again with other counts than the stored rows.
MEASURED_AGAIN_FOLDER = f"{MATRIX_FOLDER}/measured_again"
# Accuracy of each class, for each cell of the matrix.
PER_CLASS_CSV = f"{PREDICTIONS_FOLDER}/per_class.csv"
# The macro accuracy matrix: in each cell the mean over classes.
MACRO_CSV = f"{PREDICTIONS_FOLDER}/macro_accuracy.csv"
# For each row and bin of confidence: images, accuracy, mean confidence.
CALIBRATION_CSV = f"{PREDICTIONS_FOLDER}/calibration.csv"
# Confusion matrices, one file for each row.
CONFUSION_FOLDER = f"{PREDICTIONS_FOLDER}/confusion"
# Every parameter, resolved; "train --config" repeats the run from it.
CONFIG_JSON = "config.json"
# The report: one page with the matrix, metrics, curves and configuration.
REPORT_HTML = "report.html"
# On a run of kind "evaluate": what became of each run.
EVALUATED_JSON = "evaluated_runs.json"
# Weights after each row (log_models).
MODELS_FOLDER = "models"
# The state that a resume starts from; removed when the last row is stored.
STATE_FOLDER = "training_state"

# On the run above a sweep: its grid.
SWEEP_GRID = "sweep.yaml"
# On the run above a sweep: what became of each run.
SWEEP_RUNS_JSON = "sweep_runs.json"

# On a comparison: everything, in one page.
COMPARISON_PAGE = "comparison.html"
# On a comparison: the leaderboard, as a table of MLflow's.
LEADERBOARD_TABLE = "leaderboard.json"
# On a comparison: the leaderboard, for spreadsheets.
LEADERBOARD_CSV = "leaderboard.csv"
# On a comparison: groups, runs, every test, every warning.
COMPARED_JSON = "compared_runs.json"
# On a comparison: its figures as pictures.
FIGURES_FOLDER = "figures"
# On a comparison: the grid of a sweep that trains the seeds that undecided verdicts need.
MORE_SEEDS = "more_seeds.yaml"
# On a comparison of validation runs: the grid of a sweep that tests the best settings.
CHOSEN = "chosen.yaml"

# The heat map while a run trained: of the newest row, every 30 s at most; the step is the row.
IMAGE_PER_ROW = "accuracy_matrix_by_row"
# The heat map of the final matrix.
IMAGE_FINAL = "accuracy_matrix"


def dataset_digest(digest: str) -> str:
    """A dataset's digest, as much of it as MLflow keeps of one: 36 characters."""
    return digest.removeprefix("sha256:")[:36]


def bucket_series(score: str = "accuracy") -> str:
    """What the names of a run's numbers per bucket begin with: "test_accuracy/bucket_"."""
    return f"test_{score}/bucket_"


def is_of_bucket(metric: str) -> bool:
    """Whether a metric is the series of one bucket, of accuracies or of another score."""
    return _ANY_BUCKET_SERIES.match(metric) is not None


def model_file_name(row: int) -> str:
    """The file of the weights that gave a row: "after_004.safetensors"."""
    return f"after_{row:03d}.safetensors"


def row_of_weights(name: str) -> int | None:
    """The row of a file of weights, or of a training state; None: it is no such file."""
    match = re.fullmatch(r"after_([0-9]{3,9})\.safetensors", name)
    return int(match[1]) if match and model_file_name(int(match[1])) == name else None
