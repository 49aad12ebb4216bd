"""Training states between two buckets: files of named tensors, and JSON for everything else.

No content of a file is executed: it is a safetensors file with JSON metadata. A resume builds the
model, the strategy and the optimiser as at the start of the run, and then loads the state into
them. So the file does not name classes or modules.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from clear_mlflow.core.errors import StateError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.untrusted import convert
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer

_DESCRIPTION = "clear_mlflow"  # the one key of the file's metadata
_MODEL = "model/"  # before the names of the model's tensors
_PREDICTIONS = "predictions"


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that decides how a training continues."""

    tensors: Mapping[str, Tensor]
    description: Mapping[str, Any]

    @property
    def model(self) -> dict[str, Tensor]:
        """The model's state dict, on the CPU."""
        return {
            name.removeprefix(_MODEL): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(_MODEL)
        }


@dataclass(frozen=True, eq=False)
class SavedTraining:
    """The content of a state file: last row, and training state."""

    row: AccuracyRow
    predictions: bytes | None  # content of the row's predictions file, or None if it has none
    snapshot: Snapshot


def take_snapshot(model: nn.Module, strategy: Strategy, trainer: Trainer) -> Snapshot:
    """Copy the states of model, strategy, trainer and generators to the CPU.

    Includes which weights are not frozen. Raises StateError if an attribute of the strategy cannot
    be stored.
    """
    tensors: dict[str, Tensor] = {}
    description = {
        "trained": [name for name, weight in model.named_parameters() if weight.requires_grad],
        "strategy": _pack(strategy.state_dict(), "strategy", tensors),
        "descent": _pack(trainer.state_dict(), "descent", tensors),
        "random": _pack(_get_random_states(), "random", tensors),
    }
    tensors |= {_MODEL + name: tensor.detach() for name, tensor in model.state_dict().items()}
    layout = torch.contiguous_format
    copies = {name: t.to("cpu", copy=True, memory_format=layout) for name, t in tensors.items()}
    return Snapshot(copies, description)


def check_state(strategy: Strategy) -> None:
    """Raise StateError if an attribute of a new strategy cannot be stored."""
    _pack(strategy.state_dict(), "strategy", {})


def restore_snapshot(
    snapshot: Snapshot, model: nn.Module, strategy: Strategy, trainer: Trainer
) -> None:
    """Load a snapshot into a new model, strategy, trainer and global generators.

    Freezes the weights that were frozen. Raises StateError if the snapshot does not fit.
    """
    description = {
        name: _unpack(node, snapshot.tensors) if name != "trained" else node
        for name, node in snapshot.description.items()
    }
    with _report_damage("does not fit this model and strategy"):
        model.load_state_dict(snapshot.model)
        trained = set(description["trained"])
        if unknown := trained - {name for name, _ in model.named_parameters()}:
            raise ValueError(f"it trains {min(unknown)}, which the model lacks")
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in trained)
        strategy.load_state_dict(description["strategy"])
        trainer.load_state_dict(description["descent"])
        _set_random_states(description["random"])


def serialize_state(snapshot: Snapshot, row: AccuracyRow, predictions: bytes | None) -> bytes:
    """Return a state file's content: a snapshot, and the last row.

    predictions: content of the row's predictions file, or None to store none.
    """
    tensors = dict(snapshot.tensors)
    if predictions is not None:
        tensors[_PREDICTIONS] = torch.frombuffer(bytearray(predictions), dtype=torch.uint8)
    description = {**msgspec.to_builtins(row), **snapshot.description}
    return save(tensors, metadata={_DESCRIPTION: json.dumps(description)})


def parse_state(content: bytes) -> SavedTraining:
    """Parse a state file's content, or raise StateError if it is damaged."""
    with _report_damage("cannot be read"):
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        description = json.loads(header["__metadata__"][_DESCRIPTION])
        stored_predictions = tensors.pop(_PREDICTIONS, None)
        row: AccuracyRow = convert(description, AccuracyRow)
        description = {k: v for k, v in description.items() if k not in row.__struct_fields__}
        predictions = None if stored_predictions is None else stored_predictions.numpy().tobytes()
        return SavedTraining(row, predictions, Snapshot(tensors, description))


@contextmanager
def _report_damage(problem: str) -> Iterator[None]:
    """Convert errors to StateErrors of one line. problem: after "the training state"."""
    try:
        yield
    except StateError:
        raise
    except Exception as error:  # a damaged file may cause any exception
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"the training state {problem} ({type(error).__name__}: {reason[:200]}); start a new "
            "run"
        ) from error


def _pack(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    """Convert a value to JSON, and add arrays and tensors to *tensors*."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):  # keeps its type, which decides how it is rounded
        return {"scalar": _pack(np.asarray(value), path, tensors)}
    if isinstance(value, (Tensor, np.ndarray)):
        while path in tensors:  # the key of a dictionary may contain a slash
            path += "'"
        if isinstance(value, np.ndarray):
            try:
                tensors[path] = torch.from_numpy(np.array(value, order="C"))
            except TypeError:
                raise StateError(
                    f"{path} is an array of {value.dtype}, which cannot be stored"
                ) from None
            return {"array": path}
        tensors[path] = value.detach()
        # The last bit of sums and products depends on the memory layout.
        layout = value.dim() == 4 and not value.is_contiguous()
        return {"tensor": path, "channels_last": layout}
    if isinstance(value, (list, tuple)):
        parts = [_pack(part, f"{path}/{number}", tensors) for number, part in enumerate(value)]
        return parts if type(value) is list else {"tuple": parts}
    if isinstance(value, Mapping):
        return {
            "dict": [
                [_pack(key, path, tensors), _pack(part, f"{path}/{key}", tensors)]
                for key, part in value.items()
            ]
        }
    raise StateError(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be stored; "
        "expected tensors, arrays, numbers, texts, lists, tuples and dictionaries of these, a "
        "random generator, or an object with state_dict and load_state_dict; if a resumed run does "
        "not need it, name it in the class's temporary_attributes, or pass --resumable off"
    )


def _unpack(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that :func:`_pack` converted, with its tensors on the CPU."""
    with _report_damage("is damaged"):
        if isinstance(node, list):
            return [_unpack(part, tensors) for part in node]
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            layout = torch.channels_last if node["channels_last"] else torch.contiguous_format
            return tensors[node["tensor"]].clone(memory_format=layout)
        if "scalar" in node:
            return _unpack(node["scalar"], tensors)[()]
        if "array" in node:
            return tensors[node["array"]].clone().numpy()
        if "tuple" in node:
            return tuple(_unpack(part, tensors) for part in node["tuple"])
        return {_unpack(key, tensors): _unpack(part, tensors) for key, part in node["dict"]}


def copy_unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU that share no memory."""
    result, pointers = {}, set()
    for name, tensor in tensors.items():
        content = tensor.cpu().contiguous()
        pointer = content.untyped_storage().data_ptr()
        result[name] = content.clone() if pointer in pointers else content
        pointers.add(pointer)
    return result


def _get_random_states() -> dict[str, Any]:
    """Return the global generators' states, ``cuda`` only if initialised."""
    algorithm, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy(),
        "numpy": (algorithm, np.asarray(keys).astype(np.int64), position, has_gauss, cached),
        "python": random.getstate(),
    }
    # get_rng_state would initialise CUDA, even in a run on a CPU.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state().numpy()
    return states


def _set_random_states(states: Mapping[str, Any]) -> None:
    """Set the global generators. A damaged state may raise any error."""
    torch.set_rng_state(torch.from_numpy(states["torch"]))
    algorithm, keys, position, *rest = states["numpy"]
    if not 0 <= position <= len(keys):
        # numpy would read beyond the keys.
        raise ValueError(f"numpy's generator is at {position} of {len(keys)} numbers")
    np.random.set_state((algorithm, keys.astype(np.uint32), position, *rest))
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(torch.from_numpy(states["cuda"]))
