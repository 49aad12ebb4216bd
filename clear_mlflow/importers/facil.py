r"""FACIL's matrices: results/acc_taw-<time>.txt and acc_tag-<time>.txt.

Source: src/main_incremental.py and src/loggers/disk_logger.py, ``np.savetxt(..., '%.6f',
delimiter='\t')``. The matrix starts as zeros and future tasks are never tested, so the strictly
upper triangle is not measured; neither are rows of zeros at the end, of tasks not trained yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_RESULTS_BYTES
from clear_mlflow.importers._base import Format, Parsed, Source
from clear_mlflow.importers.plain_text import table_of, to_cell

_RESULT = re.compile(r"(?P<what>acc|forg|avg_accs|wavg_accs)_(taw|tag)-[0-9]{4}(-[0-9]{2}){4}\.txt")
# What lies in the other folders of a FACIL experiment.
_OTHER = re.compile(r"(stdout|stderr|args|raw_log)-[0-9]{4}(-[0-9]{2}){4}\.txt")


def _recognises(source: Source) -> bool:
    return bool(_RESULT.fullmatch(source.name))


def _parse(source: Source) -> list[Parsed]:
    source.bounded(MAX_RESULTS_BYTES)
    match = _RESULT.fullmatch(source.name)
    if match and match["what"] != "acc":
        raise RecordError(f"holds {match['what']}, no accuracies; import acc_taw or acc_tag")
    rows = [[to_cell(cell) for cell in line] for line in table_of(source)]
    if any(len(row) != len(rows) for row in rows):
        raise RecordError("is no square matrix; expected a row and a column per task")
    while rows and not any(value != 0 for value in rows[-1]):
        rows.pop()
    return [Parsed(rows=rows)] if rows else []


def _passes_over(name: str, siblings: Sequence[str]) -> str | None:
    match = _RESULT.fullmatch(name)
    if _OTHER.fullmatch(name) or (match and match["what"] != "acc"):
        return "holds no accuracies; FACIL's matrices are acc_taw and acc_tag"
    return None


FORMATS = [
    Format(
        name="facil",
        title="FACIL's matrix",
        recognises=_recognises,
        parse=_parse,
        scale="fraction",
        zeros_are_untested=True,
        has_initial=True,
        passes_over=_passes_over,
    )
]
