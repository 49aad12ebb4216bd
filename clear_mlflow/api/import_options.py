"""The options of an import, declared once: for Python and, as its own options, the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Literal

from clear_mlflow.importers import FORMATS

if TYPE_CHECKING:
    _Format = str
else:
    _NAMES = ("auto", *FORMATS)
    _Format = Literal[_NAMES]


@dataclass(frozen=True)
class ImportOptions:
    """What to import, and how to read it.

    Args:
        paths: files, folders and bundles; with --from, runs and experiments.
        experiment: experiment that gets the runs; created if it does not exist. None means the
            experiment of MLFLOW_EXPERIMENT_NAME, else Default.
        name: name of the runs. auto: the file's name.
        again: import a matrix again, as a new run, if the experiment already contains it.
        format: format of the files. auto: detected from each file.
        scale: unit of the accuracies. auto: defined by the format or proven by averages in the
            file, else fractions; a value above 1 is an error.
        score: what the numbers are: accuracy, or another score, for example rmse.
        lower_is_better: state that smaller values of the score are better.
        initial: row that is the test of the untrained model. first-row: the first one. auto: the
            row that the file marks as such, if any.
        future: meaning of zeros above the diagonal: tested with accuracy 0, or not tested. auto:
            defined by the format; otherwise they are an error.
        orientation: whether each row or each column is the test after one bucket. auto: as names,
            zeros, empty cells or averages in the file show; otherwise an error. rows also accepts
            the log of a run that stopped early.
        columns: columns that are buckets, in the order of the stream, by name or, in a table
            without names, by number from 1. auto: all except epoch, avg, mean, std and the like.
        row_labels: what to do with the first column. use: it labels and orders the rows. ignore:
            it labels the rows, which are in order. auto: use, if it contains names.
        rows: regular expression that finds the rows in the lines of a log: its one group is the
            list of accuracies. Search time is limited.
        table: state that the files are tables with a line per value or per step (docs/import.md).
            columns then names run,step,metric,value, or run,step if each metric is a column.
        row_metric: regular expression for the complete names of a table's metrics: its one group is
            the bucket, as in ``test/acc_([0-9]+)``. Without it, each name is a bucket.
        num_instances: numbers of test images of the buckets, separated by commas, or one for all.
        buckets: names of the buckets, separated by commas. auto: as in the file, else 1 to T.
        dataset: name of the test data. auto: as in the file.
        same_data_as: run that was tested on the same images. The files take its dataset, buckets
            and numbers of test images.
        strategy: strategy, to group runs by. auto: as in the file.
        seed: seed of the runs. auto: as in the file.
        protocol: how buckets were tested. streaming: each on its own training data.
        split: images that were tested on. Runs on validation images are compared separately.
        metrics: families of metrics to log (docs/metrics.md). auto: the default families.
    """

    paths: Sequence[str] | None = None
    _: KW_ONLY
    experiment: str | None = None
    name: str | Literal["auto"] = "auto"
    again: bool = False
    format: _Format = "auto"
    scale: Literal["auto", "fraction", "percent"] = "auto"
    score: str = "accuracy"
    lower_is_better: bool = False
    initial: Literal["auto", "first-row"] = "auto"
    future: Literal["auto", "tested", "not-tested"] = "auto"
    orientation: Literal["auto", "rows", "columns"] = "auto"
    columns: Sequence[str] | Literal["auto"] = "auto"
    row_labels: Literal["auto", "use", "ignore"] = "auto"
    rows: str | None = None
    table: bool = False
    row_metric: str | None = None
    num_instances: str | None = None
    buckets: str | Literal["auto"] = "auto"
    dataset: str | Literal["auto"] = "auto"
    same_data_as: str | None = None
    strategy: str | Literal["auto"] = "auto"
    seed: int | Literal["auto"] = "auto"
    protocol: Literal["iid", "streaming"] = "iid"
    split: Literal["test", "validation"] = "test"
    metrics: Sequence[str] | Literal["auto"] = "auto"

    def list_passed(self) -> list[str]:
        """Return the options that differ from defaults, without the experiment."""
        names = (field.name for field in fields(self) if getattr(self, field.name) != field.default)
        return [name for name in names if name not in ("paths", "experiment")]
