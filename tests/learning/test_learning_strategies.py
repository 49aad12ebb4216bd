"""The training set of each strategy, compared with its definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_streams import CPU, config, random_stream, read_pixels

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.device import RngPurpose, build_generator
from clear_mlflow.learning.samples import DecodedStream, Samples
from clear_mlflow.learning.strategies import load_strategy, parse_strategy_arguments


class NumberedStream:
    """A decoded stream whose images are one pixel, the image's number."""

    def __init__(self, labels_of_buckets, num_classes):
        self.num_classes = num_classes
        self.train_counts = tuple(len(labels) for labels in labels_of_buckets)
        numbers = iter(range(1000))
        self.buckets = []
        for labels in labels_of_buckets:
            images = torch.tensor([next(numbers) for _ in labels]).reshape(-1, 1, 1, 1)
            self.buckets.append(Samples(images, torch.tensor(labels, dtype=torch.int64)))

    def train(self, bucket_index):
        return self.buckets[bucket_index]

    def labels(self, bucket_index):
        return self.buckets[bucket_index].labels.numpy()

    def select(self, indices):
        chosen = list(zip(indices.bucket, indices.index, strict=True))
        images = torch.stack([self.buckets[bucket].images[index] for bucket, index in chosen])
        labels = torch.stack([self.buckets[bucket].labels[index] for bucket, index in chosen])
        return Samples(images, labels)


def made(strategy, stream, **changes):
    settings = config(strategy=strategy, **changes)
    arguments = parse_strategy_arguments(settings)
    return load_strategy(strategy)(settings, stream, torch.nn.Identity(), arguments)


def numbers(samples):
    return samples.images.flatten().tolist()


def literal_quotas(num_seen, memory):
    """Distribute places one by one in rounds, in the order of the labels."""
    quotas = [0] * len(num_seen)
    while memory and quotas != num_seen:
        for label, num_seen_of_class in enumerate(num_seen):
            if quotas[label] < num_seen_of_class and memory:
                quotas[label] += 1
                memory -= 1
    return quotas


def held(strategy, stream):
    buffer = strategy._buffer
    return numbers(stream.select(buffer.sample_indices)) if len(buffer) else []


def test_an_unknown_strategy_is_an_error_with_the_known_ones():
    """Only the package's own modules are imported by name."""
    for name in ("rehearsal", "_base", "os"):
        with pytest.raises(ConfigError, match=r"or one of .*cumulative, .*naive, .*replay"):
            load_strategy(name)


def test_cumulative_trains_on_all_buckets_so_far_in_stream_order(tmp_path):
    stream, _ = random_stream(tmp_path, train=(3, 1, 4), test=(1, 1, 1), side=8)
    decoded = DecodedStream(stream, image_size=8, device=CPU)
    strategy = made("cumulative", decoded)
    parts = []
    for bucket_index in range(3):
        samples = strategy.load_training_set(bucket_index)
        parts.append(decoded.train(bucket_index))
        assert torch.equal(read_pixels(samples), torch.cat([read_pixels(part) for part in parts]))
        assert torch.equal(samples.labels, torch.cat([part.labels for part in parts]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_the_buffer_equals_a_draw_from_the_complete_past(labels_of_buckets, memory):
    stream = NumberedStream(labels_of_buckets, 4)
    strategy = made("replay", stream, memory=memory)
    priority, seen_labels = {}, []
    for bucket_index, labels in enumerate(labels_of_buckets):
        held_before = held(strategy, stream)
        trained_on = strategy.load_training_set(bucket_index)
        assert numbers(trained_on) == numbers(stream.train(bucket_index)) + held_before
        strategy.after_bucket(bucket_index)
        draws = build_generator(0, RngPurpose.BUFFER, bucket_index)
        chances = torch.rand(len(labels), generator=draws, dtype=torch.float64).tolist()
        priority |= dict(zip(numbers(stream.train(bucket_index)), chances, strict=True))

        seen_labels += labels
        quotas = literal_quotas([seen_labels.count(label) for label in range(4)], memory)
        expected = []
        for label, quota in enumerate(quotas):
            of_class = [number for number, other in enumerate(seen_labels) if other == label]
            expected += sorted(of_class, key=priority.__getitem__)[:quota]
        now = held(strategy, stream)
        assert sorted(now) == sorted(expected)
        assert [seen_labels[number] for number in now] == strategy._buffer.labels.tolist()
