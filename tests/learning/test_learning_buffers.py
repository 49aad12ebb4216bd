"""The content of each buffer, compared with its algorithm and its probabilities."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_streams import config
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.buffers import BUFFERS, AuthorsReservoir, get_buffer_class
from clear_mlflow.learning.device import RngPurpose, build_generator
from clear_mlflow.learning.strategies import parse_strategy_arguments

CLASSES = 4
streams = st.lists(
    st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=15), min_size=1, max_size=4
)


def build_buffer(name, capacity, *, alpha=None, seed=0):
    alpha = alpha or ("2" if name == "biased_reservoir" else "none")
    return get_buffer_class(name)(capacity=capacity, num_classes=CLASSES, seed=seed, alpha=alpha)


def fill_buffer(buffer, labels_of_buckets):
    for bucket_index, labels in enumerate(labels_of_buckets):
        buffer.update(bucket_index, np.array(labels))
    return buffer


def held(buffer):
    """Return (bucket, index) of the images in a buffer."""
    indices = buffer.sample_indices
    return list(zip(indices.bucket.tolist(), indices.index.tolist(), strict=True))


def fill_and_list(name, capacity, labels_of_buckets, **options):
    return held(fill_buffer(build_buffer(name, capacity, **options), labels_of_buckets))


@pytest.mark.parametrize("name", BUFFERS)
@settings(max_examples=25, deadline=None)
@given(labels_of_buckets=streams, capacity=st.integers(1, 12))
def test_a_buffer_returns_the_kept_indices(name, labels_of_buckets, capacity):
    buffer = build_buffer(name, capacity)
    retained = []
    for bucket_index, labels in enumerate(labels_of_buckets):
        candidates = retained + [(bucket_index, index) for index in range(len(labels))]
        retained = [candidates[i] for i in buffer.update(bucket_index, np.array(labels))]
        assert held(buffer) == retained
        assert len(set(retained)) == len(buffer) <= capacity
        assert buffer.labels.tolist() == [labels_of_buckets[b][i] for b, i in retained]
        num_seen = sum(map(len, labels_of_buckets[: bucket_index + 1]))
        if name != "greedy_balanced":  # it may leave a place to a class yet to come
            assert len(buffer) == min(num_seen, capacity)


@pytest.mark.parametrize("name", BUFFERS)
def test_the_buffers_content_depends_on_the_seed(name):
    labels = [[0, 1, 2, 3] * 10] * 3
    first, same, other = (fill_and_list(name, 12, labels, seed=s) for s in (1, 1, 2))
    assert first == same
    assert first != other


def arrivals(seed, bucket_index, count):
    """Return a biased reservoir's draws for a bucket: order, luck and places."""
    draws = build_generator(seed, RngPurpose.BUFFER, bucket_index)
    order = torch.randperm(count, generator=draws).tolist()
    luck = torch.rand(count, generator=draws, dtype=torch.float64).tolist()
    return order, luck, draws


@pytest.mark.parametrize("alpha", ["0.5", "1", "2.5", "0.75n/k", "1*n/k"])
@settings(max_examples=25, deadline=None)
@given(labels_of_buckets=streams, capacity=st.integers(1, 12))
def test_biased_reservoir_equals_the_papers_loop(alpha, labels_of_buckets, capacity):
    """When full, each image replaces a stored one with probability alpha k / n."""
    reservoir, n = [], 0
    for bucket_index, labels in enumerate(labels_of_buckets):
        order, luck, draws = arrivals(0, bucket_index, len(labels))
        slots = torch.randint(capacity, (len(labels),), generator=draws).tolist()
        for image, chance, slot in zip(order, luck, slots, strict=True):
            n += 1
            if len(reservoir) < capacity:
                reservoir.append((bucket_index, image))
                continue
            value = {"0.75n/k": 0.75 * n / capacity, "1*n/k": n / capacity}.get(alpha)
            value = float(alpha) if value is None else value
            if chance < value * capacity / n - 1e-12:
                reservoir[slot] = (bucket_index, image)
        reservoir.sort()  # the buffer keeps the order of the stream; a random place is one in any
    expected = fill_and_list("biased_reservoir", capacity, labels_of_buckets, alpha=alpha)
    assert expected == reservoir


@pytest.mark.parametrize("alpha", ["0.5", "1", "2.5", "0.75n/k"])
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), capacity=st.integers(1, 18))
def test_the_authors_reservoir_equals_their_storage_policy(alpha, sizes, capacity):
    """At most as many images of a bucket as fit. New ones replace the newest at the end."""
    buffer_index_list = []
    buffer = AuthorsReservoir(capacity=capacity, num_classes=1, seed=0, alpha=alpha)
    for experience, size in enumerate(sizes):
        draws = build_generator(0, RngPurpose.BUFFER, experience)
        indices = list(range(size))
        if size > capacity:
            indices = torch.randperm(size, generator=draws).tolist()[:capacity]
        luck = torch.rand(len(indices), generator=draws, dtype=torch.float64).tolist()
        new_items = []
        for index, chance in zip(indices, luck, strict=True):
            if len(buffer_index_list) < capacity:
                buffer_index_list.append((experience, index))
                continue
            dynamic = alpha.endswith("n/k")
            prob = float(alpha.removesuffix("n/k")) / (1 if dynamic else experience + 1)
            if chance <= prob:
                new_items.append((experience, index))
        buffer_index_list = buffer_index_list[: len(buffer_index_list) - len(new_items)] + new_items
        buffer.update(experience, np.zeros(size, dtype=np.int64))
        assert held(buffer) == buffer_index_list


def test_the_authors_reservoir_has_all_classes_of_a_sorted_bucket():
    """CLEAR-100: a third of a bucket whose files are sorted by class."""
    labels = np.repeat(np.arange(100), 99)
    buffer = AuthorsReservoir(capacity=3300, num_classes=100, seed=0, alpha="1")
    for bucket_index in range(2):
        buffer.update(bucket_index, labels)
        counts = np.bincount(buffer.labels, minlength=100)
        assert counts.sum() == 3300
        assert counts.min() >= 15  # 33 on average, with a deviation of less than 5
        assert len(set(held(buffer))) == 3300


def chances(sizes, capacity, insertion):
    """Return the probability that an image of each bucket remains, step by step."""
    total = sum(sizes)
    of_arrival = []
    for n in range(1, total + 1):
        survival = 1.0 if n <= capacity else min(1.0, insertion(n))
        for later in range(max(n, capacity) + 1, total + 1):
            survival *= 1 - min(1.0, insertion(later)) / capacity
        of_arrival.append(survival)
    starts = np.cumsum([0, *sizes])
    return [np.mean(of_arrival[a:b]) for a, b in itertools.pairwise(starts)]


RUNS = 800


def assert_frequencies(labels_of_buckets, expected, name, capacity, **options):
    counts = Counter()
    for seed in range(RUNS):
        counts.update(fill_and_list(name, capacity, labels_of_buckets, seed=seed, **options))
    for bucket_index, (labels, p) in enumerate(zip(labels_of_buckets, expected, strict=True)):
        five_sigma = 5 * (p * (1 - p) / RUNS) ** 0.5
        for index in range(len(labels)):
            assert counts[bucket_index, index] / RUNS == pytest.approx(p, abs=five_sigma)


@pytest.mark.parametrize(
    ("name", "alpha", "insertion"),
    [
        ("reservoir", None, lambda n: 5 / n),
        ("biased_reservoir", "1", lambda n: 5 / n),
        ("biased_reservoir", "3", lambda n: 3 * 5 / n),
        ("biased_reservoir", "0.5", lambda n: 0.5 * 5 / n),
        ("biased_reservoir", "0.4n/k", lambda n: 0.4),
    ],
)
def test_inclusion_probabilities_match_theory(name, alpha, insertion):
    sizes, capacity = (8, 4, 10), 5
    labels = [sorted([0, 1, 2, 3] * 3)[:size] for size in sizes]
    expected = chances(sizes, capacity, insertion)
    assert sum(p * size for p, size in zip(expected, sizes, strict=True)) == pytest.approx(capacity)
    if insertion(7) * 7 == 5:
        assert expected == pytest.approx([capacity / sum(sizes)] * 3)  # Vitter: uniform
    assert_frequencies(labels, expected, name, capacity, alpha=alpha)


def test_class_balanced_keeps_every_image_of_a_class_with_the_same_probability():
    labels = [[0, 1, 2, 3] * 3, [3, 2, 1, 0], [0, 1, 2, 3] * 2]
    assert_frequencies(labels, [2 / 6] * 3, "class_balanced", 2 * CLASSES)


@pytest.mark.parametrize(
    "alpha", ["0", "-1", "nan", "inf", "n/k", "1.5n/k", "0n/k", "dynamic", "none", "2n", "2n/k "]
)
def test_an_invalid_alpha_is_a_one_line_error(alpha):
    parameters = config(strategy="replay", strategy_args=f"buffer=biased_reservoir,alpha={alpha}")
    message = r"alpha=2, or a multiple of n/k, .* alpha=0\.75n/k"
    assert re.search(message, check_error(ConfigError, "", parse_strategy_arguments, parameters))


@pytest.mark.parametrize("name", sorted(set(BUFFERS) - {"biased_reservoir"}))
def test_alpha_without_effect_is_rejected(name):
    with pytest.raises(ConfigError, match="only buffer=biased_reservoir takes"):
        parse_strategy_arguments(config(strategy="replay", strategy_args=f"buffer={name},alpha=2"))


@settings(max_examples=25, deadline=None)
@given(labels_of_buckets=streams, capacity=st.integers(1, 12))
def test_greedy_balanced_equals_algorithm_1_of_gdumb(labels_of_buckets, capacity):
    """The paper's loop: Y classes seen, C counts, D the memory of pairs."""
    seen_classes, counts, memory = set(), {}, []
    for bucket_index, labels in enumerate(labels_of_buckets):
        order, luck, _ = arrivals(0, bucket_index, len(labels))
        for image, chance in zip(order, luck, strict=True):
            y = labels[image]
            if y not in seen_classes or counts[y] < capacity / len(seen_classes):
                if sum(counts.values()) >= capacity:
                    y_r = min(counts, key=lambda c: (-counts[c], c))
                    of_class = [pair for pair in memory if pair[1] == y_r]
                    memory.remove(of_class[int(chance * len(of_class))])
                    counts[y_r] -= 1
                memory.append(((bucket_index, image), y))
                counts[y] = counts.get(y, 0) + 1
                seen_classes.add(y)
        # Between buckets, the buffer keeps the order of the stream.
        memory.sort()
        buffer = build_buffer("greedy_balanced", capacity)
        fill_buffer(buffer, labels_of_buckets[: bucket_index + 1])
        assert list(zip(held(buffer), buffer.labels.tolist(), strict=True)) == memory
