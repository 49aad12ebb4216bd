"""Tests inside buckets whose counts are known."""

from clear_mlflow.core.anytime.anytime_row import AnytimeRow

STEPS = 10  # between two tests


def inside_bucket(bucket, counts, num_test, *, num_tests=None, keys=None):
    """The tests inside a bucket, counted from 1.

    Args:
        bucket: that is trained on.
        counts: test by test, right images per bucket.
        num_test: images, per bucket.
        num_tests: that there should be, where some are missing at the end.
        keys: of the buckets.
    """
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
