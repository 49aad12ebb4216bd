"""The base class of strategies, and what several of them share."""

from __future__ import annotations

import inspect
import itertools
import json
import random
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal
from types import CodeType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.core.errors import ConfigError, StateError
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.buffers import Buffer, BufferArguments, get_buffer_class
from clear_mlflow.learning.device import RngPurpose, load_optimizer_state, seed_everything
from clear_mlflow.learning.models import (
    build_feature_model,
    build_model,
    freeze_backbone,
    prepare_custom_model,
)
from clear_mlflow.learning.parameters.config import PARAMETERS, TrainConfig
from clear_mlflow.learning.parameters.option_fields import OPTIMISATION
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup
from clear_mlflow.learning.samples import Batch, FeatureStream, Samples, TrainingStream
from clear_mlflow.learning.training.trainer import Trainer

_GENERATORS = (np.random.Generator, random.Random, torch.Generator)
_INDEX_BYTES = 4 * 8  # of each image in a buffer: its bucket, index, label and priority
# Attributes that every strategy gets when it is built.
_COMMON_ATTRIBUTES = frozenset({"config", "stream", "model", "arguments", "group"})


class RestoredAttributes:
    """The attributes of a strategy that a resumed run restores."""

    # Names of all attributes except the common ones: those that a resumed run restores, and those
    # that it does not need because they are set again in every bucket or follow from the model.
    state_attributes: ClassVar[tuple[str, ...]] = ()
    temporary_attributes: ClassVar[tuple[str, ...]] = ()
    stream: TrainingStream
    model: nn.Module

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes that a resumed run restores, by name.

        An attribute with a ``state_dict`` is replaced by it, a dataclass from :meth:`setup` by its
        fields, and a random generator of Python, numpy or torch by its state. Override this and
        :meth:`load_state_dict` for values other than tensors, arrays, numbers, texts, and lists,
        tuples or dictionaries of these.

        Raises:
            StateError: an attribute is neither in ``state_attributes`` nor in
                ``temporary_attributes``, or is a weight of the model.
        """
        class_name = type(self).__name__
        model_pointers = {weight.data_ptr() for weight in self.model.parameters()}
        declared = {*self.state_attributes, *self.temporary_attributes}
        if unnamed := sorted(vars(self).keys() - _COMMON_ATTRIBUTES - declared):
            raise StateError(
                f"strategy {class_name} sets {one_line(', '.join(unnamed), 500)}; name each in the "
                "class's state_attributes if a resumed run needs it, else in its "
                "temporary_attributes, or pass --resumable off"
            )
        if unset := [name for name in self.state_attributes if not hasattr(self, name)]:
            raise StateError(
                f"strategy {class_name} names {', '.join(unset)} in state_attributes and has not "
                "set it; set each in setup, for example to None, or pass --resumable off"
            )
        state = {}
        for name in self.state_attributes:
            value = getattr(self, name)
            for part in value if isinstance(value, (list, tuple)) else (value,):
                is_tensor = isinstance(part, Tensor) and part.numel() > 0
                if is_tensor and part.data_ptr() in model_pointers:
                    raise StateError(
                        f"{name} in state_attributes of strategy {class_name} is a weight of the "
                        "model, which is stored anyway; name it in temporary_attributes"
                    )
            if isinstance(value, _GENERATORS):
                value = {"generator": _get_generator_state(value)}
            elif hasattr(value, "state_dict"):
                value = {"state_dict": value.state_dict()}
            elif is_dataclass(value):
                value = {"fields": {f.name: getattr(value, f.name) for f in fields(value)}}
            state[name] = value
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, in a strategy that was just built.

        Args:
            state: tensors are on the CPU, and are moved to the stream's device.

        Raises:
            StateError: the names are not those in ``state_attributes``, or a value belongs to
                another type of attribute.
        """
        if state.keys() != set(self.state_attributes):
            raise StateError(
                f"the training state has {one_line(', '.join(state), 200)} of the strategy; "
                f"expected {', '.join(self.state_attributes)}"
            )
        for name, value in state.items():
            current = getattr(self, name)
            is_wrapped = isinstance(value, dict) and value.keys() == {"state_dict"}
            if hasattr(current, "state_dict") != is_wrapped:
                raise StateError(f"the training state does not contain {name} of this strategy")
            if isinstance(current, _GENERATORS):
                _set_generator_state(current, value["generator"])
            elif isinstance(current, torch.optim.Optimizer) and is_wrapped:
                load_optimizer_state(current, value["state_dict"])
            elif is_wrapped:
                current.load_state_dict(value["state_dict"])
            elif (
                isinstance(value, dict)
                and value.keys() == {"fields"}
                and is_dataclass(type(current))
            ):
                values = _move_to_device(value["fields"], self.stream.device)
                setattr(self, name, type(current)(**values))
            elif isinstance(current, nn.Parameter):  # an optimiser of the strategy may refer to it
                current.data.copy_(value)
            else:
                setattr(self, name, _move_to_device(value, self.stream.device))


class Strategy(RestoredAttributes, ABC):
    """A method against forgetting. One object is used for one run.

    Every hook has a default. Together, the defaults train on the new bucket only. A strategy
    overrides the hooks in which it differs. They are called in this order:

    - :meth:`build_model` and :meth:`setup`, once;
    - for each bucket :meth:`learn`, which by default takes optimiser steps on
      :meth:`load_training_set`, and then :meth:`after_bucket`;
    - in each epoch :meth:`begin_epoch` and :meth:`load_rehearsal_batches`;
    - in each step :meth:`compute_loss` (called by :meth:`compute_loss_share`),
      :meth:`before_step` and :meth:`after_step`.

    Nothing in a step may make the host wait for the device (``.item()``, ``if tensor:``).

    Args:
        config: the run's parameters.
        stream: the training data. A strategy that reads only the current bucket learns without
            access to past data.
        model: the model to train, from :meth:`build_model` or the parameters.
        arguments: the strategy's arguments, an instance of :attr:`Arguments`.
    """

    @dataclass(frozen=True)
    class Arguments:
        """Arguments that ``strategy_args`` may set: fields with defaults."""

    needs_memory: ClassVar[bool] = False  # True if it has a buffer: memory=0 is then an error
    needs_features: ClassVar[bool] = False  # True if it trains on stored features, not on images
    # True if several processes may each compute a share of every batch. The loss must then be a
    # mean over the batch's images plus terms that depend only on weights, or the strategy overrides
    # compute_loss_share. Other hooks that read batches combine their results by self.group.
    supports_distributed: ClassVar[bool] = False
    # True if the trainer takes steps in every bucket: test_every tests between these steps.
    steps_in_every_bucket: ClassVar[bool] = True
    # True if nothing reads a bucket's images before its steps do. With stream_rate, steps skip some
    # images; in after_bucket, the stream contains only those that were trained on.
    supports_realtime: ClassVar[bool] = True
    group: ProcessGroup = SINGLE_PROCESS  # processes that train together; set by the loop

    def __init__(
        self, config: TrainConfig, stream: TrainingStream, model: nn.Module, arguments: Any
    ) -> None:
        self.config = config
        self.stream = stream
        self.model = model
        self.arguments = arguments
        self.setup()

    def setup(self) -> None:
        """Create the strategy's state. The constructor's arguments are attributes already."""
        return

    def count_stored_images(self, bucket_index: int) -> int:
        """Return how many images the strategy still needs, by default 0."""
        return 0

    @classmethod
    def count_epochs(cls, config: TrainConfig, arguments: Any) -> int:
        """Return the number of epochs per bucket, by default the run's ``epochs``."""
        return config.epochs

    @classmethod
    def build_model(cls, config: TrainConfig, stream: TrainingStream) -> nn.Module | None:
        """Return the strategy's own model, None for the parameters' model."""
        return None

    @classmethod
    def has_custom_model(cls) -> bool:
        """Return True if the strategy overrides :meth:`build_model`."""
        return cls.build_model.__func__ is not Strategy.build_model.__func__  # type: ignore[attr-defined]

    @classmethod
    def list_replaced_parameters(cls, config: TrainConfig, arguments: Any) -> set[str]:
        """Return the parameters that the strategy replaces, not logged then.

        By default: ``model`` and ``weights`` if it overrides :meth:`build_model`,
        ``label_smoothing`` if no method that computes the loss reads ``self.config``, and
        ``epochs`` if :meth:`count_epochs` does not depend on them; for a :meth:`learn` that uses
        neither the trainer nor ``self.config``, all parameters of the optimisation. Override it if
        other code reads or replaces parameters.
        """
        replaced = {"model", "weights"} if cls.has_custom_model() else set()
        # What reads the configuration may pass it on, and an overridden method may be called: a
        # parameter that acted must be logged, so that runs with other values are not its seeds.
        unknown = {"config", "super"}
        names = _list_names_used(cls, "learn")
        if not names & {"train_bucket", *unknown}:
            steps = {name for name, option in PARAMETERS.items() if option.group == OPTIMISATION}
            return replaced | (steps - {"augment"})  # the stream reads it
        if not _list_names_used(cls, "compute_loss_share") & unknown:
            replaced.add("label_smoothing")
        tried = (replace(config, epochs=n) for n in (1, config.epochs, config.epochs + 1))
        if len({cls.count_epochs(other, arguments) for other in tried}) == 1:
            replaced.add("epochs")
        return replaced

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Train the model on a bucket, by default in optimiser steps."""
        trainer.train_bucket(
            self.load_training_set(bucket_index), bucket_index=bucket_index, strategy=self
        )

    def load_training_set(self, bucket_index: int) -> Samples:
        """Return the images that each epoch trains on, by default the bucket's."""
        return self.stream.train(bucket_index)

    def begin_epoch(self, bucket_index: int, epoch: int, num_steps: int) -> None:
        """Prepare for an epoch of *num_steps* steps."""
        return

    def load_rehearsal_batches(
        self, bucket_index: int, epoch: int, num_steps: int
    ) -> Iterable[tuple[Batch, ...]]:
        """Return the additional batches of each step of an epoch, for ``batch.rehearsed``.

        By default, no step has any: each result is an empty tuple. Every step must have the same
        number of batches, with the same sizes, since the model may be compiled for them.

        Args:
            bucket_index: index of the bucket.
            epoch: index of the epoch within the bucket.
            num_steps: number of steps, and of results.
        """
        return itertools.repeat((), num_steps)

    def compute_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return a step's loss, a scalar, by default the criterion's mean.

        Args:
            forward: the model in training mode. Call this instead of the model: it may be compiled
                or distributed over devices.
            batch: part of the training set.
        """
        return self.criterion(forward(batch.inputs), batch.labels)

    def compute_loss_share(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share. The mean of all shares is the loss.

        By default, this is :meth:`compute_loss` weighted by the share of the batch. Override it if
        the loss contains means over other images, each computed by :func:`compute_mean_share`.

        Args:
            forward: the model, as in :meth:`compute_loss`. Call it exactly once, even for an empty
                share: processes wait for each other's gradients.
            batch: this process's share of the batch, which may be empty.
        """
        if len(batch.labels) == 0:
            return forward(batch.inputs).float().sum() * 0  # an empty share adds nothing
        loss = self.compute_loss(forward, batch)
        return loss if self.group.size == 1 else loss * batch.weight

    def criterion(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy with the run's label smoothing."""
        return cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing)

    def before_step(self) -> None:
        """Change gradients before they are clipped and used."""
        return

    def after_step(self) -> None:
        """Run after the optimiser has changed the weights."""
        return

    def after_bucket(self, bucket_index: int) -> None:
        """Run after training on a bucket, before its row is measured."""
        return

    def count_flops_after(self, bucket_index: int) -> int | None:
        """Return the FLOPs of :meth:`after_bucket`, for which a budget leaves room.

        By default None: as many as after the steps of the bucket before, and none in the first.
        """
        return None


def _list_names_used(strategy: type[Strategy], method: str) -> set[str]:
    """List the names in a method's code, and in what it calls."""
    names, waiting = set[str](), {method}
    while waiting:
        function = inspect.unwrap(getattr(strategy, waiting.pop(), len))
        new_names = _list_names(getattr(function, "__code__", None)) - names
        names |= new_names
        waiting |= new_names
    return names


def _list_names(code: CodeType | None) -> set[str]:
    if code is None:
        return set()
    nested = (part for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names}.union(*map(_list_names, nested))


def _get_generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    # With lists for its arrays, which are unsigned: files of tensors have no such arrays.
    return json.loads(json.dumps(generator.bit_generator.state, default=np.ndarray.tolist))


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        positions = state["state"].get("pos", 0), state.get("buffer_pos", 0)
        if not (0 <= positions[0] <= 624 and 0 <= positions[1] <= 4):
            raise ValueError("the state of numpy's generator points beyond its numbers")
        generator.bit_generator.state = state


def _move_to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_move_to_device(part, device) for part in value)
    if isinstance(value, dict):
        return {key: _move_to_device(part, device) for key, part in value.items()}
    return value


def compute_mean_share(
    batch: Batch, logits: Tensor, mean: Callable[[Tensor, Tensor], Tensor], target: Tensor
) -> Tensor:
    """Return this process's term of a batch's mean, 0 without images.

    The mean of all processes' terms is the mean loss. mean: function of *logits* and *target* that
    returns a mean over images. logits, target: of this process's share.
    """
    if len(batch.labels) == 0:
        return logits.float().sum() * 0  # the other processes wait for this one's gradients
    return mean(logits, target) * batch.weight


def build_buffer(
    config: TrainConfig,
    stream: TrainingStream,
    arguments: BufferArguments,
    buffer_class: type[Buffer] | None = None,
    *,
    extra_bytes: int = 0,
) -> Buffer:
    """Build an empty buffer of the size that the parameters allow.

    That is ``memory`` or ``memory_budget``.

    extra_bytes: bytes that the strategy stores with each image, for example its logits.

    Raises ConfigError if the buffer is too small for one image.
    """
    total = sum(stream.train_counts)
    if config.memory_budget:
        image_bytes = stream.image_bytes + _INDEX_BYTES + extra_bytes
        count_bytes = 8 * stream.num_classes  # a buffer may count the images of each class
        capacity = min((config.memory_budget - count_bytes) // image_bytes, total)
        if capacity < 1:
            raise ConfigError(
                f"memory_budget is {config.memory_budget:,} bytes, and an image in the memory of "
                f"strategy {config.strategy} takes {image_bytes:,}; pass more, or memory_budget=0",
                parameter="memory_budget",
            )
    else:
        memory = config.memory
        # In decimal: 0.29 of 100 images are 29, and the nearest float is below that.
        capacity = memory if isinstance(memory, int) else int(Decimal(str(memory)) * total)
        if capacity == 0:
            raise ConfigError(
                f"memory is {memory}, which is less than one of {total} training images; pass more",
                parameter="memory",
            )
    return (buffer_class or get_buffer_class(arguments.buffer))(
        capacity=capacity, num_classes=stream.num_classes, seed=config.seed, alpha=arguments.alpha
    )


def build_untrained_model(
    strategy: type[Strategy],
    stream: TrainingStream,
    config: TrainConfig,
    bucket_index: int | None = None,
) -> nn.Module:
    """Seed the global generators, and build the model as before training.

    That is the strategy's own model, a model on features, or the named model for images. Seeds the
    generators of the process, and downloads ``DEFAULT`` weights if they are missing.

    bucket_index: the bucket in which a strategy starts again from other random weights, or None
    for the run's initial weights.
    """
    indices = () if bucket_index is None else (bucket_index,)
    seed_everything(config.seed, RngPurpose.WEIGHTS, *indices)
    num_classes = stream.num_classes
    if (own_model := strategy.build_model(config, stream)) is not None:
        sides = (3, config.image_size, config.image_size)
        shape = (stream.width,) if isinstance(stream, FeatureStream) else sides
        inputs, owner = torch.zeros(2, *shape), f"the model of strategy {config.strategy}"
        model = prepare_custom_model(own_model, owner, inputs, num_classes)
        if config.freeze == "backbone":
            freeze_backbone(model, num_classes)
    elif isinstance(stream, FeatureStream):
        model = build_feature_model(config.model, stream.width, num_classes=num_classes)
    else:
        model = build_model(
            config.model,
            num_classes=num_classes,
            image_size=config.image_size,
            weights=config.weights,
            freeze=config.freeze,
        )
    return model.to(stream.device)
