"""How a run came about, as a listing of runs brings it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_USER

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_ROW_BYTES, json_object
from clear_mlflow.scoring.run_report import Facts
from clear_mlflow.store import names
from clear_mlflow.store.ui_urls import report_link

_USED, _ASKED = "used/", "asked/"
# Tag to what the page calls it.
_ENVIRONMENT = {
    names.VERSION_TAG: "clear_mlflow",
    "git_commit": "commit",
    names.PROCESSES_TAG: "processes",
    names.RESUMES_TAG: "times resumed",
    names.IMPORT_FORMAT_TAG: "imported from a file of",
    names.RETESTED_TAG: "models of run",
    MLFLOW_USER: "user",
}


def facts_of(run: Run) -> Facts:
    """What a listing of runs brings of how a run came about."""
    params, tags = dict(sorted(run.data.params.items())), run.data.tags
    used = {n.removeprefix(_USED): v for n, v in params.items() if n.startswith(_USED)}
    asked = {n.removeprefix(_ASKED): v for n, v in params.items() if n.startswith(_ASKED)}
    plain = {n: v for n, v in params.items() if not n.startswith((_USED, _ASKED))}
    configuration = dict(sorted((plain | used).items()))
    asked = {name: text for name, text in (plain | asked).items() if name in configuration}
    return Facts(
        run_id=run.info.run_id,
        link=report_link(run),
        configuration=configuration,
        asked={name: text for name, text in asked.items() if text != configuration[name]},
        environment={shown: tags[tag] for tag, shown in _ENVIRONMENT.items() if tag in tags},
        profiles={
            entry.dataset.name: _profile(entry.dataset.profile)
            for entry in (run.inputs.dataset_inputs if run.inputs else ())
        },
    )


def _profile(text: str | None) -> Mapping[str, Any]:
    """A dataset's profile, where it is one of ours: other programs write what they like."""
    try:
        return json_object(text or "{}", MAX_ROW_BYTES)
    except RecordError:
        return {}
