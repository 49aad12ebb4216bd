"""What a run's page shows of what its store says, beside what its rows define."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from clear_mlflow.report.page.run_page import RunReport
from clear_mlflow.scoring.computed import Computed


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a store says of how a run came about; all of it is only shown."""

    run_id: str = ""
    link: str | None = None  # to the page itself, within MLflow's UI
    configuration: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by dataset


def run_report(
    computed: Computed,
    facts: Facts,
    summary: Mapping[str, float],
    reasons: Mapping[str, str],
) -> RunReport:
    """The page of a run, from what its rows define and what its store says.

    Args:
        computed: what its rows and predictions define.
        facts: what its store says.
        summary: metric name to value, as shown.
        reasons: metric name to why it has none.
    """
    record, answers = computed.record, computed.predicted
    profile = facts.profiles.get(record.dataset.name, {})
    without = ""
    if answers.problem is not None:
        without = f"Its predictions were left out: {answers.problem}."
    elif not answers.are_kept and record.matrix.score.is_accuracy:
        without = "Accuracy per class needs the predictions, and the run kept none."
    notes = [str(text) for text in _listed(profile.get("warnings"))]
    if computed.anytime.problem is not None:
        notes.append(f"Its tests inside buckets were left out: {computed.anytime.problem}.")
    return RunReport(
        name=computed.run_name,
        run_id=facts.run_id,
        record=record,
        summary=summary,
        reasons=reasons,
        predictions=answers.predictions,
        without_predictions=without,
        lower_is_better=computed.lower_is_better,
        configuration=facts.configuration,
        asked=facts.asked,
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
        environment={**facts.environment, **_measured(computed.times)},
        notes=notes,
        tests=computed.anytime.matrix,
    )


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
