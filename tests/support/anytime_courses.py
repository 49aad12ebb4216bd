"""Tests inside buckets whose counts are known."""

from clear_mlflow.core.anytime import AnytimeRow

STEPS = 10  # between two tests


def inside_bucket(bucket, counts, num_test, *, num_tests=None, keys=None):
    """Return the tests inside a bucket. *counts* are, test by test, the right images per bucket."""
    total = num_tests or len(counts)
    keys = keys or tuple(str(j + 1) for j in range(len(num_test)))
    return [
        AnytimeRow(
            bucket=bucket,
            test=number,
            num_tests=total,
            step=STEPS * number,
            num_steps=STEPS * (total + 1),
            buckets=keys,
            correct=tuple(right),
            num_instances=tuple(num_test),
        )
        for number, right in enumerate(counts, start=1)
    ]
