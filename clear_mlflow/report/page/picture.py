"""The pages' charts as files: SVG that needs no page around it, on white."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clear_mlflow.report.colours import GROUPS
from clear_mlflow.report.page import Own, rendered_part

_TITLE, _LINE = 30, 18  # pixels above a panel, and of a line of the legend


def svg_picture(
    kind: str,
    charts: Sequence[Mapping[str, Any]],
    *,
    columns: int,
    legend: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """Charts side by side, as a macro draws them: ``curves``, ``dots`` or ``prices``, the kind."""
    columns = min(columns, len(charts))
    width, height = charts[0]["width"], max(chart["height"] for chart in charts) + _TITLE
    below = -(-len(charts) // columns) * height
    text = rendered_part(
        "clear_mlflow.report.page/picture",
        kind=kind,
        css=Own(_style()),
        panels=[
            {"of": chart, "x": width * (i % columns), "y": height * (i // columns)}
            for i, chart in enumerate(charts)
        ],
        legend=[{**item, "y": below + _LINE * i + 10} for i, item in enumerate(legend)],
        width=width * columns,
        height=below + _LINE * len(legend) + 8,
    )
    return text.encode("utf-8", "replace")


def _style() -> str:
    """As the page's on light ground; without variables, which most programs for SVG do not know."""
    rules = [
        "text{fill:#5c6570;font:11px sans-serif}.name{fill:#1b1f24}",
        ".title{fill:#1b1f24;font-size:13px;font-weight:bold}.rule{stroke:#d9dee4}",
        ".line{fill:none;stroke-width:2;stroke-linejoin:round}.band{opacity:.16}.dot{stroke:#fff}",
        ".dash1 .line{stroke-dasharray:7 4}.dash2 .line{stroke-dasharray:2 4}",
        ".reach{stroke-width:2.5;stroke-linecap:round}",
        ".images{stroke-width:1.5;stroke-dasharray:2 3}",
    ]
    for i, colour in enumerate(GROUPS):
        rules.append(f".k{i} .line,.k{i} .reach{{stroke:{colour}}}")
        rules.append(f".k{i} .band,.k{i} .dot{{fill:{colour}}}")
    return "".join(rules)
