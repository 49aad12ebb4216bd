"""A training between two buckets, as a file: tensors, and a description of all the rest.

Nothing in the file is executed: it is safetensors, whose description is JSON. What it holds is
written into a model, a strategy and an optimiser that were built as at the start of the run, so the
file names no class and no module.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from clear_mlflow.core.errors import StateError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.buffers._base import Buffer
from clear_mlflow.learning.descent import GradientDescent
from clear_mlflow.learning.samples.indices import SampleIndices
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.strategies._statistics import ClassMeans

FORMAT = 1

_DESCRIPTION = "clear_mlflow"  # the one key of the file's metadata
_PREDICTIONS = "predictions"
# What a strategy is given anew when it is built again.
_GIVEN = frozenset({"config", "stream", "model", "arguments", "group"})
# Kinds of number that safetensors and torch both have; of an array, the same by numpy's names.
_ARRAYS = frozenset(
    ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
_DEEPEST = 40

Node = Any  # a JSON value that _Reader understands


@dataclass(frozen=True)
class Snapshot:
    """What :func:`capture` found.

    Its tensors may be the training's own: write them out before it continues.
    """

    tensors: Mapping[str, Tensor]
    description: Mapping[str, Node]


@dataclass(frozen=True, eq=False)
class SavedTraining:
    """What a file holds: the row that was measured last, and what training resumes from.

    Args:
        row: what was measured.
        predictions: the row's file of predictions; None where they are not kept.
        snapshot: for :func:`restore`.
    """

    row: AccuracyRow
    predictions: bytes | None
    snapshot: Snapshot

    @property
    def model(self) -> dict[str, Tensor]:
        """The model's tensors by their names."""
        with _report_damage("holds no model"):
            named = self.snapshot.description["model"]["dict"]
            return {name["value"]: self.snapshot.tensors[node["tensor"]] for name, node in named}


def capture(model: nn.Module, strategy: Strategy, descent: GradientDescent) -> Snapshot:
    """Capture everything that decides how a training continues.

    That is the model, the strategy's attributes, the optimiser where it is kept from bucket to
    bucket, and the process-wide generators of random numbers; and the number of steps so far, at
    which the curve continues.

    Raises:
        StateError: the strategy keeps something that cannot be written down.
    """
    writer = _Writer(model)
    attributes = {
        name: writer.encode(value, f"the attribute {name} of strategy {type(strategy).__name__}")
        for name, value in vars(strategy).items()
        if name not in _GIVEN and name not in strategy.scratch
    }
    optimizer = descent.optimizer_state()
    description = {
        "model": writer.encode(dict(model.state_dict()), "the model", whole=True),
        "trained": [name for name, weight in model.named_parameters() if weight.requires_grad],
        "strategy": attributes,
        "optimizer": None
        if optimizer is None
        else [list(optimizer[0]), writer.encode(optimizer[1], "the optimiser")],
        "random": writer.encode(_random_states(), "random states"),
        "steps": descent.curve.steps,
    }
    return Snapshot(writer.tensors, description)


def restore(
    snapshot: Snapshot, model: nn.Module, strategy: Strategy, descent: GradientDescent
) -> None:
    """Make a training that was just built continue where another one was captured.

    Args:
        snapshot: of a training with the same parameters and data.
        model: as it was built; changed in place.
        strategy: built on it; its attributes are set.
        descent: built on it.

    Raises:
        StateError: the snapshot is damaged, or of another model or strategy.
    """
    reader = _Reader(snapshot.tensors, model)
    described = snapshot.description
    with _report_damage("is not of this model and strategy"):
        model.load_state_dict(reader.decode(described["model"]))
        trained = set(described["trained"])
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in trained)
        for name, node in described["strategy"].items():
            if name in _GIVEN or callable(getattr(type(strategy), name, None)):
                raise StateError(f"the training state sets {name!r}, which no strategy keeps")
            setattr(strategy, name, reader.decode(node, vars(strategy).get(name)))
        if described["optimizer"] is not None:
            names, node = described["optimizer"]
            state = reader.on_cpu().decode(node)
            descent.restore_optimizer([str(name) for name in names], state)
        _set_random_states(reader.decode(described["random"]))
        # A run that has no curve of its buckets so far begins one here.
        descent.curve.steps = int(described.get("steps", 0))


def to_bytes(snapshot: Snapshot, row: AccuracyRow, predictions: bytes | None) -> bytes:
    """A snapshot, and the row that it follows, as the content of a file."""
    tensors = dict(snapshot.tensors)
    if predictions is not None:
        content = np.frombuffer(predictions, dtype=np.uint8).copy()
        tensors[_PREDICTIONS] = torch.from_numpy(content)
    described = {
        "format": FORMAT,
        "row": row.row,
        "buckets": row.buckets,
        "correct": row.correct,
        "num_instances": row.num_instances,
        **snapshot.description,
    }
    return save(tensors, metadata={_DESCRIPTION: json.dumps(described)})


def read_state(path: Path) -> SavedTraining:
    """Read what :func:`to_bytes` wrote.

    Raises:
        StateError: the file cannot be read, or is no such file.
    """
    with (
        _report_damage("cannot be read"),
        safe_open(path, framework="pt") as file,
    ):
        described = json.loads((file.metadata() or {})[_DESCRIPTION])
        if described["format"] != FORMAT:
            raise StateError(
                f"the training state is of format {described['format']!r}; this clear_mlflow reads "
                f"{FORMAT}: resume with the version that wrote it"
            )
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        kept = tensors.pop(_PREDICTIONS, None)
        row = AccuracyRow(
            row=described["row"],
            buckets=tuple(described["buckets"]),
            correct=tuple(described["correct"]),
            num_instances=tuple(described["num_instances"]),
        )
    predictions = None if kept is None else kept.numpy().tobytes()
    return SavedTraining(row, predictions, Snapshot(tensors, described))


@contextmanager
def _report_damage(problem: str) -> Iterator[None]:
    """Turn the many ways in which a damaged file shows into one line."""
    try:
        yield
    except StateError:
        raise
    except (
        SafetensorError,
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RuntimeError,  # and RecursionError
        ArithmeticError,
        AssertionError,
    ) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"the training state {problem} ({type(error).__name__}: {reason[:200]}); start a new "
            "run"
        ) from error


def _random_states() -> dict[str, Any]:
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy(),
        "numpy": (kind, np.asarray(keys).astype(np.int64), position, has_gauss, cached),
        "python": random.getstate(),
    }
    # Asking would initialise it, in a run on a CPU, too.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state().numpy()
    return states


def _set_random_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(_random_state(states["torch"]))
    kind, keys, position, *rest = states["numpy"]
    if not 0 <= position <= len(keys):
        # numpy would read on from there, beyond the keys.
        raise ValueError(f"numpy's generator is at {position} of {len(keys)} numbers")
    np.random.set_state((kind, keys.astype(np.uint32), position, *rest))
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(_random_state(states["cuda"]))


def _random_state(kept: Any) -> Tensor:
    """A generator's state, which is on a CPU wherever the training was and is.

    It is an array; a file of an earlier release has a tensor, which was placed with the model.
    """
    return torch.as_tensor(kept).cpu()


def _place(tensor: Tensor) -> tuple[object, ...] | None:
    """Where a tensor's numbers lie; None where it has none."""
    if tensor.numel() == 0:
        return None
    where = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
    return (tensor.device, *where)


class _Writer:
    """Describes values, and collects the tensors in them.

    The same tensor in two places is described as the same, and one of the model's as the model's:
    what is changed in place later has to change in both.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._device = next(model.parameters()).device.type
        self._submodules = {id(part): name for name, part in model.named_modules()}
        self._of_model: dict[object, tuple[str, int]] = {}
        for kind in (model.named_buffers(), model.named_parameters()):
            for name, tensor in kind:
                self._of_model[_place(tensor)] = (name, id(tensor))
        self._of_model.pop(None, None)
        self._written: dict[object, Node] = {}
        self._storages: dict[int, object] = {
            tensor.untyped_storage().data_ptr(): None
            for kind in (model.buffers(), model.parameters())
            for tensor in kind
            if tensor.numel()
        }
        # As long as a tensor lives, no other one lies in its place.
        self._seen: list[Tensor] = []
        self.tensors: dict[str, Tensor] = {}
        self._held: set[int] = set()  # where the memory of these begins

    def encode(self, value: object, what: str, *, whole: bool = False, depth: int = 0) -> Node:
        """Describe a value.

        Args:
            value: what is to be written down.
            what: how to call it in a message.
            whole: the model's own tensors are to be written out, not referred to.
            depth: levels above.
        """
        if depth > _DEEPEST:
            raise StateError(f"{what} is nested too deeply to be kept")

        def inner(part: object) -> Node:
            return self.encode(part, what, whole=whole, depth=depth + 1)

        if value is None or type(value) in (bool, int, float, str):
            return {"value": value}
        if isinstance(value, Tensor):
            return self._tensor(value, what, whole=whole)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, what)
        if type(value) in (list, tuple):
            return {type(value).__name__: [inner(part) for part in cast("list[Any]", value)]}
        if isinstance(value, dict):
            return {"dict": [[inner(key), inner(part)] for key, part in value.items()]}
        if isinstance(value, SampleIndices):
            return {"picks": [inner(value.bucket), inner(value.index)]}
        if isinstance(value, (Buffer, ClassMeans)):
            return {"object": {name: inner(part) for name, part in vars(value).items()}}
        if isinstance(value, nn.Module):
            if id(value) in self._submodules:
                return {"submodule": self._submodules[id(value)]}
            return {
                "module": inner(dict(value.state_dict())),
                "training": value.training,
                "trained": [n for n, weight in value.named_parameters() if weight.requires_grad],
            }
        if isinstance(value, torch.Generator):
            return {"generator": inner(value.get_state().numpy())}
        if callable(getattr(value, "state_dict", None)) and callable(
            getattr(value, "load_state_dict", None)
        ):
            return {"stateful": inner(value.state_dict())}  # type: ignore[attr-defined]
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise StateError(
            f"{what} holds a {kind}, which cannot be kept; expected tensors, arrays, numbers, "
            "texts, lists and dictionaries of these, or an object with state_dict and "
            "load_state_dict: name it in the class's scratch if nothing of it is needed after a "
            "bucket"
        )

    def _tensor(self, tensor: Tensor, what: str, *, whole: bool) -> Node:
        if tensor.grad_fn is not None:
            raise StateError(f"{what} holds a tensor with a graph of gradients; detach() it")
        place = _place(tensor)
        self._seen.append(tensor)
        if place is not None and not whole:
            if place in self._of_model:
                name, number = self._of_model[place]
                return {"of_model": name, "detached": number != id(tensor)}
            if place in self._written:
                return self._written[place]
            storage = tensor.untyped_storage().data_ptr()
            if storage in self._storages and self._storages[storage] != place:
                raise StateError(
                    f"{what} holds a tensor that is a part of another one, which cannot be kept; "
                    "clone() it"
                )
            self._storages[storage] = place
        number = len(self.tensors)
        key = f"tensor_{number:05d}"
        content = tensor.detach().cpu().contiguous()
        memory = content.untyped_storage().data_ptr()
        # Copied only where it has to be: a large model would take as much memory once more.
        self.tensors[key] = content.clone() if memory in self._held else content
        self._held.add(memory)
        # Sums depend on the order in memory, which "channels last" changes.
        stride = list(tensor.stride())
        dense = torch.empty_like(tensor, memory_format=torch.preserve_format).stride()
        node = {
            "tensor": key,
            "stride": None if tensor.is_contiguous() or list(dense) != stride else stride,
            "on_device": tensor.device.type == self._device,
            "requires_grad": tensor.requires_grad,
            "parameter": isinstance(tensor, nn.Parameter),
        }
        if place is not None:
            self._written[place] = node
        return node

    def _array(self, array: np.ndarray[Any, Any] | np.generic, what: str) -> Node:
        if array.dtype.name not in _ARRAYS:
            raise StateError(f"{what} holds an array of {array.dtype}, which cannot be kept")
        key = f"tensor_{len(self.tensors):05d}"
        copied = np.array(array, order="C")
        self.tensors[key] = torch.from_numpy(copied)
        fortran = isinstance(array, np.ndarray) and array.flags.fnc
        return {"array": key, "fortran": fortran, "scalar": isinstance(array, np.generic)}


class _Reader:
    """Makes values of what :class:`_Writer` described."""

    def __init__(self, tensors: Mapping[str, Tensor], model: nn.Module) -> None:
        self._tensors = tensors
        self._model = model
        self._device = next(model.parameters()).device
        self._made: dict[str, Tensor] = {}
        # A weight of the model's is set with the model, and not to what an attribute had.
        self._taken = {id(weight) for weight in model.parameters()}

    def on_cpu(self) -> _Reader:
        """The same, making new tensors on the CPU: how an optimiser's state is to be given to it.

        It moves to the weights' device what belongs there. A count of steps does not, unless the
        optimiser is fused or captured: at every step the host would wait for it, once per weight.
        """
        reader = copy.copy(self)
        reader._device = torch.device("cpu")
        return reader

    def decode(self, node: Node, fresh: object = None) -> Any:
        """Make the value that is described.

        Args:
            node: the description.
            fresh: what a strategy that was just built has in this place.
        """
        kinds: dict[str, Callable[[Node, object], Any]] = {
            "value": lambda node, _: node["value"],
            "tensor": self._tensor,
            "array": self._array,
            "of_model": self._of_model,
            "list": lambda node, _: [self.decode(part) for part in node["list"]],
            "tuple": lambda node, _: tuple(self.decode(part) for part in node["tuple"]),
            "dict": lambda node, _: {self.decode(k): self.decode(v) for k, v in node["dict"]},
            "picks": lambda node, _: SampleIndices(*(self.decode(part) for part in node["picks"])),
            "object": self._object,
            "submodule": lambda node, _: self._model.get_submodule(node["submodule"]),
            "module": self._module,
            "generator": self._generator,
            "stateful": self._stateful,
        }
        kind = next((kind for kind in kinds if kind in node), None)
        if kind is None:
            raise StateError(f"the training state holds {str(node)[:80]!r}, which it cannot")
        return kinds[kind](node, fresh)

    def _tensor(self, node: Node, fresh: object) -> Tensor:
        key = node["tensor"]
        if key not in self._made:
            stored = self._tensors[key]
            made = stored.to(self._device) if node["on_device"] else stored.clone()
            if node["stride"] is not None:
                # What is strided has no gaps: it takes no more memory than the file.
                if 1 + sum(
                    (n - 1) * s for n, s in zip(stored.shape, node["stride"], strict=True)
                ) != (stored.numel()):
                    raise StateError(f"the training state holds {key} with gaps")
                made = torch.empty_strided(
                    stored.shape, node["stride"], dtype=stored.dtype, device=made.device
                ).copy_(stored)
            elif made is stored:
                made = stored.clone()
            if node["parameter"] and self._is_free(fresh, made):
                # The very object: an optimiser of the strategy's own may hold it.
                self._taken.add(id(fresh))
                with torch.no_grad():
                    made = cast("nn.Parameter", fresh).copy_(made)
                made.requires_grad_(node["requires_grad"])
            elif node["parameter"]:
                made = nn.Parameter(made, requires_grad=node["requires_grad"])
            elif node["requires_grad"]:
                made.requires_grad_()
            self._made[key] = made
        return self._made[key]

    def _is_free(self, fresh: object, made: Tensor) -> bool:
        return (
            isinstance(fresh, nn.Parameter)
            and fresh.shape == made.shape
            and fresh.dtype == made.dtype
            and id(fresh) not in self._taken
        )

    def _array(self, node: Node, fresh: object) -> Any:
        array = self._tensors[node["array"]].clone().numpy()
        if node["scalar"]:
            return array[()]
        return np.asfortranarray(array) if node["fortran"] else array

    def _of_model(self, node: Node, fresh: object) -> Tensor:
        found = {**dict(self._model.named_buffers()), **dict(self._model.named_parameters())}
        tensor = found[node["of_model"]]
        return tensor.detach() if node["detached"] else tensor

    def _object(self, node: Node, fresh: object) -> object:
        if not isinstance(fresh, (Buffer, ClassMeans)):
            raise StateError("the training state holds a buffer where the strategy has none")
        for name, part in node["object"].items():
            if callable(getattr(type(fresh), name, None)):
                raise StateError(f"the training state sets {name!r}, which no buffer keeps")
            setattr(fresh, name, self.decode(part, vars(fresh).get(name)))
        return fresh

    def _module(self, node: Node, fresh: object) -> nn.Module:
        module = fresh if isinstance(fresh, nn.Module) else copy.deepcopy(self._model)
        module.load_state_dict(self.decode(node["module"]))
        module.train(node["training"])
        trained = set(node["trained"])
        for name, weight in module.named_parameters():
            weight.requires_grad_(name in trained)
        return module

    def _generator(self, node: Node, fresh: object) -> torch.Generator:
        generator = torch.Generator()
        generator.set_state(_random_state(self.decode(node["generator"])))
        return generator

    def _stateful(self, node: Node, fresh: object) -> object:
        reader = self.on_cpu() if isinstance(fresh, torch.optim.Optimizer) else self
        cast("Any", fresh).load_state_dict(reader.decode(node["stateful"]))
        return fresh
