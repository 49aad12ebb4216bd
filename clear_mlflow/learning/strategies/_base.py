"""The base class of strategies, and how a strategy is loaded by its name."""

from __future__ import annotations

import importlib
import itertools
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.core.errors import ConfigError, StateError
from clear_mlflow.core.importing import import_attribute
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.arguments import parse_arguments
from clear_mlflow.learning.buffers import Buffer, BufferArguments, load_buffer
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.conflicts import STRATEGY_CONFLICTS, check_conflicts
from clear_mlflow.learning.registry import known_strategies
from clear_mlflow.learning.samples.decoded import Batch, Samples, TrainingStream
from clear_mlflow.learning.training.trainer import Trainer

_INDEX_BYTES = 4 * 8  # of each image in a buffer: its bucket, index, label and priority
# What a strategy is given anew when it is built again.
_GIVEN = frozenset({"config", "stream", "model", "arguments", "group"})


class Strategy(ABC):  # noqa: B024  (each hook has a default: naive learning)
    """A method against forgetting. One object is used for one run.

    Every hook has a default. Together, the defaults train on the new bucket only. A strategy
    overrides the hooks in which it differs. They are called in this order:

    - :meth:`build_model` and :meth:`setup`, once;
    - for each bucket :meth:`learn`, which by default takes optimiser steps on
      :meth:`training_set`, and then :meth:`after_bucket`;
    - in each epoch :meth:`begin_epoch` and :meth:`rehearsal`, and for each step :meth:`loss`
      (by :meth:`share_of_loss`), :meth:`before_step` and :meth:`after_step`.

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

    needs_memory: ClassVar[bool] = False  # a buffer, so that memory 0 makes no sense
    needs_features: ClassVar[bool] = False  # stored features in the place of images
    # Right when several processes each have a share of every batch: the loss is a mean over the
    # batch's images (and of what depends on weights alone), or share_of_loss is overridden, and
    # what the other hooks make of batches is put together by self.group.
    several_processes: ClassVar[bool] = False
    # Whether every bucket is learned in steps of the trainer, between which test_every can test.
    steps_in_every_bucket: ClassVar[bool] = True
    # Whether its steps are the first to look at a bucket's images, so that stream_rate can have
    # some pass by: in after_bucket the stream has those alone that were trained on.
    supports_realtime: ClassVar[bool] = True
    group: ProcessGroup = ALONE  # that train together; the loop says so, once it is built
    # A strategy's own attributes: those that a resumed run continues with, and those that it has
    # as they are when it begins, since they mean nothing between two buckets. Each is in one.
    keeps: ClassVar[tuple[str, ...]] = ()
    scratch: ClassVar[tuple[str, ...]] = ()

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

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes in :attr:`keeps` by name, from which a resumed run continues.

        An attribute with a ``state_dict`` is replaced by it, and a dataclass from :meth:`setup` by
        its fields. Override this and :meth:`load_state_dict` for values other than tensors,
        arrays, numbers, texts, and lists, tuples or dictionaries of these.

        Raises:
            StateError: an attribute is in neither ``keeps`` nor ``scratch``, or is the model's own.
        """
        who, own = type(self).__name__, {weight.data_ptr() for weight in self.model.parameters()}
        unnamed = vars(self).keys() - _GIVEN - {*self.keeps, *self.scratch}
        if unnamed:
            raise StateError(
                f"strategy {who} has an attribute {min(unnamed)}; name it in the class's keeps if "
                "a resumed run has to continue with it, else in its scratch"
            )
        found = {}
        for name in self.keeps:
            value = getattr(self, name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor) and tensor.numel() and tensor.data_ptr() in own:
                    raise StateError(
                        f"{name} in keeps of strategy {who} holds a weight of the model, which is "
                        "kept anyway; name it in scratch"
                    )
            if hasattr(value, "state_dict"):
                value = {"state_dict": value.state_dict()}
            elif is_dataclass(value):
                value = {"fields": {f.name: getattr(value, f.name) for f in fields(value)}}
            found[name] = value
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, in a strategy that was just built.

        Args:
            state: tensors are on the CPU, and are moved to the stream's device.
        """
        if state.keys() != set(self.keeps):
            raise StateError(
                f"the training state has {one_line(', '.join(state), 200)} of the strategy; "
                f"expected {', '.join(self.keeps)}"
            )
        for name, value in state.items():
            own = getattr(self, name)
            is_wrapped = isinstance(value, dict) and value.keys() == {"state_dict"}
            if hasattr(own, "state_dict") != is_wrapped:
                raise StateError(f"the training state has no {name} of this strategy")
            if is_wrapped:
                own.load_state_dict(value["state_dict"])
            elif isinstance(value, dict) and value.keys() == {"fields"} and is_dataclass(own):
                kind: Any = type(own)
                setattr(self, name, kind(**_move_to_device(value["fields"], self.stream.device)))
            elif isinstance(own, nn.Parameter):  # which an optimiser of the strategy's may hold
                own.data.copy_(value)
            else:
                setattr(self, name, _move_to_device(value, self.stream.device))

    def num_kept_images(self, position: int) -> int:
        """Return the number of images that are kept after the bucket at *position*."""
        return 0

    @classmethod
    def epochs(cls, config: TrainConfig, arguments: Any) -> int:
        """Return how many epochs :meth:`learn` trains on :meth:`training_set` per bucket."""
        return config.epochs

    @classmethod
    def build_model(cls, config: TrainConfig, stream: TrainingStream) -> nn.Module | None:
        """Return the strategy's own model, or None for the model that the parameters name."""
        return None

    @classmethod
    def makes_its_model(cls) -> bool:
        """Return True if the strategy overrides :meth:`build_model`."""
        return cls.build_model.__func__ is not Strategy.build_model.__func__  # type: ignore[attr-defined]

    def learn(self, position: int, trainer: Trainer) -> None:
        """Train the model while the stream is at a bucket."""
        trainer.train_bucket(self.training_set(position), position=position, strategy=self)

    def training_set(self, position: int) -> Samples:
        """Return the training images of an epoch, by default those of the bucket."""
        return self.stream.train(position)

    def begin_epoch(self, position: int, epoch: int, num_steps: int) -> None:
        """Prepare for an epoch of *num_steps* steps."""
        return

    def rehearsal(self, position: int, epoch: int, num_steps: int) -> Iterable[tuple[Batch, ...]]:
        """Return the additional batches of each step of an epoch, for ``batch.rehearsed``.

        Every step must have the same number of batches, with the same sizes, since the model may
        be compiled for them.

        Args:
            position: index of the bucket.
            epoch: index of the epoch within the bucket.
            num_steps: number of steps, and of results.
        """
        return itertools.repeat((), num_steps)

    def loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return the loss of a step: a scalar, the mean over the batch.

        Args:
            forward: the model in training mode. Call this instead of the model: it may be compiled
                or distributed over devices.
            batch: part of the training set.
        """
        return self.criterion(forward(batch.inputs), batch.labels)

    def share_of_loss(self, forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        """Return this process's share of the loss. The mean over processes is the batch's loss.

        By default, this is :meth:`loss` weighted by the share of the batch. Override it if the loss
        contains means over other images, each computed by :func:`share_of_mean`.

        Args:
            forward: see :meth:`loss`. Call it exactly once, even for an empty share: processes wait
                for each other's gradients.
            batch: this process's share of the batch, which may be empty.
        """
        if len(batch.labels) == 0:
            return forward(batch.inputs).float().sum() * 0  # what the mean of nothing adds
        loss = self.loss(forward, batch)
        return loss if self.group.size == 1 else loss * batch.weight

    def criterion(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy with the run's label smoothing."""
        return cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing)

    def before_step(self) -> None:
        """Change gradients after they are computed and before the optimiser uses them."""
        return

    def after_step(self) -> None:
        """Run after the optimiser has changed the weights."""
        return

    def after_bucket(self, position: int) -> None:
        """Run after training on a bucket, before its row is measured."""
        return


def _move_to_device(value: Any, device: torch.device) -> Any:
    """Return a value with all its tensors moved to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_move_to_device(part, device) for part in value)
    if isinstance(value, dict):
        return {key: _move_to_device(part, device) for key, part in value.items()}
    return value


def share_of_mean(
    batch: Batch, logits: Tensor, mean: Callable[[Tensor, Tensor], Tensor], target: Tensor
) -> Tensor:
    """Return a share's term of the mean of (logits, target) over the batch.

    The share may be empty.
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
    """Build an empty buffer that holds as many images as ``memory`` or ``memory_budget`` allows.

    extra_bytes: what the strategy itself keeps with each image, such as logits.

    Raises ConfigError if not even one image has room.
    """
    total = sum(stream.train_counts)
    if config.memory_budget:
        image_bytes = stream.image_bytes + _INDEX_BYTES + extra_bytes
        count_bytes = 8 * stream.num_classes  # a buffer may count the images of each class
        capacity = min((config.memory_budget - count_bytes) // image_bytes, total)
        if capacity < 1:
            raise ConfigError(
                f"memory_budget is {config.memory_budget:,} bytes, and an image in the memory of "
                f"strategy {config.strategy} takes {image_bytes:,}; pass more, or memory_budget=0"
            )
    else:
        memory = config.memory
        # In decimal: 0.29 of 100 images are 29, and the nearest float is below that.
        capacity = memory if isinstance(memory, int) else int(Decimal(str(memory)) * total)
        if capacity == 0:
            raise ConfigError(
                f"memory is {memory}, which of {total} training images is not one; pass more"
            )
    return (buffer_class or load_buffer(arguments.buffer))(
        capacity=capacity, num_classes=stream.num_classes, seed=config.seed, alpha=arguments.alpha
    )


def load_strategy(name: str) -> type[Strategy]:
    """Return the class of a strategy: a built-in name, or package.module:Class.

    Raises ConfigError if it cannot be imported, or is not a subclass of Strategy.
    """
    if name in known_strategies():
        module = importlib.import_module(f"{__package__}.{name}")
        found = getattr(module, "".join(word.capitalize() for word in name.split("_")))
    else:
        found = _load_custom_strategy(name)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ConfigError(
            f"strategy {name} is {found!r}; expected a subclass of {Strategy.__module__}.Strategy"
        )
    return found


def check_strategy(config: TrainConfig, num_processes: int = 1) -> Any:
    """Return the arguments of the strategy, an instance of its class's ``Arguments``.

    Raises ConfigError if an argument is invalid, or if parameters do not fit the strategy.
    """
    strategy = load_strategy(config.strategy)
    arguments = parse_arguments(
        "strategy_args", f"strategy {config.strategy}", strategy.Arguments, config.strategy_args
    )
    check_conflicts(
        STRATEGY_CONFLICTS,
        **vars(config),
        strategy_class=strategy,
        num_epochs=strategy.epochs(config, arguments),
        num_processes=num_processes,
    )
    return arguments


def _load_custom_strategy(name: str) -> Any:
    try:
        return import_attribute(name)
    except Exception as error:  # whatever another package's import may raise
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"strategy {name} cannot be loaded ({problem}); pass package.module:Class, "
            f"importable from here, or one of {', '.join(known_strategies())}"
        ) from error
