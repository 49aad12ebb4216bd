"""Published results for CLEAR, shown below a comparison and never part of it.

``published_results.csv`` has a line for each number, as its source prints it. The address of the
source contains the commit. Each number was read there.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.matrix import TEST
from clear_mlflow.core.text import format_count

NOTE = "Published results: other test set or recipe, not tested against"


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """The numbers that a source publishes for one method on one stream.

    Attributes:
        method: name of the method.
        stream: name of the dataset, as a run's description has it.
        protocol: ``iid`` or ``streaming``.
        test_set: images that were tested on.
        backbone: name of the network.
        pretrained: ``yes`` if it was trained on other images first, else ``no``.
        seeds: number of trainings.
        source: address, with the commit.
        values: metric to the number as it was printed, with its digits.
    """

    method: str
    stream: str
    protocol: str
    test_set: str
    backbone: str
    pretrained: str
    seeds: str
    source: str
    values: Mapping[str, str] = field(compare=False, default_factory=dict)

    @property
    def recipe(self) -> str:
        """Test set, backbone and seeds, in a few words."""
        start = "pretrained" if self.pretrained == "yes" else "from scratch"
        seeds = format_count(int(self.seeds), "seed")
        return f"{self.stream}, {self.test_set}, {self.backbone} {start}, {seeds}"


@cache
def load_published() -> tuple[PublishedResult, ...]:
    """Return all published results."""
    text = (
        files("clear_mlflow.comparison")
        .joinpath("published_results.csv")
        .read_text(encoding="utf-8")
    )
    values: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for line in csv.DictReader(text.splitlines()):
        metric, value = line.pop("metric"), line.pop("value")
        values.setdefault(tuple(line.items()), {})[metric] = value
    return tuple(PublishedResult(**dict(key), values=numbers) for key, numbers in values.items())


def select_published(
    conditions: Sequence[DatasetDescription], metrics: Sequence[str]
) -> tuple[PublishedResult, ...]:
    """Return published results of the same stream and protocol that have one of the metrics.

    conditions: test conditions of the compared runs. Streams of new classes, validation images and
    scores other than accuracy have none.
    """
    streams = {
        (dataset.name, dataset.protocol)
        for dataset in conditions
        if dataset.split == TEST and dataset.score.is_accuracy and not dataset.scenario
    }
    return tuple(
        result
        for result in load_published()
        if (result.stream, result.protocol) in streams and result.values.keys() & {*metrics}
    )
