"""What a run's page shows of how the run came about, beside what its rows define."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_USER

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import MAX_ROW_BYTES, json_object
from clear_mlflow.report.page.run_page import RunReport
from clear_mlflow.scoring.computed import Scores
from clear_mlflow.store import names

_USED, _ASKED = "used/", "asked/"
# Tag to what the page calls it.
_ENVIRONMENT = {
    names.VERSION_TAG: "clear_mlflow",
    names.SOFTWARE_TAG: "software",
    names.COMMIT_TAG: "commit of clear_mlflow",
    "git_commit": "commit",
    names.PROCESSES_TAG: "processes",
    names.RESUMES_TAG: "times resumed",
    names.IMPORT_FORMAT_TAG: "imported from a file of",
    MLFLOW_USER: "user",
}


def run_report(record: Record, scores: Scores, run: Run, summary: Mapping[str, float]) -> RunReport:
    """The page of a run; *summary* is by metric, as it is shown."""
    answers = scores.predicted
    params, tags = dict(sorted(run.data.params.items())), run.data.tags
    asked = {n.removeprefix(_ASKED): v for n, v in params.items() if n.startswith(_ASKED)}
    plain = {n: v for n, v in params.items() if not n.startswith((_USED, _ASKED))}
    configuration = configuration_of(params)
    asked = {name: text for name, text in (plain | asked).items() if name in configuration}
    profile = _profile(run, record.dataset.name)
    without = ""
    if answers.problem is not None:
        without = f"Its predictions were left out: {answers.problem}."
    elif not (answers.is_unread or answers.predictions) and record.matrix.score.is_accuracy:
        without = "Accuracy per class needs the predictions, and the run kept none."
    notes = [str(text) for text in _listed(profile.get("warnings"))]
    if scores.anytime.problem is not None:
        notes.append(f"Its tests inside buckets were left out: {scores.anytime.problem}.")
    return RunReport(
        name=scores.run_name,
        run_id=run.info.run_id,
        record=record,
        summary=summary,
        reasons=scores.reasons,
        predictions=answers.predictions,
        without_predictions=without,
        lower_is_better=scores.lower_is_better,
        configuration=configuration,
        asked={name: text for name, text in asked.items() if text != configuration[name]},
        dataset={
            name: str(profile[key])
            for key, name in (
                ("num_classes", "classes"),
                ("split", "split"),
                ("left_out", "damaged images left out"),
            )
            if key in profile
        }
        | _features(profile),
        num_train=_counts(profile.get("num_train")),
        environment={
            **{shown: tags[tag] for tag, shown in _ENVIRONMENT.items() if tag in tags},
            **_measured(scores.times),
            **({} if any(record.matrix.costs) else {"cost of its training": "not in its rows"}),
        },
        notes=notes,
        tests=scores.anytime.tests,
    )


def configuration_of(params: Mapping[str, str]) -> dict[str, str]:
    """What a run was trained with: parameter to what ``auto`` and its like became."""
    used = {n.removeprefix(_USED): v for n, v in params.items() if n.startswith(_USED)}
    plain = {n: v for n, v in params.items() if not n.startswith((_USED, _ASKED))}
    return dict(sorted((plain | used).items()))


def _profile(run: Run, dataset: str) -> Mapping[str, Any]:
    """A dataset's profile, where it is one of ours: other programs write what they like."""
    entries = run.inputs.dataset_inputs if run.inputs else ()
    texts = {entry.dataset.name: entry.dataset.profile for entry in entries}
    try:
        return json_object(texts.get(dataset) or "{}", MAX_ROW_BYTES)
    except RecordError:
        return {}


def _features(profile: Mapping[str, Any]) -> dict[str, str]:
    features = profile.get("features")
    return {"features": str(features.get("name"))} if isinstance(features, dict) else {}


def _counts(found: object) -> dict[str, int]:
    entries = found.items() if isinstance(found, dict) else ()
    return {key: count for key, count in entries if isinstance(count, int)}


def _listed(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def _measured(times: Mapping[int, int]) -> dict[str, str]:
    """When the first and the last row were measured."""
    moments = sorted({_moment(min(times.values())), _moment(max(times.values()))})
    return {"rows measured": " to ".join(moments)}


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M UTC")
