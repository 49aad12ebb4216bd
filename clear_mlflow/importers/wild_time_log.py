"""What Wild-Time prints while it evaluates, kept in a file: a run for each ``Namespace(...)`` line.

Source: main.py and methods/base_trainer.py of huaxiuyao/Wild-Time, 1875f1e, and of PyPI's wildtime
1.1.3, whose lines have other words. Accuracies are fractions in full digits. Eval-Stream tests each
model on the next K buckets and on no others, so a row has K cells right of the diagonal. Eval-Fix
is one row, that of the split: its continual learners (``train_online``) stop one bucket before
the split, all other methods train on the split's bucket, too. Its ID accuracy is of the test images
of all buckets up to the split at once; it belongs to no bucket, and is not read. What is measured
follows from the dataset, whatever most lines call it: PCC for drug, ROC-AUC for the mortality of
MIMIC, RMSE for regression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_LINES, MAX_RUNS
from clear_mlflow.importers._base import NAN, Format, Parsed, Source, grid, whole
from clear_mlflow.importers.plain_text import to_cell

# The stream's times, ``ENV`` in data/*/data_generator.py. Those of MIMIC depend on the version.
_TIMES = {
    "arxiv": range(2007, 2023),
    "drug": range(2013, 2021),
    "fmow": range(16),
    "huffpost": range(2012, 2019),
    "precipitation": range(1, 13),
    "yearbook": range(1930, 2014),
}
_CONTINUAL = frozenset(["agem", "ewc", "ft", "si"])  # in ``run_offline`` and ``run_eval_fix``
_PCC = Score("pcc")
_ROC_AUC = Score("roc_auc")
_MACRO_F1 = Score("macro_f1")
_RMSE = Score("rmse", higher_is_better=False)
_LONGEST_LINE = 2**16  # a thousand accuracies take 25 kB

_ARGUMENT = re.compile(
    r"[(\s](?P<name>\w{1,40})=(?:'(?P<text>[^']{1,100})'|(?P<word>[^',)\s]{1,40}))"
)
_START = re.compile(r"Running (Eval-Fix|Eval-Stream|Task Difficulty)\.\.\.")
_STREAM = re.compile(
    r"current task is (?P<row>[0-9]{1,9}), eval next [0-9]{1,9} timesteps, "
    r"avg (?P<metric>\S{1,20}) is .*"
)
_ACCURACIES = re.compile(r"current task is, all accs  \[(?P<cells>.*)\]")
_STREAM_1_1 = re.compile(
    r"Timestamp = (?P<row>[0-9]{1,9})\t Average (?P<metric>\S{1,20}): .*"
    r"\t Performance over all timestamps: \[(?P<cells>.*)\]"
)
_FIXED = re.compile(r"time is (?P<time>[0-9]{1,9}), (?P<metric>accuracy) is (?P<cell>\S{1,40})")
_FIXED_1_1 = re.compile(
    r"OOD timestamp = (?P<time>[0-9]{1,9}): \t (?P<metric>\S{1,20}) is (?P<cell>\S{1,40})"
)


@dataclass
class _Log:
    """The lines of one run, and what they say of it."""

    lines: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)  # as ``Namespace`` shows them
    is_started: bool = False


def _recognises(source: Source) -> bool:
    return not source.looks_like_json and (
        "eval_next_timesteps=" in source.head
        or "eval_next_timestamps=" in source.head
        or bool(_START.search(source.head))
    )


def _parse(source: Source) -> Iterator[Parsed]:
    logs = _logs(source)
    for position, log in enumerate(logs):
        try:
            rows, buckets, score = _run(log)
        except RecordError as error:
            raise RecordError(f"run {position + 1} {error}") from error
        yield Parsed(
            rows=rows,
            buckets=buckets,
            facts=_facts(log.arguments),
            label="" if len(logs) == 1 else f"run {position + 1}",
            part="\n".join(log.lines).encode(),
            score=score,
        )


def _logs(source: Source) -> list[_Log]:
    """The runs of a file, to which several trainings may have been written one after the other."""
    logs = [_Log()]
    for line in source.lines(MAX_LINES):
        if len(line) > _LONGEST_LINE:
            continue  # a progress bar, and no result
        starts = bool(_START.match(line))
        is_namespace = line.startswith("Namespace(")
        if is_namespace or (starts and logs[-1].is_started):
            logs.append(_Log())
            if len(logs) > MAX_RUNS:
                raise RecordError(f"holds more than {MAX_RUNS} runs")
        log = logs[-1]
        log.is_started |= starts
        if is_namespace:
            log.arguments = {
                match["name"]: match["text"] or match["word"] for match in _ARGUMENT.finditer(line)
            }
        log.lines.append(line)
    first = logs[0]
    return logs if first.is_started or len(logs) == 1 else logs[1:]


def _run(log: _Log) -> tuple[list[list[float]], list[str] | None, Score]:
    """The rows of one run, the keys of its buckets where they are known, and what was measured."""
    rows: dict[int, list[float]] = {}
    fixed: dict[int, float] = {}
    row: int | None = None
    scores: set[Score] = set()
    for line in log.lines:
        if match := _STREAM.fullmatch(line):
            scores.add(_score(match["metric"], log.arguments))
            row = whole(match["row"], "a time step")
        elif (match := _ACCURACIES.fullmatch(line)) and row is not None:
            _add(rows, row, match["cells"])
            row = None
        elif match := _STREAM_1_1.fullmatch(line):
            scores.add(_score(match["metric"], log.arguments))
            _add(rows, whole(match["row"], "a time step"), match["cells"])
        elif match := _FIXED.fullmatch(line) or _FIXED_1_1.fullmatch(line):
            scores.add(_score(match["metric"], log.arguments))
            time = int(match["time"])
            if time in fixed:
                raise RecordError(f"holds two accuracies of time {time}")
            fixed[time] = to_cell(match["cell"])
    if rows and fixed:
        raise RecordError("holds both Eval-Fix and Eval-Stream; expected one of them")
    if not rows and not fixed:
        raise RecordError("holds no result that Eval-Fix or Eval-Stream prints")
    if len(scores) > 1:
        raise RecordError(f"holds {' and '.join(sorted(s.name for s in scores))}; expected one")
    found, keys = _stream(rows, log.arguments) if rows else _fix(fixed, log.arguments)
    return found, keys, scores.pop()


def _add(rows: dict[int, list[float]], row: int, cells: str) -> None:
    if row in rows:
        raise RecordError(f"holds two tests after time step {row}")
    if cells.count(",") >= MAX_BUCKETS:
        raise RecordError(f"tests more than {MAX_BUCKETS} buckets at once")
    rows[row] = [to_cell(cell.strip()) for cell in cells.split(",")]


def _score(printed: str, arguments: dict[str, str]) -> Score:
    """What was measured: as the arguments say, for most lines call it an accuracy.

    Raises:
        RecordError: it cannot be known.
    """
    if not arguments and printed == "acc":
        raise RecordError(
            "has no line 'Namespace(...)', which main.py prints first: what was measured is not "
            "known without it"
        )
    dataset, metric = arguments.get("dataset"), arguments.get("eval_metric", "acc")
    if printed == "PCC" or dataset == "drug":
        return _PCC
    if printed == "ROC-AUC" or (
        dataset == "mimic" and arguments.get("prediction_type") == "mortality"
    ):
        return _ROC_AUC
    if arguments.get("regression") == "True":
        return _RMSE
    if dataset == "precipitation" and metric == "f1":
        return _MACRO_F1
    if printed not in ("acc", "accuracy") or metric != "acc":
        raise RecordError(
            f"prints {shown(printed)} of {shown(dataset)} with eval_metric {shown(metric)}; what "
            "was measured is not known"
        )
    return ACCURACY


def _stream(
    rows: dict[int, list[float]], arguments: dict[str, str]
) -> tuple[list[list[float]], list[str] | None]:
    """Eval-Stream: row i is tested on the buckets i + 1 to i + K."""
    times = _TIMES.get(arguments.get("dataset", ""), ())
    cells = {
        (row, row + 1 + ahead): value
        for row, values in rows.items()
        for ahead, value in enumerate(values)
    }
    found = grid(cells, len(times))
    keys = _keys(times) if len(times) == len(found[0]) else None
    return found, keys


def _fix(fixed: dict[int, float], arguments: dict[str, str]) -> tuple[list[list[float]], list[str]]:
    """Eval-Fix: the row of the split; the last row where all were trained (--difficulty)."""
    times = _TIMES.get(arguments.get("dataset", ""))
    if times is None:
        raise RecordError(
            f"is Eval-Fix of {shown(arguments.get('dataset', 'a dataset that is not named'))}; "
            f"which buckets lie before the split is known of {', '.join(_TIMES)} alone"
        )
    split = arguments.get("split_time", "")
    if not split.isdecimal() or int(split[:9]) not in times:
        raise RecordError(f"was split at {shown(split)}; expected one of the times of the dataset")
    if unknown := sorted(set(fixed) - set(times)):
        raise RecordError(
            f"tests time {unknown[0]}; expected {times[0]} to {times[-1]}, as the dataset has them"
        )
    if arguments.get("difficulty") == "True":
        trained = len(times)
    else:
        trained = times.index(int(split[:9])) + (arguments.get("method") not in _CONTINUAL)
    if trained == 0:
        raise RecordError("was split at its first bucket: nothing was trained before the test")
    row = [fixed.get(time, NAN) for time in times]
    return [*([NAN] * len(times) for _ in range(trained - 1)), row], _keys(times)


def _keys(times: Sequence[int]) -> list[str]:
    return [str(time) for time in times]


def _facts(arguments: dict[str, str]) -> dict[str, str]:
    found = {"dataset": arguments.get("dataset"), "seed": arguments.get("random_seed")}
    if method := arguments.get("method"):
        also = [name for name in ("lisa", "mixup") if arguments.get(name) == "True"]
        found["strategy"] = "+".join([method, *also])
    return {name: value for name, value in found.items() if value and value.isprintable()}


FORMATS = [
    Format(
        name="wild-time",
        title="Wild-Time's log",
        recognises=_recognises,
        parse=_parse,
        scale="fraction",
        has_initial=True,
    )
]
