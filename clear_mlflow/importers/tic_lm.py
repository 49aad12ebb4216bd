"""TiC-LM's perplexity evaluations: aggregated_ppl_evals.jsonl, a line per checkpoint and test set.

Source: evaluation/continual_ppl_eval.py and file_utils.py of apple/ml-tic-lm, 6cd81c9. A line names
its checkpoint and its test set by their paths, whose months say which row and which column it is;
``loss`` is a log-perplexity, in nats per token. One file may hold the lines of several checkpoints,
and of TiC-CC, TiC-CC-News and TiC-CC-Wiki: each of these is a matrix. The program's downstream
evaluations (tic_wiki.json and others) do not say of which month their model is, and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_LINES, MAX_RESULTS_BYTES, MAX_ROW_BYTES, json_object
from clear_mlflow.importers._base import NAN, Format, Parsed, Source, number

LOG_PERPLEXITY = Score("log_perplexity", higher_is_better=False)
_MONTH = re.compile(r"(?:/|cutoff)(20[0-9]{4})/")  # a folder, as extract_month reads it
_PART = re.compile(r"(gs|global_shard)_[0-9]{1,4}_of_[0-9]{1,4}")
_LONGEST_PATH = 4096
_TEST_SETS = {"monthly": "tic_cc", "tic_cc_data": "tic_cc"}  # of the authors, and of their example


def _recognises(source: Source) -> bool:
    return source.head.startswith("{") and (
        ('"checkpoint_path"' in source.head and '"val_data"' in source.head)
        or ('"eval_metrics"' in source.head and '"icl"' in source.head)
    )


def _parse(source: Source) -> Iterator[Parsed]:
    source.bounded(MAX_RESULTS_BYTES)
    # Test set to (month of the checkpoint, month tested): loss.
    tests: dict[str, dict[tuple[str, str], float]] = {}
    lines: dict[str, list[str]] = {}
    models: set[str] = set()
    for position, line in enumerate(source.lines(MAX_LINES)):
        try:
            evaluation = json_object(line, MAX_ROW_BYTES)
            what, trained, tested, loss = _test(evaluation)
        except RecordError as error:
            if position == 0 and '"icl"' in source.head:
                raise RecordError(
                    "is a downstream evaluation, which does not say of which month its model is; "
                    "put the numbers of all months into a plain matrix, with --score"
                ) from error
            raise RecordError(f"line {position + 1} {error}") from error
        cells = tests.setdefault(what, {})
        if (trained, tested) in cells:
            raise RecordError(f"line {position + 1} tests {what} of {tested} twice after {trained}")
        cells[trained, tested] = loss
        lines.setdefault(what, []).append(line)
        if isinstance(model := evaluation.get("model"), str):
            models.add(model)
    known = {"model": models.pop()} if len(models) == 1 else {}
    for what, cells in sorted(tests.items()):
        yield Parsed(
            rows=_rows(what, cells),
            buckets=sorted({tested for _, tested in cells}),
            facts={"dataset": what, **known},
            label=what if len(tests) > 1 else "",
            part="\n".join(lines[what]).encode(),
            score=LOG_PERPLEXITY,
        )


def _test(evaluation: dict[str, Any]) -> tuple[str, str, str, float]:
    """Of one line: the test set, the month of the checkpoint, the month tested, the loss."""
    paths = evaluation.get("val_data")
    if not isinstance(paths, list) or len(paths) != 1:
        raise RecordError(f"has the val_data {shown(paths)}; expected one path in a list")
    trained, _ = _month(evaluation.get("checkpoint_path"), "checkpoint_path")
    tested, folders = _month(paths[0], "val_data")
    names = [name for name in folders.split("/") if name and not _PART.fullmatch(name)]
    found = names[-1] if names else "test"
    if (loss := number(evaluation.get("loss"), "loss")) != loss:
        raise RecordError("has no loss")
    if "news" in found or "wiki" in found:
        return f"tic_cc_{'news' if 'news' in found else 'wiki'}", trained, tested, loss
    return _TEST_SETS.get(found, found), trained, tested, loss


def _month(path: object, what: str) -> tuple[str, str]:
    """The month in a path, and the folders before it."""
    match = None
    if isinstance(path, str) and len(path) <= _LONGEST_PATH:
        match = _MONTH.search(path)
    if match is None:
        raise RecordError(f"has the {what} {shown(path)}; expected a path with /YYYYMM/")
    return match[1], str(path)[: match.start()]


def _rows(what: str, cells: dict[tuple[str, str], float]) -> list[list[float]]:
    """A row per month tested, NaN where its checkpoint was not tested, up to the last that was."""
    months = sorted({tested for _, tested in cells})
    trained = sorted({month for month, _ in cells})
    if unknown := sorted(set(trained) - set(months)):
        raise RecordError(
            f"tests checkpoints of {unknown[0]}, but {what} of {', '.join(months[:3])} ... alone; "
            "expected the months of checkpoints among those tested"
        )
    rows = [[cells.get((i, j), NAN) for j in months] for i in months]
    return rows[: months.index(trained[-1]) + 1]


FORMATS = [
    Format(
        name="tic-lm",
        title="TiC-LM's perplexity evaluation",
        recognises=_recognises,
        parse=_parse,
        has_initial=True,
    )
]
