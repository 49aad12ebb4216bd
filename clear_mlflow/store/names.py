"""Names of the tags and artifacts that clear_mlflow writes into an MLflow run."""

from collections.abc import Iterable

from clear_mlflow.core.predictions import PREDICTIONS_FOLDER

# What kind of run it is: "train" holds rows; "evaluate" re-scored other runs; "ensemble" stands
# above runs that trained together, and holds no rows.
KIND_TAG = "clear_mlflow.kind"
KIND_TRAIN = "train"
KIND_EVALUATE = "evaluate"
KIND_COMPARE = "compare"
KIND_ENSEMBLE = "ensemble"
# The run that "mlflow run -P resume=RUN" opens beside the one that is resumed.
KIND_RESUME = "resume"
# Stands above the runs of a sweep.
KIND_SWEEP = "sweep"
# Kinds that tell of other runs and hold no rows: no search for rows looks at them.
WITHOUT_ROWS = (KIND_EVALUATE, KIND_COMPARE, KIND_ENSEMBLE, KIND_RESUME, KIND_SWEEP)

# How much of the accuracy matrix is stored: "complete", "partial" or "none".
ROWS_TAG = "clear_mlflow.rows"
# Digest of the rows that the stored scores are of, and whether heat maps are among the reports.
SCORED_TAG = "clear_mlflow.scored"
# Fingerprint of what the run's report shows, so that it is written again when that changes.
REPORT_TAG = "clear_mlflow.report"
# The rows themselves, in a form that a listing of runs brings: see matrix_tag.py.
MATRIX_TAG = "clear_mlflow.matrix"
# Which families of metrics the run logs, with commas between; without it, the default ones.
METRICS_TAG = "clear_mlflow.metrics"
# Which definition of each metric the logged values are of, as JSON: name to version.
VERSIONS_TAG = "clear_mlflow.metric_versions"
# Versions whose values were overwritten on request, as JSON: name to the versions before.
REPLACED_TAG = "clear_mlflow.replaced_definitions"
# Fingerprint of the description that was written last, so that a person's own is left alone.
NOTE_TAG = "clear_mlflow.note"
# Why training ended early.
ERROR_TAG = "clear_mlflow.error"
# "true" on a run whose loss or output was no longer a finite number.
DIVERGED_TAG = "diverged"
# What the run kept of each row's answers per test image: "labels" or "probs"; none without it.
PREDICTIONS_TAG = "clear_mlflow.predictions"
# Fingerprint of what was computed from predictions last, and whether a picture was drawn of them.
PREDICTIONS_SCORED_TAG = "clear_mlflow.predictions_scored"
# How many processes trained together, where it was more than one.
PROCESSES_TAG = "clear_mlflow.processes"
# The run that a run of kind "resume" went on with.
RESUMED_TAG = "clear_mlflow.resumed_run"
# How many times a run was resumed.
RESUMES_TAG = "clear_mlflow.resumed"
# Who trains and when that process last said that it lives, as JSON; gone when the run is closed.
PROCESS_TAG = "clear_mlflow.process"
# Which process holds the run, as JSON: the one whose token it is may store something in it.
HOLDER_TAG = "clear_mlflow.holder"
# The version of this package that wrote the run.
VERSION_TAG = "clear_mlflow.version"
# On a model of MLflow's: the row that it gave, which is how many buckets it was trained on.
MODEL_ROW_TAG = "clear_mlflow.row"
# The run whose stored models this one tested again.
RETESTED_TAG = "clear_mlflow.retested_from"
# Runs that an evaluate run scored, as a count; the list is an artifact.
EVALUATED_TAG = "clear_mlflow.evaluated_runs"
# Runs that an ensemble's summary is over, as a count.
MEMBERS_TAG = "clear_mlflow.members"

# On the run above a sweep: a digest of the runs that it asks for, and the run of its comparison.
SWEEP_TAG = "clear_mlflow.sweep"
SWEEP_COMPARISON_TAG = "clear_mlflow.sweep_comparison"
# On each run of a sweep: a fingerprint of the parameters that it was started with.
SWEEP_RUN_TAG = "clear_mlflow.sweep_run"
# On a run that "mlflow run -e sweep" opened for a sweep that has a run above it already.
SWEEP_GOES_ON_TAG = "clear_mlflow.sweep_goes_on"

# Runs that a comparison is of: their ids, as many as a tag holds, and how many there are.
COMPARED_TAG = "clear_mlflow.compared_runs"
COMPARED_COUNT_TAG = "clear_mlflow.compared_count"

# Where an imported run comes from: the name of the file, its format, and a digest of what was read.
IMPORTED_FROM_TAG = "clear_mlflow.imported_from"
IMPORT_FORMAT_TAG = "clear_mlflow.import_format"
IMPORTED_DIGEST_TAG = "clear_mlflow.imported_sha256"

# MLflow's own: a run's description, and the tables that its evaluation view offers.
MLFLOW_NOTE = "mlflow.note.content"
MLFLOW_TABLES = "mlflow.loggedArtifacts"

# What a listing of all artifacts asks for.
ROOT_FOLDER = ""

# Test accuracy of each bucket, over the rows. MLflow's charts go by name: these come behind
# the summary metrics. In runs of before they came first; such a run keeps that name.
BUCKET_SERIES = "test_accuracy/bucket_"
BUCKET_SERIES_BEFORE = "accuracy/bucket_"

# Series over the steps of the optimiser, not over the rows: nothing else tells what they hold.
CURVE_LOSS = "train/loss"
CURVE_LR = "train/lr"
CURVE_SPEED = "train/images_per_second"
CURVE = (CURVE_LOSS, CURVE_LR, CURVE_SPEED)

MATRIX_FOLDER = "accuracy_matrix"
MATRIX_JSON = f"{MATRIX_FOLDER}/matrix.json"
MATRIX_CSV = f"{MATRIX_FOLDER}/matrix.csv"
MATRIX_TABLE = f"{MATRIX_FOLDER}/table.json"
HEATMAP_PNG = f"{MATRIX_FOLDER}/heatmap.png"
# Rows that a resumed run measured once more and that came out otherwise than the stored ones.
MEASURED_AGAIN_FOLDER = f"{MATRIX_FOLDER}/measured_again"
PER_CLASS_CSV = f"{PREDICTIONS_FOLDER}/per_class.csv"
MACRO_CSV = f"{PREDICTIONS_FOLDER}/macro_accuracy.csv"
CALIBRATION_CSV = f"{PREDICTIONS_FOLDER}/calibration.csv"
CONFUSION_FOLDER = f"{PREDICTIONS_FOLDER}/confusion"
CONFUSION_PNG = f"{PREDICTIONS_FOLDER}/confusion.png"
CONFIG_JSON = "config.json"
# The run's page.
REPORT_HTML = "report.html"
EVALUATED_JSON = "evaluated_runs.json"
MODELS_FOLDER = "models"
STATE_FOLDER = "training_state"

# What the run above a sweep holds.
SWEEP_GRID = "sweep.yaml"
SWEEP_RUNS_JSON = "sweep_runs.json"

# What a comparison run holds.
COMPARISON_PAGE = "comparison.html"
LEADERBOARD_TABLE = "leaderboard.json"
LEADERBOARD_CSV = "leaderboard.csv"
COMPARED_JSON = "compared_runs.json"
FIGURES_FOLDER = "figures"
# The grid of a sweep that trains the seeds that undecided verdicts ask for.
MORE_SEEDS = "more_seeds.yaml"
# The grid of a sweep that tests what was chosen on validation images.
CHOSEN = "chosen.yaml"

# Keys of the images that MLflow's chart view shows side by side, runs beside runs.
IMAGE_PER_ROW = "accuracy_matrix_by_row"
IMAGE_FINAL = "accuracy_matrix"


def dataset_digest(digest: str) -> str:
    """A dataset's digest, as much of it as MLflow keeps of one: 36 characters."""
    return digest.removeprefix("sha256:")[:36]


def bucket_series(metrics: Iterable[str]) -> str:
    """What the names of a run's accuracies per bucket begin with.

    Args:
        metrics: names of those that it holds.

    >>> bucket_series(["clear/accuracy"]), bucket_series(["accuracy/bucket_01"])
    ('test_accuracy/bucket_', 'accuracy/bucket_')
    """
    is_of_before = any(name.startswith(BUCKET_SERIES_BEFORE) for name in metrics)
    return BUCKET_SERIES_BEFORE if is_of_before else BUCKET_SERIES


def model_file_name(row: int) -> str:
    """The name of the file of the weights that gave a row.

    >>> model_file_name(4)
    'after_004.safetensors'
    """
    return f"after_{row:03d}.safetensors"
