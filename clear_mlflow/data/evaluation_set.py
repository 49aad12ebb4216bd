"""Which test images a stream has, in the order in which a model is tested on them."""

from __future__ import annotations

import numpy as np

from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.data.stream import BucketStream


def evaluation_set(stream: BucketStream) -> EvaluationSet:
    """The test images of all buckets; their contents are those that the stream's digest is of."""
    tested = [bucket.test for bucket in stream.buckets]
    contents = b"".join(bytes.fromhex(c)[:16] for images in tested for c in images.contents)
    return EvaluationSet(
        buckets=tuple(bucket.key for bucket in stream.buckets),
        class_names=stream.class_names,
        bucket=np.repeat(np.arange(len(tested)), [len(i) for i in tested]).astype(np.uint16),
        label=np.concatenate([images.labels for images in tested]).astype(np.uint16),
        content=np.frombuffer(contents, dtype=np.uint8).reshape(-1, 16).copy(),
        names=tuple(path.stem for images in tested for path in images.paths),
    )
