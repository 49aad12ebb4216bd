"""Behaviour on other devices, tested without a GPU by tensors without numbers."""

import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from device_waits import DEVICE, DeviceWaits
from learning_streams import config, iter_training_batches, random_stream
from strategy_runs import (
    build_strategy,
    feature_stream,
    image_stream,
    on_features,
    train_with_states,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.data.decode import LibraryTransform, Resize
from clear_mlflow.learning import loop
from clear_mlflow.learning.checkpoint import (
    parse_state,
    restore_snapshot,
    serialize_state,
    take_snapshot,
)
from clear_mlflow.learning.device import allow_tf32, resolve_precision
from clear_mlflow.learning.inference import backbones
from clear_mlflow.learning.inference.backbones import compute_features
from clear_mlflow.learning.loop import measure
from clear_mlflow.learning.parameters.logged import select_parameters_to_log
from clear_mlflow.learning.photos import SampleIndices, select_photos, wrap_photos
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import DecodedStream, normalise
from clear_mlflow.learning.session import StreamTraining, resolve_config
from clear_mlflow.learning.strategies import list_strategies, load_strategy
from clear_mlflow.learning.strategies._base import Strategy, build_untrained_model
from clear_mlflow.learning.training import trainer as training
from clear_mlflow.learning.training.trainer import build_optimizer


class Stepping(Strategy):
    """Has an optimiser that counts its steps."""

    state_attributes = ("_scale", "_own_steps")
    fused = None

    def __init__(self, config, stream, model, arguments):
        super().__init__(config, stream, model, arguments)
        self._scale = torch.nn.Parameter(torch.ones((), device=stream.device))
        self._own_steps = torch.optim.Adam([self._scale], fused=self.fused)

    def after_bucket(self, bucket_index):
        self._scale.grad = torch.rand(()).to(self._scale.device)
        self._own_steps.step()


def built(parameters, device, stream=None):
    stream = stream or feature_stream()
    stream.device = torch.device(device)
    model = build_untrained_model(load_strategy(parameters.strategy), stream, parameters)
    return model, *build_strategy(stream, parameters, model)


@pytest.mark.parametrize("strategy", ["naive", "derpp", "slda", f"{__name__}:Stepping"])
def test_a_state_of_a_cpu_is_restored_on_another_device(strategy):
    parameters = on_features(strategy=strategy, optimizer_state="keep", optimizer="adam")
    _, states, _ = train_with_states(feature_stream(), parameters)
    saved = parse_state(states[-1])
    random_state = torch.get_rng_state()
    torch.manual_seed(99)
    model, made, trainer = built(parameters, "meta")
    restore_snapshot(saved.snapshot, model, made, trainer)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    if strategy == "derpp":
        assert made._logits.device.type == "meta"
    if strategy == f"{__name__}:Stepping":
        assert_steps_on_the_cpu(made._own_steps.state_dict())
    optimizer_state = trainer.state_dict()["optimizer"]
    if optimizer_state is not None:  # slda descends nothing
        assert_steps_on_the_cpu(optimizer_state)


def assert_steps_on_the_cpu(state):
    """Check that counters are on the CPU: elsewhere, the host would wait once a weight and step."""
    assert state["state"]
    for of_weight in state["state"].values():
        assert of_weight["step"].device.type == "cpu"
        assert of_weight["exp_avg"].device.type == "meta"


@pytest.mark.parametrize("in_strategy", [False, True], ids=["trainer", "strategy"])
@pytest.mark.parametrize(("saved_on", "restored_on"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_restored_optimizer_keeps_the_kernels_of_its_device(
    monkeypatch, in_strategy, saved_on, restored_on
):
    """A state of a CPU would otherwise have each fused step wait, and the opposite change bits."""
    strategy = f"{__name__}:Stepping" if in_strategy else "naive"
    parameters = on_features(strategy=strategy, optimizer_state="keep", optimizer="adam")

    def build_for(device):
        # The steps of a GPU, on this CPU.
        monkeypatch.setattr(training, "_FUSED_DEVICE", "cpu" if device == "cuda" else "cuda")
        monkeypatch.setattr(Stepping, "fused", True if device == "cuda" else None)
        return built(parameters, "cpu")

    model, made, trainer = build_for(saved_on)
    made.learn(0, trainer)
    made.after_bucket(0)
    snapshot = parse_state(serialize_state(take_snapshot(model, made, trainer), ROW, None)).snapshot
    model, made, trainer = build_for(restored_on)
    restore_snapshot(snapshot, model, made, trainer)
    (group,) = (made._own_steps if in_strategy else trainer._optimizer).param_groups
    assert group["fused"] is (True if restored_on == "cuda" else None)
    made.learn(1, trainer)
    made.after_bucket(1)


ROW = AccuracyRow(row=1, buckets=("1",), correct=(1,), num_instances=(1,), cost=None)


def test_a_snapshot_on_a_cpu_does_not_touch_the_gpu(monkeypatch):
    """Its generator is read only if this process computes on it.

    Otherwise, CUDA would be initialised: a context of hundreds of megabytes.
    """

    def list_generators():
        snapshot = take_snapshot(*built(on_features(strategy="naive"), "cpu"))
        return [key for key, _ in snapshot.description["random"]["dict"]]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", mock.Mock(side_effect=AssertionError))
    assert list_generators() == ["torch", "numpy", "python"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
    assert list_generators() == ["torch", "numpy", "python", "cuda"]


def watched_arithmetic(monkeypatch, run):
    """Return the arithmetic settings at each forward pass of *run*, and restored after it."""
    operations = set()
    forward = torch.nn.Linear.forward

    def read_settings():
        cudnn = torch.backends.cudnn
        return cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.benchmark

    def watch(self, inputs):
        operations.add(read_settings())
        return forward(self, inputs)

    monkeypatch.setattr(torch.nn.Linear, "forward", watch)
    before = read_settings()
    run()
    assert read_settings() == before
    return operations


@pytest.mark.parametrize(
    ("precision", "allowed"), [("off", False), ("tf32", True), ("bf16", False), ("fp16", False)]
)
def test_float32_on_a_gpu_is_float32(tmp_path, monkeypatch, precision, allowed):
    stream, _ = random_stream(tmp_path, train=(6,), test=(2,), side=8)
    settings = replace(resolve_config(config(epochs=1)), precision=precision)
    training = StreamTraining(settings, stream, TrainingProgress())
    operations = watched_arithmetic(monkeypatch, lambda: list(training.rows()))
    assert operations == {(allowed, allowed, True)}


BACKENDS: Any = torch.backends  # what of it has a precision, its types do not say


def newer_settings():
    of = BACKENDS
    operations = (of.cuda.matmul, of.cudnn.conv, of.cudnn.rnn)
    on_cpus = (of.mkldnn.matmul, of.mkldnn.conv, of.mkldnn.rnn)
    return [each.fp32_precision for each in (of, of.cudnn, of.mkldnn, *operations, *on_cpus)]


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    ("torch_setting", "default"),
    [
        *((BACKENDS.cudnn.conv, "ieee"), (BACKENDS.cuda.matmul, "tf32"), (BACKENDS.cudnn, "ieee")),
        *((BACKENDS, default) for default in ("tf32", "ieee", "bf16")),
        *((BACKENDS.mkldnn.matmul, "bf16"), (BACKENDS.mkldnn, "bf16")),
    ],
)
def test_torchs_newer_settings_do_not_change_what_is_computed(torch_setting, default, allowed):
    with allow_tf32(allowed):
        pass  # so that what convolutions default to, which cannot be set again, is explicit
    before, own = newer_settings(), torch_setting.fp32_precision
    torch_setting.fp32_precision = default
    try:
        of_caller = newer_settings()
        with allow_tf32(allowed):
            assert newer_settings() == ["none"] * 3 + ["tf32" if allowed else "ieee"] * 6
            assert torch.backends.cudnn.allow_tf32 is allowed
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
            assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
        assert newer_settings() == of_caller
    finally:
        torch_setting.fp32_precision = own
    assert newer_settings() == before


INHERITED = """
import torch
from clear_mlflow.learning.device import allow_tf32
of = torch.backends
for place, theirs in ("mkldnn", "bf16"), ("all", "ieee"):
    top = of.mkldnn if place == "mkldnn" else of
    top.fp32_precision = theirs
    before = of.cudnn.conv.fp32_precision, of.cudnn.rnn.fp32_precision
    with allow_tf32(False):
        pass
    assert (of.cudnn.conv.fp32_precision, of.cudnn.rnn.fp32_precision) == before, (place, theirs)
    of.fp32_precision = "ieee"
    assert of.cudnn.conv.fp32_precision == "ieee", (place, theirs)
"""


@pytest.mark.slow
def test_inherited_convolution_settings_are_restored():
    """In a new process: torch's default cannot be set again."""
    subprocess.run([sys.executable, "-c", INHERITED], check=True, timeout=240)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_torchs_older_precision_setting_follows(precision):
    """Torch raises an error if both kinds of settings differ."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for allowed, expected in ((False, "highest"), (True, "high")):
            with allow_tf32(allowed):
                assert torch.get_float32_matmul_precision() == expected
                assert torch.backends.cudnn.allow_tf32 is allowed
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


CPU = torch.device("cpu")
EIGHT = LibraryTransform(lambda image: np.zeros((3, 8, 8), np.float32), side=8, text="zeros")


def test_features_are_extracted_in_float32(tmp_path, monkeypatch):
    """On every device, so that a name always means the same numbers."""
    stream, _ = random_stream(tmp_path, train=(2,), test=(1,), side=8)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4))
    options = {"geometry": EIGHT, "device": torch.device("cpu")}
    operations = watched_arithmetic(
        monkeypatch, lambda: compute_features(model, stream.train[0], **options)
    )
    assert operations == {(False, False, False)}


class Flat(torch.nn.Module):
    """Returns the first numbers of each image, and has memory for so many images."""

    def __init__(self, limit):
        super().__init__()
        self.sizes, self.limit = [], limit

    def forward(self, images):
        self.sizes.append(len(images))
        if len(images) > self.limit:
            raise RuntimeError("GET was unable to find an engine to execute this computation")
        return images.flatten(1)[:, :4]


@pytest.mark.parametrize(("limit", "sizes"), [(9, [7]), (4, [7, 3, 3, 1]), (1, [7, 3] + [1] * 7)])
def test_features_are_extracted_in_batches_that_fit(tmp_path, limit, sizes):
    stream, _ = random_stream(tmp_path, train=(7,), test=(1,), side=8)
    numbers = iter(range(7))
    number = LibraryTransform(
        lambda image: np.full((3, 8, 8), next(numbers), np.float32), side=8, text="numbers"
    )
    model = Flat(limit)
    options = {"geometry": number, "device": torch.device("cpu")}
    array = compute_features(model, stream.train[0], **options)
    assert sorted(array[:, 0].tolist()) == list(range(7))
    assert model.sizes == sizes
    with pytest.raises(RuntimeError, match="unable to find an engine"):
        compute_features(Flat(0), stream.train[0], geometry=EIGHT, device=CPU)


def test_feature_extraction_does_not_wait_for_the_device(monkeypatch, tmp_path):
    stream, _ = random_stream(tmp_path, train=(9,), test=(1,), side=8)
    monkeypatch.setitem(backbones._BATCH_SIZES, "meta", 2)
    model, done = Flat(9), []
    with DeviceWaits(monkeypatch) as device:
        array = compute_features(
            model, stream.train[0], geometry=EIGHT, device=DEVICE, on_image=done.append
        )
    assert (device.waits, device.copies) == ([], 10)
    assert model.sizes == [2, 2, 2, 2, 1]
    assert done == [2, 4, 6, 8, 9]
    assert array.shape == (9, 4)


def test_test_images_in_main_memory_are_prefetched_in_pinned_memory(monkeypatch, tmp_path):
    test_images = build_image_stream(tmp_path).test()
    monkeypatch.setitem(loop._TEST_BATCH, "meta", 3)
    model = Flat(3)
    normalise(test_images.cut(0, 1).to(DEVICE))  # the constants, once
    waits_of_batches, threads = [], []
    before = threading.active_count()
    with DeviceWaits(monkeypatch) as device:
        model.register_forward_pre_hook(lambda *_: waits_of_batches.append([*device.waits]))
        model.register_forward_pre_hook(lambda *_: threads.append(threading.active_count()))
        measure(model, test_images, device=DEVICE)
    assert len(waits_of_batches) == 3
    assert waits_of_batches[0] == waits_of_batches[-1] == ["_to_copy"], "buckets, at the start"
    assert threads == [before + 1] * 3
    assert threading.active_count() == before


def test_tf32_is_of_gpus_from_ampere_on(monkeypatch):
    with pytest.raises(ConfigError, match="pass precision=off"):
        resolve_precision("tf32", "cpu")
    assert resolve_precision("bf16", "cpu") == "bf16"
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    for has_amx, precision in ((False, "off"), (True, "bf16")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has_amx=has_amx: has_amx)
        assert resolve_precision("auto", "cpu") == precision
        resolved = resolve_config(replace(config(), precision="auto", device="cpu"))
        logged = select_parameters_to_log(resolved, {"precision": "auto"}, {})
        assert logged["used/arithmetic"] == {"off": "float32"}.get(precision, precision)
        assert logged["asked/precision"] == "auto"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert resolve_precision("tf32", "cuda") == "tf32"
    assert resolve_precision("auto", "cuda") == "bf16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ConfigError, match="pass precision=off"):
        resolve_precision("tf32", "cuda")


def images_on_the_device(monkeypatch, folder):
    home = "clear_mlflow.learning.samples.select_storage_device"
    monkeypatch.setattr(home, lambda num_bytes, device: device)
    return build_image_stream(folder)


def build_image_stream(folder):
    stream, _ = random_stream(folder, train=(9, 7), test=(4, 4), side=8)
    return DecodedStream(stream, image_size=8, augment="random_crop_flip", device=DEVICE)


def watch_second_bucket(monkeypatch, stream, parameters):
    """Return what the host waits for while the second bucket is trained on."""
    _, strategy, trainer = built(parameters, DEVICE, stream)
    with DeviceWaits(monkeypatch) as device:
        strategy.learn(0, trainer)
        strategy.after_bucket(0)
        samples = strategy.load_training_set(1)
        strategy.load_training_set = lambda bucket_index: samples
        device.waits.clear()
        device.copies = 0
        strategy.learn(1, trainer)
    return device


@pytest.mark.parametrize(("at_once", "parts"), [(2**26, 1), (600, 3), (1, 9)])
def test_images_are_copied_to_a_gpu_asynchronously(monkeypatch, tmp_path, at_once, parts):
    monkeypatch.setattr("clear_mlflow.learning.photos._SENT_AT_ONCE", at_once)
    stream = images_on_the_device(monkeypatch, tmp_path)
    with DeviceWaits(monkeypatch) as device:
        stream.train(0)
        assert (device.waits, device.copies) == ([], parts + 1), "pixels, and labels"
        stream.test()
        assert device.waits == []
    decoded = [stream._cache.load(images, Resize(8)) for images in stream._sets["train"]]
    mixed = SampleIndices(*np.array([[1, 0, 1], [2, 0, 0]]))
    for photos in (
        *(wrap_photos(images, 8) for images in decoded),
        select_photos(dict(enumerate(decoded)), mixed, 8),
    ):
        sent = photos.to(torch.device("cpu"))
        assert torch.equal(sent.centre_crops().cut(0, 3), photos.centre_crops().cut(0, 3))


# Strategies that neither need features nor prepare a model or its head before a bucket.
STEPPING = [
    name
    for name in sorted(set(list_strategies()) - {"cwr", "from_scratch", "gdumb", "joint"})
    if not load_strategy(name).needs_features
]


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("strategy", STEPPING)
def test_no_epoch_has_the_host_wait_for_the_device(monkeypatch, tmp_path, strategy):
    parameters = config(strategy=strategy, epochs=4, clip_norm=1, batch_size=3)
    device = watch_second_bucket(
        monkeypatch, images_on_the_device(monkeypatch, tmp_path), parameters
    )
    assert device.waits == []
    assert device.copies > 4 * 4, "the test sees no indices sent"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["naive", "replay", "derpp"])
def test_no_step_on_images_in_main_memory_has_the_host_wait(monkeypatch, tmp_path, strategy):
    stream = build_image_stream(tmp_path)
    parameters = config(strategy=strategy, epochs=2, batch_size=3)
    assert watch_second_bucket(monkeypatch, stream, parameters).waits == []


@pytest.mark.parametrize("home", [DEVICE, torch.device("cpu")], ids=["there", "in main memory"])
@pytest.mark.parametrize("strategy", ["ncm", "slda"])
def test_no_block_of_a_closed_form_has_the_host_wait(monkeypatch, strategy, home):
    select = "clear_mlflow.learning.samples.select_storage_device"
    monkeypatch.setattr(select, lambda num_bytes, device: home)
    _, made, trainer = built(on_features(strategy=strategy), DEVICE)
    with DeviceWaits(monkeypatch) as device:
        samples = made.load_training_set(0)
        made.load_training_set = lambda bucket_index: samples
        device.waits.clear()
        for features, labels in made.iter_bucket_blocks(0, trainer):
            if strategy == "slda":
                made._add_scatter(features, labels)
            made.add_to_means(features, labels)
    assert device.waits == []


def test_a_diverged_loss_on_a_gpu_is_noticed_after_the_next_epoch(monkeypatch, tmp_path):
    for epochs, begun in (4, 2), (1, 1):
        stream = images_on_the_device(monkeypatch, tmp_path / str(epochs))
        _, made, trainer = built(config(epochs=epochs), DEVICE, stream)
        made.begin_epoch = mock.Mock()
        message = f"in epoch 1 of {epochs} on bucket key0"
        with DeviceWaits(monkeypatch, number=np.nan), pytest.raises(DivergedError, match=message):
            made.learn(0, trainer)
        assert made.begin_epoch.call_count == begun


def with_images_apart(monkeypatch):
    """Keep images in main memory, as for a GPU that lacks memory for them."""
    for user in ("training.trainer", "samples"):
        name = f"clear_mlflow.learning.{user}.is_other_device"
        monkeypatch.setattr(name, lambda home, device: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["naive", "derpp"])
def test_a_bucket_too_large_for_the_device_has_the_same_run(
    monkeypatch, tmp_path, capsys, strategy
):
    parameters = config(strategy=strategy, epochs=2, batch_size=3, lr=0.01)
    streams = [image_stream(tmp_path, augment="random_crop_flip") for _ in range(2)]
    rows, states, _ = train_with_states(streams[0], parameters)
    with_images_apart(monkeypatch)
    again = train_with_states(streams[1], parameters)
    assert again[1] == states
    assert [row.correct for row in again[0]] == [row.correct for row in rows]
    (line,) = capsys.readouterr().err.splitlines()
    assert "training images of bucket key0 take 0.00 GiB" in line


def test_batches_of_a_too_large_bucket_are_prefetched_in_pinned_memory(monkeypatch, tmp_path):
    stream, _ = random_stream(tmp_path, train=(40,), test=(4,), side=8)
    samples = DecodedStream(stream, image_size=8, augment="random_crop", device=DEVICE).train(0)
    batch_arguments = {"batch_size": 4, "device": DEVICE, "seed": 0, "bucket_index": 0, "epoch": 0}
    before = threading.active_count()
    with DeviceWaits(monkeypatch) as device:
        epoch = iter_training_batches(samples, **batch_arguments)
        first = next(epoch)
        assert first.inputs.device == DEVICE
        assert first.chosen.device.type == "cpu"
        assert threading.active_count() == before + 1
        del epoch
        assert threading.active_count() == before
        assert len(list(iter_training_batches(samples, **batch_arguments))) == 10
    assert set(device.waits) <= {"lift_fresh", "_to_copy"}, "only the normaliser's constants"
    assert len(device.waits) <= 2
    fails = mock.Mock(side_effect=RuntimeError("no memory that can be pinned"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", fails)
    with pytest.raises(RuntimeError, match="can be pinned"):
        next(iter_training_batches(samples, **batch_arguments))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_steps_on_a_gpu_equal_those_of_fused_optimisers(optimizer):
    """Tested with tensors without a GPU. On a CPU, torch chooses."""
    parameters = on_features(strategy="naive", optimizer=optimizer)
    for device, fused in ("cuda", True), ("cpu", None):
        with FakeTensorMode():
            made = build_optimizer(torch.nn.Linear(3, 2, device=device), parameters)
        assert [group["fused"] for group in made.param_groups] == [fused]
        # Who leaves out a step of a scaled loss itself, so that the host does not ask whether to.
        assert getattr(made, "_step_supports_amp_scaling", None) is fused
