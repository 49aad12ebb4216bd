"""Invalid rows, probabilities and metadata of custom loops are one-line errors."""

import numpy as np
import pandas as pd
import pytest
from trainings import NUM_TEST

import clear_mlflow
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.tracking.loop_rows import (
    build_count_row,
    build_prediction_row,
    build_test,
    build_value_row,
)

LOOP = {"buckets": 4, "num_instances": NUM_TEST}


def describe_loop(**options):
    return clear_mlflow.track(**options).dataset


@pytest.mark.parametrize("value", [2**53 + 1, np.uint64(2**60 + 1), -(10**40) - 1])
def test_an_integer_that_a_float_would_round_is_rejected(value):
    loop = describe_loop(buckets=2, score="loss")
    with pytest.raises(RecordError, match="which a float would round to"):
        build_value_row(loop, 1, [1, value])
    assert build_value_row(loop, 1, {1: 2**53, 2: 2**60}).cells == (2**53, 2**60)


def test_a_series_of_pandas_is_read_by_its_index():
    """As groupby returns it, in alphabetical order; by position if its index only counts."""
    counts = pd.Series({"spring": 20, "winter": 10})
    loop = describe_loop(buckets=["winter", "spring"], num_instances=counts)
    assert loop.num_test == (10, 20)
    assert build_count_row(loop, 1, counts // 5).correct == (2, 4)
    assert build_value_row(loop, "winter", counts / 100).cells == (0.1, 0.2)
    for index in (None, [1, 2]):
        assert build_count_row(loop, 1, pd.Series([3, 4], index)).correct == (3, 4)
    for index, message in (("aa", "two entries for one bucket"), ([2, 1], "names bucket '2'")):
        with pytest.raises(ConfigError, match=message):
            build_count_row(loop, 1, pd.Series([3, 4], list(index)))


LABELS = [[0, 1, 2], [2, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((build_count_row, 1, [1, 2, 3]), "correct has 3 entries for 4 buckets"),
        (
            (build_count_row, 1, [1.5, 2, 3, 4]),
            r"correct is 1.5; expected a whole number \(fractions go to log_accuracies",
        ),
        ((build_count_row, 1, [101, 2, 3, 4]), "expected 0 to its num_instances, 100"),
        ((build_count_row, 1, "1234"), "expected one entry per bucket"),
        ((build_count_row, 1, None), "expected one entry per bucket"),
        ((build_count_row, 1, {"1": 1, "9": 1}), "names bucket '9'"),
        ((build_count_row, 1, {"1": 1}), "lacks bucket '2'"),
        (
            (build_count_row, 1, {"1": 1, 1: 5, "2": 2, 3: 3, 4: 4}),
            "correct has two entries for .*'1'",
        ),
        ((build_value_row, 1, {"1": 0.1, np.int64(1): 0.5}), "accuracy has two entries for"),
        (
            (build_count_row, 5, [1, 2, 3, 4]),
            "after is 5; expected the buckets trained so far, 0 to 4",
        ),
        ((build_count_row, "5", [1, 2, 3, 4]), "or the name of the last one as a text: '1', '2'"),
        ((build_count_row, 1.0, [1, 2, 3, 4]), "after is 1.0; expected a whole number"),
        ((build_value_row, 1, [55, 60, 70, 80]), "not percent"),
        ((build_prediction_row, 1, [1, 2]), "the images are not known"),
    ],
)
def test_an_invalid_row_is_rejected_in_one_line(row, message):
    measured, *arguments = row
    with pytest.raises((ConfigError, RecordError), match=message) as caught:
        measured(describe_loop(**LOOP), *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("loop", "correct", "message"),
    [
        (
            {"buckets": 2, "score": "rmse"},
            [1, 2],
            "counts correct images, but the score is rmse; leave log_test out",
        ),
        ({"buckets": 2}, [1, 2], "num_instances is not known; pass it to track$"),
        ({"buckets": 2, "num_instances": 9}, [0.5, 1], r"correct is 0.5; expected a \w+ number$"),
    ],
)
def test_advice_about_a_test_within_a_bucket_names_no_other_method(loop, correct, message):
    """There is only log_test for it: neither values nor fractions can be logged."""
    numbers = {"test": 1, "num_tests": 1, "step": 1, "num_steps": 2}
    with pytest.raises(ConfigError, match=message):
        build_test(describe_loop(**loop), 1, correct, **numbers)


@pytest.mark.parametrize(
    "keys",
    [
        *(np.array(["2004", "2005"]), np.array([2004, 2005]), pd.Index(["2004", "2005"])),
        *(pd.period_range("2004", periods=2, freq="Y"), {"2004": 1, "2005": 2}.keys()),
        (year for year in (2004, 2005)),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_buckets_may_be_any_iterable(keys):
    assert describe_loop(buckets=keys).buckets == ("2004", "2005")


@pytest.mark.parametrize(
    "row",
    [
        *([0.5, 0.511, 0.0], [0.989, 0.0, 0.0], [1.5, -0.5, 0.0], [1.005, 0.0, -0.005]),
        [np.nan, 1.0, 0.0],
    ],
)
def test_invalid_probabilities_are_rejected(row):
    """A sum may differ from 1 by rounding, but no probability is negative."""
    loop = describe_loop(buckets=3, test_labels=LABELS)
    outputs = [np.full((count, 3), 1 / 3) for count in (3, 2, 4)]
    for rounded in (0.992, 1.008):
        outputs[0][0] = [rounded, 0.0, 0.0]
        build_prediction_row(loop, 1, outputs)
    outputs[1][1] = row
    with pytest.raises(ConfigError, match="probabilities of row 1 do not add up to 1"):
        build_prediction_row(loop, 1, outputs)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            [["cat"] * 3, ["dog"] * 2, ["cat"] * 4],
            "are texts of .*; expected a class index, 0 to C",
        ),
        ([[256, 257, 258], [2, 1], [0] * 4], r"contain class \d+; expected 0 to 2: pass"),
        ([[3] * 3, [2, 1], [0] * 4], "contain class 3; expected 0 to 2: pass"),
    ],
)
def test_an_unknown_class_is_rejected(outputs, message):
    """Before it is stored in eight bits, where 256 would become 0."""
    loop = describe_loop(buckets=3, test_labels=LABELS)
    with pytest.raises(ConfigError, match=f"row 1 {message}"):
        build_prediction_row(loop, 1, outputs)


def test_masked_entries_are_rejected():
    """NumPy would use what is below the mask."""
    loop = describe_loop(buckets=3, test_labels=LABELS)
    masked = [
        np.ma.array([1] * len(labels), mask=[1] + [0] * (len(labels) - 1)) for labels in LABELS
    ]
    with pytest.raises(ConfigError, match="expected an array without masked entries"):
        build_prediction_row(loop, 1, masked)
    with pytest.raises(ConfigError, match="expected an array without masked entries"):
        describe_loop(buckets=3, test_labels=masked)
    with pytest.raises(ConfigError, match="correct is None; expected a whole number"):
        build_count_row(describe_loop(**LOOP), 1, np.ma.array([1, 2, 3, 4], mask=[1, 0, 0, 0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buckets": 0}, "buckets is 0"),
        ({"buckets": 5000}, "buckets is 5000; expected 1 to 1000,"),
        ({"buckets": list(range(5000))}, "buckets has 5,000 keys; expected 1 to 1000"),
        ({"buckets": ["a", "a"]}, "occurs twice"),
        ({"buckets": ["a", None]}, "buckets contains None; expected names or whole numbers"),
        ({"buckets": "2004"}, "buckets is '2004'; expected a list of names, or how many"),
        ({"buckets": {"a"}}, "buckets is {'a'}; expected a list of names"),
        ({"buckets": 2, "params": [1]}, r"params is \[1\]; expected a dictionary"),
        ({"buckets": 2, "test_labels": [[0], []]}, "test_labels lacks a bucket's images"),
        ({"buckets": 2, "num_instances": [5]}, "num_instances has 1 entry for 2"),
        ({"buckets": 2, "num_instances": 0}, "expected 1 to 2"),
        ({"buckets": 2, "protocol": "offline"}, "protocol is 'offline'"),
        ({"buckets": 2, "seed": "7"}, "seed is '7'; expected a whole number"),
        ({"buckets": 2, "seed": 2**64}, "expected an integer of at most 64 bits"),
        ({"buckets": 2, "metrics": None}, "metrics is None; expected names of families"),
        ({"buckets": 2, "metrics": []}, r"metrics is \[\]; expected names of families"),
        ({"buckets": 2, "metrics": [max]}, "clear_mlflow.evaluate computes custom functions"),
        ({"buckets": 2, "dataset": ""}, "the dataset's name is ''"),
        ({"buckets": 2, "tags": {"mlflow.user": "root"}}, "'mlflow.user'"),
        ({"buckets": 2, "seed": 3, "tags": {"seed": "9"}}, "tags have seed='9', but seed is '3'"),
        (
            {"buckets": 2, "strategy": "a", "params": {"strategy": "b"}},
            "params have strategy='b', but strategy is 'a'; pass it once",
        ),
        ({"buckets": 2, "dataset": "a", "tags": {"dataset": "b"}}, "tags have dataset='b'"),
        ({"buckets": 2, "num_instances": {1: 5, "1": 6, 2: 7}}, "num_instances has two entries"),
        ({"buckets": 2, "test_labels": {1: [0], "1": [1], 2: [1]}}, "test_labels has two entries"),
        (
            {"buckets": 2, "test_labels": [[0], [1]], "test_ids": {1: "a", "1": "b", 2: "c"}},
            "test_ids has two entries for bucket '1'",
        ),
        ({"buckets": 2, "test_ids": [["a"], ["b"]]}, "without test_labels"),
        ({"buckets": 2, "test_labels": [[0]]}, "test_labels has 1 entry for 2"),
        ({"buckets": 2, "test_labels": [[0], [0.5]]}, "test_labels of bucket '2' are float64"),
        ({"buckets": 2, "test_labels": [[0], [1]], "num_instances": 2}, "leave num_instances out"),
        ({"buckets": 2, "test_labels": [[0], [5]], "class_names": ["a"]}, "do not fit"),
    ],
)
def test_invalid_loop_metadata_is_rejected_in_one_line(arguments, message):
    with pytest.raises((ConfigError, RecordError), match=message) as refusal:
        clear_mlflow.track(**arguments)
    assert "\n" not in str(refusal.value)
