"""A stream of time made one of new classes: each bucket brings classes of its own.

CLEAR's authors propose this use of their data (Lin et al., arXiv:2201.06289). The names are those
of van de Ven et al., Three types of incremental learning, doi:10.1038/s42256-022-00568-3.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.checking.content import stream_digest
from clear_mlflow.data.stream import DOMAIN, Bucket, BucketStream, ImageSet, Vectors

CLASS, TASK = "class", "task"
SCENARIOS = (DOMAIN, CLASS, TASK)

_OWN, _ALL = "own", "all"


@dataclass(frozen=True)
class ScenarioArguments:
    """How classes are dealt out to buckets.

    Args:
        classes_per_bucket: how many a bucket brings; the last has what is left.
        order: ``labels``, ``seed:N`` (drawn with seed N), or all classes with colons between.
        times: ``own``: the images of a bucket's classes are those of its part of the stream's time,
            so that drift and new classes come together; ``all``: those of all times.
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

    def ordered(self, class_names: Sequence[str]) -> list[str]:
        """All classes in the order in which they come."""
        names = list(class_names)
        if drawn := re.fullmatch("seed:([0-9]{1,18})", self.order):
            random.Random(int(drawn[1])).shuffle(names)  # noqa: S311 (an order, not a secret)
        elif self.order != "labels":
            names = self.order.split(":")
        if sorted(names) != sorted(class_names):
            raise ConfigError(
                f"scenario_args has order={safe_repr(self.order)}; expected labels, seed:N, or all "
                f"of {', '.join(class_names)[:200]}, each once, with colons between"
            )
        return names


def in_scenario(
    stream: BucketStream, scenario: str, arguments: Mapping[str, Any] | None = None
) -> BucketStream:
    """The same images, each on the side of the split that it was on, in buckets of new classes."""
    if scenario == DOMAIN:
        return stream
    given = ScenarioArguments(**(arguments or {}))
    names, size = given.ordered(stream.class_names), given.classes_per_bucket
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    of_stream, number = stream.buckets, len(groups)
    if number < 2 or (given.times == _OWN and number > len(of_stream)):
        raise ConfigError(
            f"scenario_args has classes_per_bucket={size}, which makes {number} buckets of the "
            f"{len(names)} classes; expected at least 2, and with times=own at most the "
            f"{len(of_stream)} buckets of the stream's time: pass times=all"
        )
    starts = [k * len(of_stream) // number for k in range(number + 1)]
    buckets = []
    for k, group in enumerate(groups):
        parts = of_stream if given.times == _ALL else of_stream[starts[k] : starts[k + 1]]
        labels = [stream.class_names.index(name) for name in group]
        train, test = (
            _joined([getattr(bucket, split) for bucket in parts], labels)
            for split in ("train", "test")
        )
        if not len(train) or not len(test):
            raise DataError(
                f"dataset {stream.name} has {len(train)} training and {len(test)} test images of "
                f"{', '.join(group)[:200]} in that part of its time; expected some: pass "
                "scenario_args=times=all, or another order"
            )
        buckets.append(Bucket(str(k + 1), train, test))
    has_dates = stream.times and given.times == _OWN
    return replace(
        stream,
        name=f"{stream.name} ({scenario})",
        buckets=tuple(buckets),
        digest=stream_digest(buckets, stream.class_names, stream.tested_on, scenario),
        times=tuple(stream.times[start] for start in starts[:-1]) if has_dates else (),
        scenario=scenario,
        dealt=tuple(tuple(sorted(group, key=stream.class_names.index)) for group in groups),
        of_time=stream,
    )


def _joined(sets: Sequence[ImageSet], labels: Sequence[int]) -> ImageSet:
    """The images of some classes in several sets, one set after the other."""
    chosen = [images.take(np.flatnonzero(np.isin(images.labels, labels))) for images in sets]
    of_labels = np.concatenate([images.labels for images in chosen])
    of_labels.setflags(write=False)
    vectors = [images.vectors for images in chosen if images.vectors is not None]
    return ImageSet(
        paths=tuple(path for images in chosen for path in images.paths),
        labels=of_labels,
        contents=tuple(content for images in chosen for content in images.contents),
        vectors=Vectors(vectors[0].array, np.concatenate([v.rows for v in vectors]))
        if vectors
        else None,
    )
