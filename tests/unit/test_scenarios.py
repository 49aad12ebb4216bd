"""Streams of new classes, made of streams of time."""

import itertools
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_trees import list_buckets

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data import Entry, build_index
from clear_mlflow.data.scenarios import apply_scenario
from clear_mlflow.data.stream import build_stream, describe_stream
from clear_mlflow.learning.parameters.config import TrainConfig

NAMES = tuple("abcdefg")
YEARS = ("2004", "2005", "2006", "2007")


def made(*, without=(), split="2", protocol="iid"):
    draws, rows = np.random.default_rng(0), []
    for year, name in itertools.product(YEARS, NAMES):
        rows += [(name, year)] * (0 if (name, year) in without else 10)
    entries = [Entry(i, name, year) for i, (name, year) in enumerate(rows)]
    vectors = draws.normal(size=(len(rows), 3))
    image_index = build_index(entries, vectors=vectors, root=Path())
    return build_stream(image_index, name="made", split=split, protocol=protocol)


def contents(stream, split):
    label_by_content = {}
    for bucket in list_buckets(stream):
        images = getattr(bucket, split)
        label_by_content |= zip(images.contents, images.labels.tolist(), strict=True)
    return label_by_content


def list_classes(stream, split):
    sets = (np.unique(getattr(bucket, split).labels) for bucket in list_buckets(stream))
    return [[stream.dataset.class_names[label] for label in labels] for labels in sets]


def sides(stream):
    return [
        (b.key, sorted(b.train.contents), sorted(b.test.contents)) for b in list_buckets(stream)
    ]


def test_domain_is_the_stream_itself():
    stream = made()
    assert apply_scenario(stream, "domain") is stream


def test_each_bucket_has_its_own_classes():
    stream = made()
    scenario = apply_scenario(stream, "class", {"classes_per_bucket": 2, "times": "all"})
    assert list_classes(scenario, "train") == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]
    assert list(scenario.dataset.buckets) == ["1", "2", "3", "4"]
    dataset = scenario.dataset
    assert (dataset.name, dataset.class_names, dataset.times) == ("made (class)", NAMES, ())
    for split in ("train", "test"):
        assert contents(scenario, split) == contents(stream, split)
    for bucket, classes in zip(list_buckets(scenario), list_classes(scenario, "test"), strict=True):
        assert {scenario.dataset.class_names[label] for label in bucket.test.labels} == set(classes)
        for content, vector in zip(bucket.test.contents, bucket.test.vectors[:], strict=True):
            where = next(b for b in stream.test if content in b.contents)
            assert where.vectors[:][where.contents.index(content)].tolist() == vector.tolist()


def test_in_the_streams_own_time_new_classes_come_with_drift():
    stream = made()
    scenario = apply_scenario(stream, "class", {"classes_per_bucket": 4})
    assert [*map(str, scenario.dataset.times)] == ["2004-01-01", "2006-01-01"]
    halves = stream.train[:2], stream.train[2:]
    for images, years, classes in zip(scenario.train, halves, ("abcd", "efg"), strict=True):
        expected = {
            content
            for year in years
            for content, label in zip(year.contents, year.labels, strict=True)
            if NAMES[label] in classes
        }
        assert set(images.contents) == expected


def test_remaining_years_go_to_the_later_buckets():
    stream = made()
    buckets = apply_scenario(stream, "class", {"classes_per_bucket": 3})
    assert [day.year for day in buckets.dataset.times] == [2004, 2005, 2006]
    year_of = {
        content: year.key for year in list_buckets(stream) for content in year.train.contents
    }
    years = [{year_of[content] for content in bucket.contents} for bucket in buckets.train]
    assert years == [{"2004"}, {"2005"}, {"2006", "2007"}]


def test_the_class_order_is_given_or_random():
    stream = made()
    named_order = apply_scenario(stream, "class", {"order": "g:f:e:d:c:b:a", "times": "all"})
    assert list_classes(named_order, "train")[0] == ["f", "g"]
    orders = [{"order": f"seed:{seed}", "times": "all"} for seed in (1, 1, 2)]
    drawn_order, again, other = (apply_scenario(stream, "class", order) for order in orders)
    assert sides(drawn_order) == sides(again) != sides(other)


def test_scenarios_and_orders_have_their_own_digest():
    stream = made()
    cases = itertools.product(("class", "task"), ("labels", "seed:1"))
    streams = [apply_scenario(stream, name, {"times": "all", "order": o}) for name, o in cases]
    assert len({s.dataset.digest for s in (stream, *streams)}) == 5
    assert sides(streams[0]) == sides(streams[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes_per_bucket": 0}, "expected at least 1"),
        ({"times": "some"}, "own or all"),
        ({"order": "a:b"}, "expected labels, seed:N, or all of a, b, c, d, e, f, g"),
        ({"order": "a:a:b:c:d:e:f"}, "each once"),
        ({"classes_per_bucket": 7}, "makes 1 bucket of the 7 classes"),
        ({"classes_per_bucket": 1}, "makes 7 buckets of the 7 classes"),
    ],
)
def test_an_impossible_division_of_classes_is_a_one_line_error(arguments, message):
    with pytest.raises(ConfigError, match=message):
        apply_scenario(made(), "class", arguments)


def test_a_class_missing_in_its_time_is_a_one_line_error():
    stream = made(without={("a", "2004"), ("b", "2004")})
    with pytest.raises(DataError, match="has 0 training and 0 test images of a, b"):
        apply_scenario(stream, "class", {"classes_per_bucket": 2})


def test_the_missing_one_of_two_classes_is_named():
    stream = made(without={("b", "2004")})
    complete = apply_scenario(stream, "task", {"classes_per_bucket": 4})
    assert describe_stream(complete).absent_classes == {}
    scenario = apply_scenario(stream, "task", {"classes_per_bucket": 2})
    assert list_classes(scenario, "train")[0] == ["a"]
    classes = [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]
    arguments = {"classes_per_bucket": 2, "order": "labels", "times": "own"}
    assert scenario.dataset.scenario == {"name": "task", **arguments, "classes": classes}
    assert describe_stream(scenario).absent_classes == {"train": {"1": ["b"]}, "test": {"1": ["b"]}}


def test_run_names_contain_the_scenario():
    assert TrainConfig.resolve({"scenario": "task"}).stream_name == "digits (task)"


def list_images(stream):
    """Return the key, content, class and set of each image, bucket by bucket."""
    return [
        (key, content, stream.dataset.class_names[label], is_test)
        for key, (train, test) in (
            (bucket.key, (bucket.train, bucket.test)) for bucket in list_buckets(stream)
        )
        for is_test, images in ((False, train), (True, test))
        for content, label in zip(images.contents, images.labels.tolist(), strict=True)
    ]


def divide_by_loops(stream, size, order, times):
    """Return what list_images of a scenario should return, or None if it is impossible."""
    names, periods = list(stream.dataset.class_names), list(stream.dataset.buckets)
    if order.startswith("seed:"):
        random.Random(int(order[5:])).shuffle(names)
    elif order != "labels":
        names = order.split(":")
    groups = []
    while names:
        groups.append(names[:size])
        names = names[size:]
    if len(groups) < 2 or (times == "own" and len(groups) > len(periods)):
        return None
    images = []
    for k, group in enumerate(groups):
        # Bucket k has the periods from k T / K to (k + 1) T / K, rounded down.
        first = int(Fraction(k * len(periods), len(groups)))
        stop = int(Fraction((k + 1) * len(periods), len(groups)))
        allowed = periods if times == "all" else periods[first:stop]
        part = [
            (str(k + 1), content, name, is_test)
            for period, content, name, is_test in list_images(stream)
            if name in group and period in allowed
        ]
        if {is_test for *_, is_test in part} != {False, True}:
            return None
        images += sorted(part, key=lambda image: image[3])
    return images


@given(
    st.integers(1, 7),
    st.sampled_from(["labels", "seed:0", "seed:3", "g:b:a:f:c:e:d"]),
    st.sampled_from(["own", "all"]),
    st.sampled_from(["0", "2", "stream:1", "validation:0", "validation:stream:1"]),
    st.sampled_from(["iid", "streaming"]),
    st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(YEARS)), max_size=12),
)
def test_a_scenario_is_what_loops_over_its_images_select(
    size, order, times, split, protocol, without
):
    assume(all({(n, y) for n in NAMES} - without for y in YEARS))
    assume(all({(n, y) for y in YEARS} - without for n in NAMES))
    split = "auto" if protocol == "streaming" else split
    stream = made(without=without, split=split, protocol=protocol)
    expected = divide_by_loops(stream, size, order, times)
    arguments = {"classes_per_bucket": size, "order": order, "times": times}
    if expected is None:
        with pytest.raises((ConfigError, DataError)):
            apply_scenario(stream, "class", arguments)
        return
    scenario = apply_scenario(stream, "class", arguments)
    images = list_images(scenario)
    assert [image[0] for image in images] == [image[0] for image in expected]
    assert sorted(images) == sorted(expected)
    assert scenario.dataset.num_train is None
    described = describe_stream(scenario)
    for counts, is_test in ((described.num_train, False), (described.num_test, True)):
        keys = Counter(key for key, *_, side in expected if side == is_test)
        assert counts == tuple(keys[bucket] for bucket in scenario.dataset.buckets)
    task = apply_scenario(stream, "task", arguments)
    assert list_images(task) == images
