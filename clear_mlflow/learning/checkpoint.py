"""A training between two buckets, as a file: tensors by readable names, and JSON of all the rest.

Nothing in the file is executed: it is safetensors, whose description is JSON. What it holds is
given to a model, a strategy and an optimiser that were built as at the start of the run, so the
file names no class and no module.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from clear_mlflow.core.errors import StateError
from clear_mlflow.core.matrix import AccuracyRow, RowCost
from clear_mlflow.core.untrusted import convert
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.learning.training.trainer import Trainer

_DESCRIPTION = "clear_mlflow"  # the one key of the file's metadata
_MODEL = "model/"  # before the names of the model's tensors
_PREDICTIONS = "predictions"


@dataclass(frozen=True)
class Snapshot:
    """What :func:`capture` found, apart from the training, which may continue."""

    tensors: Mapping[str, Tensor]
    description: Mapping[str, Any]

    @property
    def model(self) -> dict[str, Tensor]:
        """The model's tensors by their names."""
        found = self.tensors.items()
        return {name.removeprefix(_MODEL): t for name, t in found if name.startswith(_MODEL)}


@dataclass(frozen=True, eq=False)
class SavedTraining:
    """What a file holds: the row that was measured last, and what training resumes from."""

    row: AccuracyRow
    predictions: bytes | None  # the row's file of predictions; None where they are not kept
    snapshot: Snapshot


def capture(model: nn.Module, strategy: Strategy, trainer: Trainer) -> Snapshot:
    """Return everything that decides how a training continues.

    Raises StateError if an attribute of the strategy cannot be stored.
    """
    tensors: dict[str, Tensor] = {}
    description = {
        "trained": [name for name, weight in model.named_parameters() if weight.requires_grad],
        "strategy": _pack(strategy.state_dict(), "strategy", tensors),
        "descent": _pack(trainer.state_dict(), "descent", tensors),
        "random": _pack(_random_states(), "random", tensors),
    }
    tensors |= {_MODEL + name: tensor.detach() for name, tensor in model.state_dict().items()}
    layout = torch.contiguous_format
    own = {name: t.to("cpu", copy=True, memory_format=layout) for name, t in tensors.items()}
    return Snapshot(own, description)


def restore(snapshot: Snapshot, model: nn.Module, strategy: Strategy, trainer: Trainer) -> None:
    """Make a training that was just built continue where another one was captured."""
    described = {
        name: _unpack(node, snapshot.tensors) if name != "trained" else node
        for name, node in snapshot.description.items()
    }
    with _report_damage("is not of this model and strategy"):
        model.load_state_dict(snapshot.model)
        trained = set(described["trained"])
        if unknown := trained - {name for name, _ in model.named_parameters()}:
            raise ValueError(f"it trains {min(unknown)}, which the model lacks")
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in trained)
        strategy.load_state_dict(described["strategy"])
        trainer.load_state_dict(described["descent"])
        _set_random_states(described["random"])


def to_bytes(snapshot: Snapshot, row: AccuracyRow, predictions: bytes | None) -> bytes:
    """A snapshot, and the row that it follows, as the content of a file."""
    tensors = dict(snapshot.tensors)
    if predictions is not None:
        tensors[_PREDICTIONS] = torch.frombuffer(bytearray(predictions), dtype=torch.uint8)
    description = {
        "row": row.row,
        "buckets": row.buckets,
        "correct": row.correct,
        "num_instances": row.num_instances,
        "cost": None if row.cost is None else row.cost.to_dict(),
        **snapshot.description,
    }
    return save(tensors, metadata={_DESCRIPTION: json.dumps(description)})


def read_state(content: bytes) -> SavedTraining:
    """Read what :func:`to_bytes` wrote, or raise StateError."""
    with _report_damage("cannot be read"):
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        described = json.loads(header["__metadata__"][_DESCRIPTION])
        kept = tensors.pop(_PREDICTIONS, None)
        row = AccuracyRow(
            row=described.pop("row"),
            buckets=tuple(described.pop("buckets")),
            correct=tuple(described.pop("correct")),
            num_instances=tuple(described.pop("num_instances")),
            cost=convert(described.pop("cost"), RowCost | None),
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
    except Exception as error:  # of a damaged file there is no closed set of exceptions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"the training state {problem} ({type(error).__name__}: {reason[:200]}); start a new "
            "run"
        ) from error


def _pack(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON, whose tensors and arrays go into *tensors*, each named by its path."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        while path in tensors:  # a key of a dictionary may hold a slash
            path += "'"
        if isinstance(value, np.ndarray):
            try:
                tensors[path] = torch.from_numpy(np.array(value, order="C"))
            except TypeError:
                raise StateError(
                    f"{path} holds an array of {value.dtype}, which cannot be kept"
                ) from None
            return {"array": path}
        tensors[path] = value.detach()
        # What is summed or multiplied next depends on the order in memory, to its last bit.
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
        f"{path} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be "
        "kept; expected tensors, arrays, numbers, texts, lists, tuples and dictionaries of these, "
        "or an object with state_dict and load_state_dict: name it in the class's scratch if "
        "nothing of it is needed after a bucket"
    )


def _unpack(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that :func:`_packed` described, with its tensors on the CPU."""
    with _report_damage("is damaged"):
        if isinstance(node, list):
            return [_unpack(part, tensors) for part in node]
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            layout = torch.channels_last if node["channels_last"] else torch.contiguous_format
            return tensors[node["tensor"]].clone(memory_format=layout)
        if "array" in node:
            return tensors[node["array"]].clone().numpy()
        if "tuple" in node:
            return tuple(_unpack(part, tensors) for part in node["tuple"])
        return {_unpack(key, tensors): _unpack(part, tensors) for key, part in node["dict"]}


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU that share no memory. Copies only where needed."""
    found, held = {}, set()
    for name, tensor in tensors.items():
        content = tensor.cpu().contiguous()
        memory = content.untyped_storage().data_ptr()
        found[name] = content.clone() if memory in held else content
        held.add(memory)
    return found


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
    torch.set_rng_state(torch.from_numpy(states["torch"]))
    kind, keys, position, *rest = states["numpy"]
    if not 0 <= position <= len(keys):
        # numpy would read on from there, beyond the keys.
        raise ValueError(f"numpy's generator is at {position} of {len(keys)} numbers")
    np.random.set_state((kind, keys.astype(np.uint32), position, *rest))
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(torch.from_numpy(states["cuda"]))
