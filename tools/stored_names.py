"""The text of docs/names.md: what a run holds in MLflow, from the comments of store/names.py.

``python tools/generate.py`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from clear_mlflow.core.anytime.anytime_row import ANYTIME_FOLDER, anytime_file_name
from clear_mlflow.core.predictions import EVALUATION_SET_FILE, PREDICTIONS_FOLDER
from clear_mlflow.core.record import ROWS_FOLDER, row_file_name
from clear_mlflow.metrics import FAMILIES
from clear_mlflow.runs.loop_run import LOOP_JSON
from clear_mlflow.store import names

SOURCE = Path(names.__file__)

_HEAD = """# Names in MLflow: tags, metrics, artifacts

Written by `python tools/generate.py` from `clear_mlflow/store/names.py`. These names stay: a newer
version of this program finds what an older one stored. [What is in MLflow](tracking.md) says
when each is written.
"""
# Constants that name nothing in a run.
_NOT_IN_A_RUN = {"MLFLOW_NOTE", "MLFLOW_TABLES", "ROOT_FOLDER"}


def names_page() -> str:
    """The whole page."""
    parts = {
        "Tags": ("tag", _tags()),
        "Kinds": ("`clear_mlflow.kind`", _starting("KIND_", but="_TAG")),
        "Metrics": ("metric", _metrics()),
        "Images": ("image key", _starting("IMAGE_")),
        "Artifacts": ("artifact", _artifacts()),
    }
    lines = [_HEAD]
    for title, (what, rows) in parts.items():
        lines += [f"## {title}\n", f"| {what} | what it is |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def comments() -> dict[str, str]:
    """Name of each constant that is a text, to the comment above it.

    Raises:
        ValueError: a constant has none.
    """
    found, above = {}, list[str]()
    for line in SOURCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            above.append(line[2:])
            continue
        constant = re.match(r"([A-Z][A-Z_]+) = ", line)
        of_a_run = constant is not None and constant[1] not in _NOT_IN_A_RUN
        if constant and of_a_run and isinstance(vars(names)[constant[1]], str):
            if not above:
                raise ValueError(f"{constant[1]} in {SOURCE} has no comment above it")
            found[constant[1]] = " ".join(above)
        above = []
    return found


def _line(name: str, text: str) -> str:
    return f"| `{name}` | {text.replace('|', '&#124;')} |"


def _tags() -> Iterator[str]:
    yield _line(
        "strategy`, `dataset`, `protocol`, `seed`, `model", "What was trained; to filter by."
    )
    yield _line("split", "`test` or `validation`: the images that the rows were measured on.")
    yield _line("score", "What the rows hold, where that is no accuracy: `rmse`, for example.")
    yield _line("git_commit", "Commit of the working folder, where it is a git checkout.")
    yield _line(
        "dataset_digest", "Digest of all images; runs of different digests are not compared."
    )
    yield _line("features`, `features_digest", "Stored features that a linear head was trained on.")
    for constant, text in comments().items():
        if constant.endswith("_TAG"):
            yield _line(vars(names)[constant], text)


def _starting(prefix: str, *, but: str = "-") -> Iterator[str]:
    for constant, text in comments().items():
        if constant.startswith(prefix) and not constant.endswith(but):
            yield _line(vars(names)[constant], text)


def _metrics() -> Iterator[str]:
    families = ", ".join(f"`{family}/…`" for family in FAMILIES)
    yield f"| {families} | Families of [metrics of the matrix](metrics.md#all-metrics). |"
    yield (
        "| `macro_accuracy/…`, `calibration/…` | Metrics "
        "[from stored predictions](metrics.md#from-stored-predictions). |"
    )
    yield (
        "| `continual_evaluation/…` | Metrics "
        "[from tests inside the buckets](metrics.md#from-tests-inside-the-buckets). |"
    )
    for constant, text in comments().items():
        if constant.startswith(("BUCKET_", "CURVE_")):
            suffix = "01` …" if constant.startswith("BUCKET_") else "`"
            yield f"| `{vars(names)[constant]}{suffix} | {text} |"
    yield f"| `{names.LEADER_METRICS}…` | {comments()['LEADER_METRICS']} |"
    yield "| `system/…` | MLflow's system metrics: CPU, memory, GPU. |"


def _artifacts() -> Iterator[str]:
    yield _line(f"{ROWS_FOLDER}/{row_file_name(3)}", "A row: the [record](record-format.md).")
    yield _line(
        f"{PREDICTIONS_FOLDER}/{EVALUATION_SET_FILE}",
        "Which test images, their classes and contents.",
    )
    yield _line(
        f"{PREDICTIONS_FOLDER}/row_003.safetensors",
        "The model's answer for each test image of a row.",
    )
    yield _line(
        f"{ANYTIME_FOLDER}/{anytime_file_name(3, 7)}",
        "A test [inside a bucket](record-format.md#tests-inside-a-bucket), which is no row.",
    )
    yield _line(LOOP_JSON, "Of a loop of your own: what it said of itself.")
    others = ("KIND_", "IMAGE_", "BUCKET_", "CURVE_", "LEADER_")
    for constant, text in comments().items():
        if not constant.startswith(others) and not constant.endswith("_TAG"):
            path = vars(names)[constant]
            yield _line(f"{path}/" if constant.endswith("_FOLDER") else path, text)
