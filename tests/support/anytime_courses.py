"""Tests within buckets with known counts."""

from clear_mlflow.core.anytime import AnytimeRow

STEPS = 10  # between two tests


def inside_bucket(bucket, counts, num_test, *, num_tests=None):
    """Return the tests within a bucket. *counts*: for each test, the correct images per bucket."""
    total = num_tests or len(counts)
    return [
        AnytimeRow(
            bucket=bucket,
            test=number,
            num_tests=total,
            step=STEPS * number,
            num_steps=STEPS * (total + 1),
            buckets=tuple(str(j + 1) for j in range(len(num_test))),
            correct=tuple(right),
            num_instances=tuple(num_test),
        )
        for number, right in enumerate(counts, start=1)
    ]
