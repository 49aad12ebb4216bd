"""Predictions for each test image: the rows of the matrix, one level finer.

They are stored as safetensors: numbers behind a JSON header, and nothing that a reader could be
made to execute. A run has one file that lists the test images, and one small file per row, in the
order of that list. docs/record-format.md describes the format for authors of other programs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr

PREDICTIONS_FOLDER = "predictions"
EVALUATION_SET_FILE = "evaluation_set.safetensors"

KEEP_PREDICTIONS = ("labels", "none", "probs")

_FORMAT = "clear_mlflow/predictions"
_VERSION = "1.0"
_METADATA = "__metadata__"
_CONTENT_BYTES = 16  # of each image's SHA-256: enough to distinguish any two images


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationSet:
    """The test images of all buckets, in the predictions' order."""

    buckets: tuple[str, ...]  # keys of all buckets, in stream order
    class_names: tuple[str, ...]  # the index is the label
    bucket: NDArray[np.uint16]  # (N,), index of each image's bucket in buckets, ascending
    label: NDArray[np.uint16]  # (N,), true class of each image
    content: NDArray[np.uint8]  # (N, 16), first bytes of the SHA-256 of each image's file
    names: tuple[str, ...]  # (N,), name of each image's file, without its extension

    def __post_init__(self) -> None:
        count, width, classes = len(self.names), len(self.buckets), len(self.class_names)
        for name, dtype, shape in (
            ("bucket", np.uint16, (count,)),
            ("label", np.uint16, (count,)),
            ("content", np.uint8, (count, _CONTENT_BYTES)),
        ):
            array = getattr(self, name)
            if array.shape != shape or array.dtype != dtype:
                raise RecordError(
                    f"{name} of an evaluation set is {array.dtype} of shape {array.shape}; "
                    f"expected {np.dtype(dtype)} of shape {shape}"
                )
            array.setflags(write=False)
        if count == 0 or not self.buckets or not self.class_names:
            raise RecordError("got an evaluation set without images, buckets or classes")
        if (width + 1) * width * classes > untrusted.MAX_CELLS_PER_CLASS:
            raise RecordError(
                f"got an evaluation set of {width} buckets and {classes} classes; expected "
                f"(buckets + 1) * buckets * classes to be at most {untrusted.MAX_CELLS_PER_CLASS}"
            )
        is_ordered = bool((np.diff(self.bucket.astype(np.int64)) >= 0).all())
        if int(self.bucket.max()) >= width or not is_ordered:
            raise RecordError(
                "bucket of an evaluation set is out of range or out of order; expected 0 to "
                f"{width - 1}, ascending"
            )
        if int(self.label.max()) >= classes:
            raise RecordError(
                f"label of an evaluation set is {int(self.label.max())}; expected 0 to "
                f"{classes - 1}"
            )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def num_instances(self) -> tuple[int, ...]:
        """Images per bucket."""
        return tuple(np.bincount(self.bucket, minlength=len(self.buckets)).tolist())

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        """Images of each class in each bucket, (T, classes)."""
        counts = np.zeros((len(self.buckets), len(self.class_names)), dtype=np.int64)
        np.add.at(counts, (self.bucket, self.label), 1)
        return counts

    @cached_property
    def digest(self) -> str:
        """Hash of bucket keys, classes, labels and contents in order."""
        hasher = hashlib.sha256(json.dumps([list(self.buckets), list(self.class_names)]).encode())
        for array in (self.bucket.astype("<u2"), self.label.astype("<u2"), self.content):
            hasher.update(np.ascontiguousarray(array).tobytes())
        return f"sha256:{hasher.hexdigest()}"

    def to_bytes(self) -> bytes:
        """Return the content of the evaluation set's file."""
        names = np.frombuffer("\n".join(self.names).encode(), dtype=np.uint8)
        arrays: dict[str, NDArray[Any]] = {
            "bucket": self.bucket,
            "label": self.label,
            "content": self.content,
            "names": names,
        }
        return tensors_to_bytes(
            arrays,
            buckets=json.dumps(list(self.buckets)),
            class_names=json.dumps(list(self.class_names)),
            digest=self.digest,
        )

    @classmethod
    def load(cls, path: Path) -> EvaluationSet:
        """Read an untrusted file of :meth:`to_bytes`, or raise RecordError.

        Raises RecordError if it cannot be read, is invalid, or has another digest than it states.
        """
        with convert_file_errors(path):
            arrays, metadata = read_tensors(path, {"bucket", "label", "content", "names"})
            try:
                names = tuple(arrays["names"].astype(np.uint8).tobytes().decode().split("\n"))
            except UnicodeDecodeError as error:
                raise RecordError("names is not a Unicode text") from error
            images = cls(
                buckets=parse_texts(metadata, "buckets"),
                class_names=parse_texts(metadata, "class_names"),
                bucket=arrays["bucket"],
                label=arrays["label"],
                content=arrays["content"],
                names=names,
            )
            if images.digest != metadata.get("digest"):
                raise RecordError(
                    f"its digest is {images.digest}, but it contains the digest "
                    f"{safe_repr(metadata.get('digest'), 80)}; the file was changed"
                )
        return images


@dataclass(frozen=True, eq=False, kw_only=True)
class RowPredictions:
    """Predictions that one row of the matrix is counted from."""

    row: int  # buckets trained so far; 0 is the initialisation
    # (N,), predicted class of each image of the evaluation set; uint8 up to 256 classes.
    labels: NDArray[np.uint8] | NDArray[np.uint16]
    evaluation_set: str  # digest of the images
    # (N, classes), softmax of the model's output; the label is its argmax before rounding.
    probabilities: NDArray[np.float16] | None = None

    def __post_init__(self) -> None:
        if self.row < 0:
            raise RecordError(f"row of predictions is {self.row}; expected 0 or more")
        if self.labels.ndim != 1 or self.labels.dtype not in (np.uint8, np.uint16):
            raise RecordError(
                f"labels of predictions are {self.labels.dtype} of shape {self.labels.shape}; "
                "expected one uint8 or uint16 per image"
            )
        self.labels.setflags(write=False)
        probabilities = self.probabilities
        if probabilities is None:
            return
        if (
            probabilities.ndim != 2
            or probabilities.dtype != np.float16
            or len(probabilities) != len(self.labels)
            # NaN fails both comparisons.
            or not bool(((probabilities >= 0) & (probabilities <= 1)).all())
        ):
            raise RecordError(
                "probabilities of predictions must be float16 from 0 to 1, one per class, for "
                "each image"
            )
        probabilities.setflags(write=False)

    def check(self, images: EvaluationSet, cells: Sequence[float] | None = None) -> None:
        """Raise RecordError if predictions contradict images, classes or cells.

        cells: accuracies of the row, which may be rounded by up to half an image. NaN is not
        compared, nor any cell if it is None.
        """
        if self.evaluation_set != images.digest or len(self.labels) != len(images):
            raise RecordError(f"predictions of row {self.row} belong to another evaluation set")
        classes = len(images.class_names)
        width = classes if self.probabilities is None else self.probabilities.shape[1]
        if int(self.labels.max()) >= classes or width != classes:
            raise RecordError(
                f"predictions of row {self.row} contain a class that is not one of the {classes}"
            )
        if cells is None:
            return
        counts = zip(self.count_correct(images), images.num_instances, cells, strict=True)
        for correct, count, cell in counts:
            # Other programs round accuracies, but by less than half an image.
            if not math.isnan(cell) and abs(correct / count - cell) > 0.5 / count:
                raise RecordError(
                    f"predictions of row {self.row} have an accuracy of {correct / count:.4f}, "
                    f"but the stored row has {cell:.4f}"
                )

    def find_hits(self, images: EvaluationSet) -> NDArray[np.bool_]:
        """Return (N,): True for images that were classified correctly."""
        return np.equal(self.labels, images.label)

    def count_correct(self, images: EvaluationSet) -> tuple[int, ...]:
        """Count the images classified correctly, per bucket."""
        counts = np.bincount(images.bucket[self.find_hits(images)], minlength=len(images.buckets))
        return tuple(counts.tolist())

    def to_bytes(self) -> bytes:
        """Return the content of the file of this row's predictions."""
        arrays: dict[str, NDArray[Any]] = {"labels": self.labels}
        if self.probabilities is not None:
            arrays["probabilities"] = self.probabilities
        return tensors_to_bytes(arrays, row=str(self.row), evaluation_set=self.evaluation_set)

    @classmethod
    def load(cls, path: Path) -> RowPredictions:
        """Read an untrusted file of :meth:`to_bytes`, or raise RecordError.

        Raises RecordError if it cannot be read, is invalid, or is named after another row.
        """
        with convert_file_errors(path):
            arrays, metadata = read_tensors(path, {"labels"}, {"probabilities"})
            row = metadata.get("row", "")
            if (
                not re.fullmatch(r"[0-9]{1,9}", row)
                or format_predictions_file_name(int(row)) != path.name
            ):
                raise RecordError(f"contains the predictions of row {safe_repr(row)}")
            return cls(
                row=int(row),
                labels=arrays["labels"],
                probabilities=arrays.get("probabilities"),
                evaluation_set=metadata.get("evaluation_set", ""),
            )


def format_predictions_file_name(row: int) -> str:
    """Return the name of the file of a row's predictions.

    >>> format_predictions_file_name(4)
    'row_004.safetensors'
    """
    return f"row_{row:03d}.safetensors"


@contextmanager
def convert_file_errors(path: Path) -> Iterator[None]:
    """Convert errors of the block to RecordErrors that name the file."""
    try:
        yield
    except RecordError as error:
        raise RecordError(f"{path.name}: {error}") from error
    except OSError as error:
        raise RecordError(f"{path.name}: cannot be read ({error.strerror or error})") from error


def parse_texts(metadata: dict[str, str], name: str) -> tuple[str, ...]:
    """Parse a metadata field, a JSON list of texts, or raise RecordError."""
    texts = untrusted.parse_json(metadata.get(name, ""), untrusted.MAX_METADATA_BYTES)
    checked: tuple[str, ...] = untrusted.convert(texts, tuple[str, ...], name)
    return checked


def tensors_to_bytes(arrays: Mapping[str, NDArray[Any]], **metadata: str) -> bytes:
    """Return the bytes of a safetensors file. Equal contents have equal bytes.

    metadata: fields of its header, next to ``format`` and ``version``.
    """
    # The package itself writes metadata in arbitrary order.
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header[_METADATA] = {"format": _FORMAT, "version": _VERSION, **metadata}
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the numbers, as the format requires
    return len(text).to_bytes(8, "little") + text + content[start:]


def read_tensors(
    path: Path, expected: Set[str], optional: Set[str] = frozenset()
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read arrays and metadata of a safetensors file, or raise RecordError.

    Raises RecordError if it is too large, invalid or of another major version, lacks an *expected*
    array, or has one that is not *optional* either. Raises OSError if it cannot be read.
    """
    content = untrusted.read_bytes(path, untrusted.MAX_PREDICTIONS_BYTES)
    try:
        arrays = load(content)
    # The last three for types and shapes that NumPy does not have.
    except (SafetensorError, LookupError, ValueError, TypeError) as error:
        raise RecordError(
            f"is not a safetensors file of numbers: {safe_repr(str(error), 100)}"
        ) from error
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    metadata = (
        untrusted.parse_json_object(header, untrusted.MAX_METADATA_BYTES).get(_METADATA) or {}
    )
    if metadata.get("format") != _FORMAT or not expected <= arrays.keys() <= expected | optional:
        raise RecordError(f"is not a file of {_FORMAT}")
    if metadata.get("version", "").partition(".")[0] != _VERSION.partition(".")[0]:
        raise RecordError(
            f"has version {safe_repr(metadata.get('version'))} of the format; this clear_mlflow "
            f"reads {_VERSION.partition('.')[0]}.x: upgrade it"
        )
    return arrays, metadata
