"""Class-incremental streams: each bucket has new classes.

CLEAR's authors propose this use of their data (Lin et al., arXiv:2201.06289). The names follow
van de Ven et al., Three types of incremental learning, doi:10.1038/s42256-022-00568-3.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.data.stream import DOMAIN, BucketStream

CLASS, TASK = "class", "task"
SCENARIOS = (DOMAIN, CLASS, TASK)

_OWN, _ALL = "own", "all"


@dataclass(frozen=True)
class ScenarioArguments:
    """Arguments of a scenario: which classes each bucket has.

    Args:
        classes_per_bucket: number of new classes in a bucket; the last bucket may have fewer.
        order: ``labels``, ``seed:N`` (shuffled with seed N), or all classes, separated by colons.
        times: ``own``: a bucket has the images of its part of the stream's time, so that drift and
            new classes come together; ``all``: images of all times.
    """

    classes_per_bucket: int = 2
    order: str = "labels"
    times: str = _OWN

    def __post_init__(self) -> None:
        if self.classes_per_bucket < 1 or self.times not in (_OWN, _ALL):
            raise ConfigError(
                f"scenario_args has classes_per_bucket={self.classes_per_bucket} and "
                f"times={safe_repr(self.times)}; expected at least 1, and own or all"
            )

    def sort_classes(self, class_names: Sequence[str]) -> list[str]:
        """Return all classes in the order in which buckets introduce them.

        Raises ConfigError if ``order`` does not name each class once.
        """
        names = list(class_names)
        if seed := re.fullmatch("seed:([0-9]{1,18})", self.order):
            random.Random(int(seed[1])).shuffle(names)  # noqa: S311 (an order, not a secret)
        elif self.order != "labels":
            names = self.order.split(":")
        if sorted(names) != sorted(class_names):
            raise ConfigError(
                f"scenario_args has order={safe_repr(self.order)}; expected labels, seed:N, or all "
                f"of {', '.join(class_names)[:200]}, each once, separated by colons"
            )
        return names


def apply_scenario(
    stream: BucketStream, scenario: str, arguments: Mapping[str, Any] | None = None
) -> BucketStream:
    """Return a stream whose buckets each have some of the classes.

    Each class is in one bucket. With ``times=own``, the default, a bucket has the images of its
    classes from its part of the stream's time, with ``times=all`` all of them. Test images stay
    test images. ``domain`` returns the stream itself. Raises ConfigError if the arguments do not
    fit the stream, and DataError if a bucket would be without images.
    """
    if scenario == DOMAIN:
        return stream
    parameters = ScenarioArguments(**(arguments or {}))
    size, uses_all_times = parameters.classes_per_bucket, parameters.times == _ALL
    dataset, num_times = stream.dataset, len(stream.dataset.buckets)
    names = parameters.sort_classes(dataset.class_names)
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    number = len(groups)
    if number < 2 or (not uses_all_times and number > num_times):
        raise ConfigError(
            f"scenario_args has classes_per_bucket={size}, which makes "
            f"{format_count(number, 'bucket')} of the {len(names)} classes; expected at least 2, "
            f"and with times=own at most the {format_count(num_times, 'bucket')} of the stream's "
            "time: pass times=all"
        )
    starts = [k * num_times // number for k in range(number + 1)]
    group_of_label = np.array([names.index(name) // size for name in dataset.class_names])
    buckets = group_of_label[stream.images.labels]
    rows = np.arange(len(buckets))
    if not uses_all_times:
        first, stop = (np.array(bounds)[buckets] for bounds in (starts[:-1], starts[1:]))
        rows = np.flatnonzero((first <= stream.images.buckets) & (stream.images.buckets < stop))
    rows = rows[np.lexsort((stream.images.buckets[rows],))]
    images = replace(stream.images.take(rows), buckets=buckets[rows])
    has_dates = dataset.times and not uses_all_times
    classes = [sorted(group, key=dataset.class_names.index) for group in groups]
    changed = stream.with_images(
        images,
        name=f"{dataset.name} ({scenario})",
        buckets=tuple(str(k + 1) for k in range(number)),
        times=tuple(dataset.times[start] for start in starts[:-1]) if has_dates else (),
        scenario={"name": scenario, **asdict(parameters), "classes": classes},
    )
    for train, test, group in zip(changed.train, changed.test, groups, strict=True):
        if not len(train) or not len(test):
            raise DataError(
                f"dataset {dataset.name} has {len(train)} training and {len(test)} test images of "
                f"{', '.join(group)[:200]} in that part of its time; expected some: "
                "pass scenario_args=times=all, or another order"
            )
    return replace(changed, time_stream=stream)
