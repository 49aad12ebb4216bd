"""Avalanche's TextLogger, whose file is commonly called metric_log.txt.

Source: avalanche/logging/text_logging.py. Accuracies are fractions of four digits. Every test after
a training is a row; tests within a training (``eval_every``) are not, and one before the first
training is the initialisation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clear_mlflow.core.untrusted import MAX_LINES
from clear_mlflow.importers._avalanche import METRIC, SIGN, Cell, experience, one_run
from clear_mlflow.importers._base import Format, Parsed, Source, number
from clear_mlflow.importers.plain_text import to_cell

_TRAINING = re.compile(r"-- Starting training on experience ([0-9]{1,9})\b")
_VALUE = re.compile(rf"{METRIC.pattern} = (?P<value>\S{{1,40}})")
_LONGEST_LINE = 4096


def _recognises(source: Source) -> bool:
    return not source.looks_like_json and (
        SIGN in source.head
        or "-- >> Start of training phase << --" in source.head
        or "-- >> Start of eval phase << --" in source.head
    )


def _parse(source: Source) -> list[Parsed]:
    trained: list[int] = [0]
    cells = list(_cells(source, trained))
    return [one_run(cells, max(trained))]


def _cells(source: Source, trained: list[int]) -> Iterator[Cell]:
    """Tests outside of trainings; ``trained`` collects how many buckets were trained, in order."""
    within = False
    for line in source.lines(MAX_LINES):
        if len(line) > _LONGEST_LINE:
            continue  # a tensor or a progress bar, and no accuracy
        if "-- >> Start of training phase" in line:
            within = True
        elif "-- >> End of training phase" in line:
            within = False
        elif match := _TRAINING.search(line):
            trained.append(experience(match[1]) + 1)
        elif not within and (match := _VALUE.search(line)):
            value = number(to_cell(match["value"]), "an accuracy")
            yield trained[-1], match["stream"], experience(match["exp"]), value


FORMATS = [
    Format(
        name="avalanche-text",
        title="Avalanche's TextLogger",
        recognises=_recognises,
        parse=_parse,
        scale="fraction",
        has_initial=True,
    )
]
