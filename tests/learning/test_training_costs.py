"""Costs of rows, compared with hooks on every layer and with resumed runs."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from feature_streams import CLASSES, WIDTH
from learning_streams import config
from strategy_runs import (
    assert_identical,
    build_strategy,
    feature_stream,
    image_stream,
    on_features,
    train_all,
    train_costs,
)
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torchvision.models import VisionTransformer

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.checkpoint import parse_state, serialize_state
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.parameters.strategy_names import WITHOUT_STEPS
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import resolve_config
from clear_mlflow.learning.strategies import ewc, list_strategies, load_strategy
from clear_mlflow.learning.strategies._base import build_untrained_model
from clear_mlflow.learning.strategies._weights import copy_weights
from clear_mlflow.learning.strategies.er_ace import ErAce
from clear_mlflow.learning.strategies.naive import Naive
from clear_mlflow.learning.training import costs as meter
from clear_mlflow.learning.training.trainer import compute_learning_rate

ON_FEATURES = {"linear", *WITHOUT_STEPS}
BY_GRADIENTS = sorted(set(list_strategies()) - ON_FEATURES)


@pytest.mark.parametrize("trains", [True, False])
def test_a_transformer_costs_the_same_on_every_device(trains):
    """A CPU recomputes parts of the attention in the backward pass, and fuses it in tests."""

    def count(device):
        model = VisionTransformer(16, 4, 2, 2, 8, 16, num_classes=3).to(device).train(trains)
        inputs = torch.zeros(5, 3, 16, 16, device=device)
        with meter.FlopCounter() as counter, torch.set_grad_enabled(trains):
            logits = model(inputs)
            if trains:
                logits.sum().backward()
        return counter.flops

    assert count("cpu") == count("meta") > 0


def on_images(strategy, **changes):
    """Return parameters of two epochs of at most three steps, the last of another size."""
    parameters = {"epochs": "2", "batch_size": "4", "memory": "5", "image_size": "8"}
    return config(strategy=strategy, **{**parameters, **changes})


class LiteralCount:
    """Counts every convolution and linear layer in both passes while it is active."""

    def __init__(self):
        self.forward = self.backward = 0
        self.is_off = False

    def __enter__(self):
        self.hook = nn.modules.module.register_module_forward_hook(self._add_layer)
        return self

    def __exit__(self, *_):
        self.hook.remove()

    def _add_layer(self, module, inputs, output):
        if self.is_off or not isinstance(module, (nn.Conv2d, nn.Linear)):
            return
        per_output = module.weight[0].numel()
        flops = 2 * output.numel() * per_output
        self.forward += flops
        if output.requires_grad:
            num_gradients = module.weight.requires_grad + inputs[0].requires_grad
            output.register_hook(lambda _: self._went_back(num_gradients * flops))

    def _went_back(self, flops):
        self.backward += flops


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("strategy", BY_GRADIENTS)
def test_flops_equal_the_sum_over_layers(strategy, tmp_path, monkeypatch):
    stream, settings = image_stream(tmp_path), on_images(strategy)
    fisher = []
    with LiteralCount() as literal:

        def counted_apart(model, inputs, labels, share):
            """Compute one image and one label at a time, next to the layers' hooks."""
            fisher.append((len(inputs), labels.shape[1]))
            literal.is_off = True
            counted = squared(model, inputs, labels, share)
            literal.is_off = False
            return counted

        squared = ewc.compute_squared_gradients
        monkeypatch.setattr(ewc, "compute_squared_gradients", counted_apart)
        rows = train_all(stream, settings)
    expected, costs = literal.forward + literal.backward, [trained.row.cost for trained in rows]
    with LiteralCount() as of_one:
        model = rows[-1].model.train().requires_grad_(True)
        model(torch.zeros(2, 3, 8, 8)).sum().backward()
    weights = sum(weight.numel() for weight in model.parameters())
    for images, labels in fisher:  # passes, and the sum of squares, weighted
        passes = of_one.forward + labels * of_one.backward
        expected += images * passes // 2 + 2 * images * labels * weights
    assert sum(cost.training_flops + cost.test_flops for cost in costs) == expected
    assert [cost.test_flops for cost in costs] == [12 * of_one.forward // 2] * 4
    assert costs[0].training_flops == 0 < costs[1].training_flops
    assert bool(fisher) == (strategy == "ewc")


def test_flops_of_a_linear_head():
    """Features need no gradient: both passes count the head's product once."""
    with LiteralCount() as literal:
        costs = train_costs(feature_stream((7, 6, 5)), on_features(strategy="linear"))
    assert literal.forward + literal.backward == sum(c.training_flops + c.test_flops for c in costs)
    images = [3 * count for count in (7, 6, 5)]  # of three epochs
    assert [cost.training_flops for cost in costs[1:]] == [4 * n * WIDTH * CLASSES for n in images]


BUDGETED = {"epochs": "36", "lr": "0.001", "budget": "naive:0.9"}


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        *((strategy, {}) for strategy in ("replay", "derpp", "ewc", "gdumb", "cwr")),
        *((strategy, BUDGETED) for strategy in ("derpp", "ewc", "replay")),
        (f"{__name__}:Extravagant", BUDGETED),
    ],
)
def test_a_resumed_run_costs_the_same(strategy, changes, tmp_path):
    stream, settings = image_stream(tmp_path), on_images(strategy, **changes)
    states, rows = [], []
    for trained in train(stream, settings, progress=TrainingProgress()):
        states.append(serialize_state(trained.snapshot(), trained.row, None))
        rows.append(trained.row)
    for number, state in enumerate(states):
        saved = parse_state(state)
        assert saved.row.cost == rows[number].cost
        again = [trained.row for trained in train_all(stream, settings, saved)]
        assert again == rows[number + 1 :]
        expected = [remove_times(row.cost) for row in rows[number + 1 :]]
        assert [remove_times(row.cost) for row in again] == expected


def remove_times(cost):
    return {k: v for k, v in cost.to_dict().items() if type(v) is int and k != "peak_bytes"}


def test_counting_changes_nothing(tmp_path, monkeypatch):
    stream, settings = image_stream(tmp_path), on_images("agem")
    counted = train_all(stream, settings)[-1].model.state_dict()
    monkeypatch.setattr(meter.FlopCounter, "__enter__", lambda counter: counter)
    monkeypatch.setattr(meter.FlopCounter, "__exit__", lambda *_: None)
    uncounted = train_all(stream, settings)
    assert [trained.row.cost.training_flops for trained in uncounted] == [0] * 4
    assert_identical(uncounted[-1].model, counted)


def test_images_of_the_bucket_and_replayed_ones_are_counted(tmp_path):
    """Two epochs of 7, 6 and 5 images. Up to 5 of the buffer are shuffled among them."""
    images = {
        strategy: [
            (cost.images, cost.replayed_images)
            for cost in train_costs(image_stream(tmp_path), on_images(strategy))
        ]
        for strategy in ("naive", "replay", "er_ace", "cumulative", "gdumb", "joint")
    }
    assert [sum(of_row) for of_row in images.pop("gdumb")] == [0, 8, 10, 10]
    assert images == {
        "naive": [(0, 0), (14, 0), (12, 0), (10, 0)],
        "replay": [(0, 0), (14, 0), (12, 10), (10, 10)],
        "er_ace": [(0, 0), (14, 0), (12, 16), (10, 8)],  # four in each step
        "cumulative": [(0, 0), (14, 0), (12, 14), (10, 26)],
        "joint": [(0, 0), (14, 22), (0, 0), (0, 0)],
    }


def test_stored_bytes_are_those_of_images_and_state(tmp_path):
    """An image of 8 x 8 pixels has 192 bytes, plus 32 in a class-balanced buffer."""
    bytes_by_strategy = {}
    for strategy in ("naive", "replay", "si", "cumulative"):
        rows = train_all(image_stream(tmp_path), on_images(strategy))
        weights = sum(w.numel() for w in rows[-1].model.parameters())
        bytes_by_strategy[strategy] = [trained.row.cost.stored_bytes for trained in rows]
        assert {trained.row.cost.trainable_parameters for trained in rows} == {weights}
    assert bytes_by_strategy["naive"] == [0] * 4
    of_classes = 3 * 8  # how many of each class were seen
    assert bytes_by_strategy["replay"][1:] == [5 * (192 + 32) + of_classes] * 3
    assert bytes_by_strategy["si"] == [3 * 4 * weights] * 4
    assert bytes_by_strategy["cumulative"] == [0, 7 * 192, 13 * 192, 18 * 192]


def test_closed_forms_follow_their_formulas():
    d, classes = WIDTH, CLASSES
    for strategy in WITHOUT_STEPS:
        costs = train_costs(feature_stream((9, 7)), on_features(strategy=strategy))
        assert [cost.images for cost in costs] == [0, 9, 7]
        flops = [2 * n * d + 2 * classes * d for n in (9, 7)]
        if strategy == "slda":
            solve_flops = d**3 // 3 + 2 * classes * d**2
            flops = [flops[i] + 2 * n * d**2 + solve_flops for i, n in enumerate((9, 7))]
        assert [cost.training_flops for cost in costs] == [0, *flops]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("strategy", sorted({*BY_GRADIENTS} - {"joint"}))
def test_a_run_uses_its_budget(strategy, tmp_path):
    changes = {"epochs": "12", "lr": "0.001"}
    naive = train_costs(image_stream(tmp_path), on_images("naive", **changes))
    if strategy == "ewc":
        changes["strategy_args"] = "images=2"
    costs = train_costs(image_stream(tmp_path), on_images(strategy, budget="naive:1", **changes))
    of_naive = naive[1].training_flops // naive[1].images
    step = 12 * of_naive  # of four images, and twice four of the buffer
    assert all(-step < remainder <= 0 for remainder in lefts(naive, costs))


def lefts(naive, costs):
    remaining = 0
    for of_naive, own in zip(naive, costs, strict=True):
        remaining += of_naive.training_flops - own.training_flops
        yield remaining


def test_a_budget_of_images(tmp_path):
    costs = train_costs(image_stream(tmp_path), on_images("naive", budget="images:10"))
    assert [cost.images for cost in costs] == [0, 11, 10, 10]


SCHEDULES = {
    "step": {"schedule": "step", "lr_step": "4"},
    "cosine": {"schedule": "cosine"},
    "warm-up": {"schedule": "cosine", "warmup_epochs": "5"},
}


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("strategy", sorted({*BY_GRADIENTS} - {"joint"}))
def test_learning_rates_are_shares_of_the_budget(strategy, schedule, tmp_path):
    """Each rate trains the same share of a bucket as without a budget, within one step.

    Where the budget is not a multiple of a step, the last step exceeds it.
    """
    changes = {"epochs": "12", "memory": "8", "lr": "0.001", "budget": "naive:1"}
    if strategy == "ewc":
        changes["strategy_args"] = "images=2"
    settings = on_images(strategy, **changes, **SCHEDULES[schedule])
    rates_by_bucket = record_rates(image_stream(tmp_path, train=(8, 8, 8)), settings)
    expected_rates = [compute_learning_rate(settings, epoch) for epoch in range(12)]
    for rates in rates_by_bucket:  # in each bucket, all steps of a strategy cost the same
        tolerance = 1 if 24 % len(rates) == 0 else 2
        for rate in {*expected_rates, *rates}:
            expected_steps = expected_rates.count(rate) / 12 * len(rates)
            assert abs(rates.count(rate) - expected_steps) < tolerance


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_naive_is_the_same_with_a_budget_of_naive(schedule, tmp_path):
    changes = {"epochs": "12", "lr": "0.001", **SCHEDULES[schedule]}
    settings = [on_images("naive", budget=budget, **changes) for budget in ("off", "naive:1")]
    assert_identical(*(train_all(image_stream(tmp_path), each)[-1].model for each in settings))


def record_rates(stream, settings):
    rates_by_bucket = []

    class Buckets(TrainingProgress):
        def bucket_started(self, key, *, bucket_index, num_buckets):
            rates_by_bucket.append([])

    def record(optimizer, *_):
        rates_by_bucket[-1].append(optimizer.param_groups[0]["lr"])

    hook = register_optimizer_step_pre_hook(record)
    try:
        list(train(stream, settings, progress=Buckets()))
    finally:
        hook.remove()
    return rates_by_bucket


@pytest.mark.parametrize("features", [False, True])
def test_derpp_keeps_images_with_logits_only(features, tmp_path):
    """With a budget of seven of ten steps, images of no step are not in the buffer."""
    counts = (40, 40, 40)
    stream = feature_stream(counts) if features else image_stream(tmp_path, train=counts)
    on_stream = on_features if features else on_images
    settings = on_stream(strategy="derpp", budget="images:28", memory="100", batch_size="4")
    trained_images = 0
    for trained in train(stream, settings, progress=TrainingProgress()):
        tensors = trained.snapshot().tensors
        (logits,) = [tensor for name, tensor in tensors.items() if name.endswith("_logits")]
        (indices,) = [tensor for name, tensor in tensors.items() if name.endswith("/index")]
        trained_images += trained.row.cost.images
        assert len(logits) == len(indices) == trained_images
    assert 0 < trained_images < 120


class Extravagant(Naive):
    """Computes as much as 15 steps after each bucket."""

    def after_bucket(self, bucket_index):
        self.model(torch.zeros(180, 3, 8, 8))


class ExtravagantLearner(Naive):
    """Computes the same in the bucket itself, after its steps."""

    def learn(self, bucket_index, trainer):
        super().learn(bucket_index, trainer)
        with trainer.costs.count():
            self.model(torch.zeros(180, 3, 8, 8))


class Announced(Extravagant):
    """Announces what it computes after each bucket."""

    def count_flops_after(self, bucket_index):
        before = meter.FlopCounter()
        with before:
            self.after_bucket(bucket_index)
        return before.flops


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["Extravagant", "ExtravagantLearner", "Announced"])
def test_overspending_is_charged_to_the_next_bucket(strategy, tmp_path):
    changes = {"epochs": "40", "lr": "0.001"}
    streams = [image_stream(tmp_path, train=(8, 8, 8)) for _ in range(2)]
    naive = train_costs(streams[0], on_images("naive", **changes))
    budgeted = on_images(f"{__name__}:{strategy}", budget="naive:1", **changes)
    own = train_costs(streams[1], budgeted)
    step = naive[1].training_flops // 80
    _, first, second, third = lefts(naive, own)
    images = [cost.images for cost in own[1:]]
    if strategy == "Announced":
        assert -step < first <= 0
        assert max(images) - min(images) <= 4
    else:
        assert first < -10 * step
        assert images[1] < images[2] < images[0] == 320
    assert -step < second <= 0
    assert -step < third <= 0


def test_seconds_of_tests_are_not_training_seconds(monkeypatch):
    clock = {"perf_counter": 100.0, "process_time": 10.0}

    def pass_time(seconds):
        clock["perf_counter"] += seconds
        clock["process_time"] += 2 * seconds

    clocks = SimpleNamespace(**{name: partial(clock.get, name) for name in clock})
    monkeypatch.setattr(meter, "time", clocks)
    settings, stream = on_features(strategy="linear"), feature_stream()
    model = build_untrained_model(load_strategy(settings.strategy), stream, settings)
    strategy, _ = build_strategy(stream, settings, model)
    costs = meter.CostMeter(torch.device("cpu"))
    pass_time(5)
    costs.begin_bucket()
    for seconds in (3, 4):
        pass_time(1)
        with costs.count_test():
            pass_time(seconds)
    costs.end_training()
    with costs.count_test():
        pass_time(16)
    row = costs.build_row_cost(model, strategy, trained=1)
    assert (row.seconds, row.device_seconds, row.test_seconds) == (2, 4, 23)


@pytest.mark.parametrize(
    ("strategy", "budget", "unit"),
    [("naive", "1e3", "FLOPs"), ("naive", "images:2", "images"), ("ewc", "naive:1", "FLOPs")],
)
def test_an_impossible_budget_fails(strategy, budget, unit, tmp_path):
    key = "key0" if strategy == "ewc" else "key1"
    message = rf"[\d,]+ {unit} in bucket {key}, and nothing remains for its steps: .+; pass more"
    with pytest.raises(ConfigError, match=message) as error:
        train_all(image_stream(tmp_path), on_images(strategy, budget=budget))
    assert "\n" not in str(error.value)


def test_a_closed_form_that_takes_more_than_its_budget_fails_in_the_second_bucket():
    settings = on_features(strategy="slda", budget="500")
    rows = train(feature_stream(), settings, progress=TrainingProgress())
    assert [next(rows).row.row, next(rows).row.row] == [0, 1]
    with pytest.raises(ConfigError, match="nothing remains for its steps: "):
        next(rows)


@pytest.mark.parametrize("strategy", ["ncm", "slda"])
def test_a_closed_form_may_use_its_budget_in_every_bucket(strategy):
    """Nothing is reserved for what follows its steps: it has none."""

    def list_flops(**budget):
        costs = train_costs(feature_stream((12, 4, 4)), on_features(strategy=strategy, **budget))
        return [cost.training_flops for cost in costs]

    assert list_flops(budget=str(max(list_flops()))) == list_flops()


@pytest.mark.parametrize("budget", ["naive", "naive:0", "images:1.5", "-1", "much", "naive:x"])
def test_an_invalid_budget_is_rejected(budget):
    with pytest.raises(ConfigError, match="expected off; FLOPs a bucket"):
        config(budget=budget)


def test_a_budget_conflicts_with_a_strategy_that_trains_in_one_bucket():
    with pytest.raises(ConfigError, match="strategy joint does not train in each bucket"):
        resolve_config(config(budget="naive:1", strategy="joint"))


@pytest.mark.parametrize("strategy", ["replay", "derpp", "gdumb", "agem"])
def test_a_buffer_fills_its_bytes(strategy, tmp_path):
    settings = on_images(strategy, memory_budget=2000, lr="0.001")
    most = max(cost.stored_bytes for cost in train_costs(image_stream(tmp_path), settings))
    assert 2000 - (192 + 32 + 12) - 3 * 8 < most <= 2000


@pytest.mark.parametrize(("strategy", "rows_before"), [("ewc", 1), ("si", 0), ("cumulative", 0)])
def test_a_strategy_that_exceeds_its_bytes_is_rejected(strategy, rows_before, tmp_path):
    stream, bytes_needed = image_stream(tmp_path), 18 * 192  # all images
    if strategy != "cumulative":  # three copies of the weights
        model = build_untrained_model(Naive, stream, on_images("naive"))
        bytes_needed = 3 * 4 * sum(weight.numel() for weight in model.parameters())
    enough = train_costs(stream, on_images(strategy, memory_budget=bytes_needed))
    assert enough[-1].stored_bytes == bytes_needed
    settings = on_images(strategy, memory_budget=bytes_needed - 1)
    rows = train(stream, settings, progress=TrainingProgress())
    for _ in range(rows_before):
        next(rows)
    with pytest.raises(ConfigError, match=f"strategy {strategy} keeps {bytes_needed:,}"):
        next(rows)


def test_ewc_stores_only_trained_weights(tmp_path):
    settings = on_images("ewc", freeze="backbone", lr="0.001")
    stored_bytes = train_costs(image_stream(tmp_path), settings)[-1].stored_bytes
    enough = train_costs(image_stream(tmp_path), replace(settings, memory_budget=stored_bytes))
    assert enough[-1].stored_bytes == stored_bytes


class WithACopy(ErAce):
    state_attributes = (*ErAce.state_attributes, "_first")

    def setup(self):
        super().setup()
        self._first = copy_weights(list(self.model.parameters()))


@pytest.mark.parametrize(
    ("text", "same"),
    [("naive:1.0", "naive:1"), ("50000000.0", "5e7"), ("2e+15", "2e15"), ("0.50", "0.5")],
)
def test_equal_budgets_have_one_text(text, same):
    for option in ("budget", "stream_rate"):
        for notation in (text, same):
            assert getattr(config(epochs="1", **{option: notation}), option) == same


@pytest.mark.parametrize(
    ("strategy", "num_bytes", "message"),
    [
        ("derpp", 200, "an image in the memory of strategy derpp takes 236"),
        # Its buffer gets as many images as fit without the copy.
        (f"{__name__}:WithACopy", 2000, "or memory=N images and memory_budget=0"),
    ],
)
def test_too_few_bytes_are_rejected(strategy, num_bytes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train_all(image_stream(tmp_path), on_images(strategy, memory_budget=num_bytes))


def test_the_documented_costs_are_those_that_the_script_computes(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    computed = import_module("benchmarks.costs").list_strategies()[1:]
    page = (project / "docs" / "cost.md").read_text(encoding="utf-8").splitlines()
    first = page.index(computed[0])
    assert page[first : page.index("", first)] == computed


@pytest.mark.parametrize(
    ("steps", "peak"),
    [
        # (size of the step, peak memory in it)
        ([(8, 90), (8, 30), (8, 40), (2, 70)], 40),
        ([(8, 90), (2, 70)], 90),
        ([(8, 90), (8, 30), (2, 70), (2, 50), (8, 30)], 50),
    ],
)
def test_peak_memory_excludes_the_search_in_the_first_step_of_a_size(monkeypatch, steps, peak):
    """Unless the bucket has only such steps. The next bucket has no search."""
    memory = [0]
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: max(memory, default=0))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: memory.clear())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "made up")
    costs, head = meter.CostMeter(torch.device("cuda")), torch.nn.Linear(2, 2)
    strategy = SimpleNamespace(
        state_dict=dict, count_stored_images=lambda _: 0, stream=SimpleNamespace(image_bytes=0)
    )

    def measure_bucket():
        memory.append(10)
        costs.begin_bucket()
        for size, peak_of_step in steps:
            memory.append(20)
            with costs.count_step((size,)):
                memory.append(peak_of_step)
        costs._seconds = costs._device_seconds = 1.0
        return costs.build_row_cost(head, strategy, trained=1).peak_bytes

    assert measure_bucket() == peak
    assert measure_bucket() == max(number for _, number in steps)
