"""The loop, compared with a literal implementation: its rows, errors and determinism."""

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from learning_streams import CPU, config, random_stream, read_pixels, squares
from torch import nn

from clear_mlflow.core.errors import ConfigError, TrainingError
from clear_mlflow.learning.device import autocast, resolve_device, translate_oom
from clear_mlflow.learning.loop import measure, train
from clear_mlflow.learning.models import build_model, get_head
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import DecodedStream, HeldOutImages, Samples, normalise
from clear_mlflow.learning.session import StreamTraining, check_stream, resolve_config
from clear_mlflow.learning.strategies import naive
from clear_mlflow.learning.strategies.naive import Naive
from clear_mlflow.learning.training.costs import CostMeter
from clear_mlflow.learning.training.trainer import Trainer


class Recorded(TrainingProgress):
    def __init__(self):
        self.calls = []

    def __exit__(self, *raised):
        self.calls.append(("left", raised[0]))

    def bucket_started(self, key, *, bucket_index, num_buckets):
        self.calls.append(("bucket", key, bucket_index, num_buckets))

    def steps_planned(self, num_steps):
        self.calls.append(("steps", num_steps))

    def step_done(self):
        self.calls.append(("step",))

    def row_measured(self, row):
        self.calls.append(("row", row))


def iter_trained(stream, progress=None, **changes):
    settings = config(**changes)
    decoded = DecodedStream(stream, image_size=settings.image_size, device=CPU)
    return train(decoded, settings, progress=progress or Recorded())


def eight_images():
    pixels = torch.randint(0, 256, (8, 8, 8, 3), dtype=torch.uint8)
    return Samples(squares(pixels), torch.arange(8) % 3)


def linear_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))


def build_trainer(model, settings):
    trainer = Trainer(model, settings, bucket_keys=("1", "2"), progress=Recorded())
    return trainer, Naive(settings, None, model, Naive.Arguments())


def test_counts_equal_testing_image_by_image():
    counts = (70, 1, 130)
    total = sum(counts)
    labels = torch.randint(0, 3, (total,))
    images = torch.randint(0, 256, (total, 8, 8, 3), dtype=torch.uint8)
    bucket = torch.tensor([j for j, count in enumerate(counts) for _ in range(count)])
    model = build_model("small_cnn", num_classes=3, image_size=8)
    expected, predictions = [0, 0, 0], []
    model.eval()
    with torch.no_grad():
        for i in range(total):
            logits = model(normalise(images[i : i + 1]))[0].tolist()
            predictions.append(logits.index(max(logits)))
            expected[bucket[i]] += predictions[-1] == labels[i].item()
    model.train()
    held_out = HeldOutImages(squares(images).centre_crops(), labels, bucket, counts)
    tested = measure(model, held_out, device=CPU, probabilities=True)
    assert tested.correct == tuple(expected)
    assert tested.labels.tolist() == predictions
    # Two that nearly agree may be one number in half precision.
    of_answers = tested.probabilities[np.arange(total), predictions]
    np.testing.assert_array_equal(of_answers, tested.probabilities.max(axis=1))
    np.testing.assert_allclose(tested.probabilities.sum(axis=1), 1, atol=2e-3)
    assert 0 < sum(expected) < total


def test_nothing_is_trained_before_the_next_row_is_requested(tmp_path):
    stream, _ = random_stream(tmp_path, train=(6, 6), test=(2, 2), side=8)
    progress = Recorded()
    rows = iter_trained(stream, progress, epochs=3)
    next(rows)
    assert [event for event, *_ in progress.calls] == ["row"]
    row = next(rows).row
    expected = [("bucket", "key0", 0, 2), ("steps", 6), *[("step",)] * 6, ("row", row)]
    assert progress.calls[1:] == expected


def test_random_layers_do_not_depend_on_earlier_draws():
    samples, trained = eight_images(), []
    for drawn_before in (0, 7):
        model = linear_model().insert(1, nn.Dropout(0.5)).eval()  # as testing leaves it
        torch.rand(drawn_before)
        trainer, hooks = build_trainer(model, config())
        trainer.train_bucket(samples, bucket_index=0, strategy=hooks)
        assert model.training
        trained.append(model[2].weight)
    assert torch.equal(*trained)


def test_random_layers_differ_between_epochs_and_buckets():
    """A repeated mask would leave the same weights untrained."""
    masks = []

    class Drawing(Naive):
        def begin_epoch(self, bucket_index, epoch, num_steps):
            masks.append(torch.rand(4).tolist())

    settings, model, samples = config(epochs=3), linear_model(), eight_images()
    trainer = build_trainer(model, settings)[0]
    for bucket_index in range(2):
        hooks = Drawing(settings, None, model, Naive.Arguments())
        trainer.train_bucket(samples, bucket_index=bucket_index, strategy=hooks)
    assert len({tuple(numbers) for numbers in masks}) == 6


def test_a_nan_loss_ends_training_with_bucket_epoch_and_remedy(tmp_path):
    stream, _ = random_stream(tmp_path, train=(12, 12), test=(2, 2), side=8)
    rows = iter_trained(stream, lr=1e30, weight_decay=0.1)
    assert next(rows).row.row == 0
    with pytest.raises(TrainingError, match=r"epoch 1 of 2 on bucket key0; .*lr below 1e\+30"):
        next(rows)


def test_nonfinite_weights_of_the_last_step_are_not_tested(tmp_path):
    """The loss before the step is finite, but the weights after it are not."""
    stream, _ = random_stream(tmp_path, train=(3,), test=(2,), side=8)
    rows = iter_trained(stream, lr=1e38, epochs=1, weight_decay=100)
    next(rows)
    with pytest.raises(TrainingError, match="not a finite number"):
        next(rows)


def test_a_full_device_is_a_one_line_error(tmp_path):
    stream, _ = random_stream(tmp_path, train=(6,), test=(2,), side=8)
    progress = Recorded()
    training = StreamTraining(resolve_config(config()), stream, progress)
    progress.step_done = lambda: torch.empty(2**50)
    with pytest.raises(TrainingError) as caught:
        list(training.rows())
    assert str(caught.value) == (
        "the device has not enough memory for this; pass a smaller batch_size, image_size or memory"
    )
    assert progress.calls[-1] == ("left", RuntimeError)
    progress.step_done = lambda: torch.zeros(2) + torch.zeros(3)
    with pytest.raises(RuntimeError, match="must match"):
        list(training.rows())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines"),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate(handle)"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("FIND was unable to find an engine to execute this computation"),
        RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, calling `cusolverDnCreate`"),
        RuntimeError("CUDA ran out of memory outside PyTorch's allocator. If this workload uses"),
        torch.distributed.DistBackendError(
            "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.5\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nCuda failure 2 'out of memory'"
        ),
    ],
)
def test_every_out_of_memory_error_of_cuda_is_recognised(error):
    message = "^the device has not enough memory for this; wait$"
    with pytest.raises(TrainingError, match=message), translate_oom("wait"):
        raise error


def test_a_bucket_is_freed_before_the_next_one_is_loaded(tmp_path, monkeypatch):
    batches, alive = [], []

    class Watching(Naive):
        def load_training_set(self, bucket_index):
            alive.append([images() is not None for images in batches])
            samples = super().load_training_set(bucket_index)
            copied = Samples(squares(read_pixels(samples)), samples.labels.clone())
            batches.append(weakref.ref(copied.images))
            return copied

        def after_bucket(self, bucket_index):
            alive.append([images() is not None for images in batches])

    monkeypatch.setattr(naive, "Naive", Watching)
    stream, _ = random_stream(tmp_path, train=(6, 4, 5), test=(2, 3, 2), side=8)
    list(iter_trained(stream, strategy="naive"))
    assert alive == [[], [False], [False], [False] * 2, [False] * 2, [False] * 3]


def test_progress_shows_the_dataset_and_is_always_closed(tmp_path):
    stream, _ = random_stream(tmp_path, train=(6, 4), test=(2, 3), side=8)
    progress = Recorded()
    training = StreamTraining(resolve_config(config(device="auto")), stream, progress)
    dataset = training.dataset
    assert (dataset.name, dataset.digest, dataset.buckets) == (
        "noise",
        "sha256:0",
        ("key0", "key1"),
    )
    assert (dataset.num_train, dataset.num_test) == ((6, 4), (2, 3))
    assert len(dataset.class_names) == 3
    assert progress.calls == []
    rows: Any = training.rows()  # a generator, which can be closed
    assert next(rows).row.row == 0
    assert [event for event, *_ in progress.calls] == ["row"]
    rows.close()
    assert progress.calls[-1] == ("left", GeneratorExit)


def test_a_bucket_of_one_image_is_rejected_with_batch_normalisation(tmp_path):
    stream, _ = random_stream(tmp_path, train=(4, 1), test=(1, 1), side=32)
    settings = resolve_config(config(model="resnet18", image_size=32))
    with pytest.raises(ConfigError, match="batch of 1 at 32 pixels"):
        check_stream(settings, stream)


def test_missing_cuda_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="device=cpu"):
        resolve_device("cuda")


class Narrow(nn.Module):
    """A model with memory for so many images, which records the batch sizes."""

    def __init__(self, room):
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.room = room
        self.given: list[int] = []

    def forward(self, inputs):
        self.given.append(len(inputs))
        logits = self.layer(inputs)
        if len(inputs) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return logits


def held_out_features(count):
    images = torch.rand(count, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 3
    return HeldOutImages(images, labels, labels * 0, (count,))


def measure_test_flops(costs, model, count):
    with costs.count_test() as count_batch:
        measure(model, held_out_features(count), device=CPU, count_batch=count_batch)
    costs.end_training()
    stream = SimpleNamespace(image_bytes=0)
    strategy = SimpleNamespace(state_dict=dict, count_stored_images=lambda _: 0, stream=stream)
    return costs.build_row_cost(model, strategy, trained=0).test_flops


def test_the_flops_of_a_test_are_those_of_all_its_batches():
    costs = CostMeter(CPU)
    per_image = 2 * 5 * 3
    assert measure_test_flops(costs, nn.Linear(5, 3), 2500) == 2500 * per_image
    assert measure_test_flops(costs, Narrow(300), 1500) == (2500 + 1500) * per_image
    grown = measure_test_flops(costs, nn.Linear(5, 7), 2500)
    assert grown == (2500 + 1500) * per_image + 2500 * 2 * 5 * 7


def test_a_test_without_enough_memory_uses_smaller_batches():
    held_out = held_out_features(1500)
    model = Narrow(300)
    tested = measure(model, held_out, device=CPU, probabilities=True)
    assert model.given == [1024, 512, 256, 256, 256, 256, 256, 220]
    expected = measure(nn.Sequential(model.layer), held_out, device=CPU, probabilities=True)
    assert tested.correct == expected.correct
    assert np.array_equal(tested.labels, expected.labels)
    assert np.array_equal(tested.probabilities, expected.probabilities)
    none = Narrow(0)  # one image is the least
    with pytest.raises(torch.OutOfMemoryError):
        measure(none, held_out_features(5), device=CPU)
    assert none.given == [5, 2, 1]


@pytest.mark.parametrize("model", ["small_cnn", "resnet18", "squeezenet1_1"])
def test_logits_are_compared_in_float32(model):
    """A difference below bfloat16's precision decides the prediction."""
    torch.manual_seed(0)
    network = build_model(model, num_classes=2, image_size=64).eval()
    head = get_head(network)
    with torch.no_grad():
        head.weight[1] = head.weight[0]
        head.bias.copy_(torch.tensor([7.0, 7.001]))
    images = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)
    labels = torch.ones(3, dtype=torch.int64)
    held_out = HeldOutImages(squares(images).centre_crops(), labels, labels * 0, (3,))
    tested = measure(network, held_out, device=CPU, precision="bf16")
    assert tested.labels.tolist() == [1, 1, 1]
    with torch.inference_mode(), autocast(CPU, "bf16"):  # the model itself is as before
        assert network(torch.zeros(1, 3, 64, 64)).dtype == torch.bfloat16
