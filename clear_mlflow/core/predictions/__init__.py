"""What a model answered for each test image: the rows of the matrix, one level finer.

Stored as safetensors: plain numbers behind a JSON header, nothing that a reader could be made to
execute. A run holds one file that says which images were tested on, and one small file per row, in
the order of that first file. docs/record-format.md is the same for writers of other programs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.predictions.tensor_file import read_tensors, tensors_to_bytes
from clear_mlflow.core.text import shown

PREDICTIONS_FOLDER = "predictions"
EVALUATION_SET_FILE = "evaluation_set.safetensors"

KEEP_PREDICTIONS = ("labels", "none", "probs")

_FORMAT = "clear_mlflow/predictions"
_VERSION = "1.0"
_VERSION_WITH_CLUSTERS = "1.1"
_CONTENT_BYTES = 16  # of each image's SHA-256: enough to distinguish any two images


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationSet:
    """The test images of all buckets, in the order in which every row's predictions are stored.

    Args:
        buckets: keys of all buckets, in stream order.
        class_names: the index is the label.
        bucket: (N,), position of each image's bucket in *buckets*; never falling.
        label: (N,), true class of each image.
        content: (N, 16), first bytes of the SHA-256 of each image's file.
        names: (N,), name of each image's file, without its extension.
        cluster: (N,), which images show the same thing, as one scan in several buckets: equal
            numbers, in whatever buckets. None: each image is of its own.

    Raises:
        RecordError: the parts do not fit each other.
    """

    buckets: tuple[str, ...]
    class_names: tuple[str, ...]
    bucket: NDArray[np.uint16]
    label: NDArray[np.uint16]
    content: NDArray[np.uint8]
    names: tuple[str, ...]
    cluster: NDArray[np.uint32] | None = None

    def __post_init__(self) -> None:
        count = len(self.names)
        shapes = {"bucket": (count,), "label": (count,), "content": (count, _CONTENT_BYTES)}
        if self.cluster is not None:
            shapes["cluster"] = (count,)
        for name, shape in shapes.items():
            array = getattr(self, name)
            dtype = {"content": np.uint8, "cluster": np.uint32}.get(name, np.uint16)
            if array.shape != shape or array.dtype != dtype:
                raise RecordError(
                    f"{name} of an evaluation set is {array.dtype} of shape {array.shape}; "
                    f"expected {np.dtype(dtype)} of shape {shape}"
                )
            array.setflags(write=False)
        if count == 0 or not self.buckets or not self.class_names:
            raise RecordError("an evaluation set without images, buckets or classes arrived")
        width, classes = len(self.buckets), len(self.class_names)
        if (width + 1) * width * classes > untrusted.MAX_CELLS_PER_CLASS:
            raise RecordError(
                f"an evaluation set of {width} buckets and {classes} classes arrived; expected "
                f"(buckets + 1) * buckets * classes to be at most {untrusted.MAX_CELLS_PER_CLASS}"
            )
        if int(self.bucket.max()) >= len(self.buckets) or bool(
            (np.diff(self.bucket.astype(np.int64)) < 0).any()
        ):
            raise RecordError(
                "bucket of an evaluation set names a bucket that is not there, or is out of order; "
                f"expected 0 to {len(self.buckets) - 1}, never falling"
            )
        if int(self.label.max()) >= len(self.class_names):
            raise RecordError(
                f"label of an evaluation set is {int(self.label.max())}; expected 0 to "
                f"{len(self.class_names) - 1}"
            )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def num_instances(self) -> tuple[int, ...]:
        """Images per bucket."""
        return tuple(np.bincount(self.bucket, minlength=len(self.buckets)).tolist())

    @cached_property
    def digest(self) -> str:
        """What settles whether two runs were tested on the same images in the same order.

        It follows from bucket keys, classes, labels and contents; not from the files' names, nor
        from what is known of clusters.
        """
        hasher = hashlib.sha256(json.dumps([list(self.buckets), list(self.class_names)]).encode())
        for array in (self.bucket.astype("<u2"), self.label.astype("<u2"), self.content):
            hasher.update(np.ascontiguousarray(array).tobytes())
        return f"sha256:{hasher.hexdigest()}"

    def to_bytes(self) -> bytes:
        """The file of this evaluation set."""
        names = np.frombuffer("\n".join(self.names).encode(), dtype=np.uint8)
        arrays: dict[str, NDArray[Any]] = {
            "bucket": self.bucket,
            "label": self.label,
            "content": self.content,
            "names": names,
        }
        if self.cluster is not None:
            arrays["cluster"] = self.cluster
        return tensors_to_bytes(
            arrays,
            metadata={
                "format": _FORMAT,
                "version": _VERSION if self.cluster is None else _VERSION_WITH_CLUSTERS,
                "buckets": json.dumps(list(self.buckets)),
                "class_names": json.dumps(list(self.class_names)),
                "digest": self.digest,
            },
        )

    @classmethod
    def load(cls, path: Path) -> EvaluationSet:
        """Read a file of :meth:`to_bytes`; nothing about the file is trusted.

        Raises:
            RecordError: the file is damaged, of another format, or not what its digest says.
        """
        arrays, metadata = _read(
            path, {"bucket", "label", "content", "names"}, optional={"cluster"}
        )
        try:
            names = tuple(arrays["names"].astype(np.uint8).tobytes().decode().split("\n"))
        except UnicodeDecodeError as error:
            raise RecordError(f"{path.name}: names is no Unicode text") from error
        try:
            found = cls(
                buckets=_texts(metadata, "buckets"),
                class_names=_texts(metadata, "class_names"),
                bucket=arrays["bucket"],
                label=arrays["label"],
                content=arrays["content"],
                names=names,
                cluster=arrays.get("cluster"),
            )
        except RecordError as error:
            raise RecordError(f"{path.name}: {error}") from error
        if found.digest != metadata.get("digest"):
            raise RecordError(
                f"{path.name}: its digest is {found.digest}, but it says "
                f"{shown(metadata.get('digest'), 80)}; the file was changed"
            )
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class RowPredictions:
    """What the model answered in one row of the matrix.

    Args:
        row: buckets trained so far; 0 is the initialisation.
        labels: (N,), predicted class of each image of the evaluation set; uint8 up to 256 classes,
            else uint16.
        probabilities: (N, classes), float16, softmax of the model's output; None where only labels
            were kept. The label is the argmax of the output, not of these rounded numbers.
        evaluation_set: digest of the :class:`EvaluationSet` that they answer.

    Raises:
        RecordError: the parts do not fit each other.
    """

    row: int
    labels: NDArray[np.uint8] | NDArray[np.uint16]
    evaluation_set: str
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
        if self.probabilities is not None:
            probabilities = self.probabilities
            if (
                probabilities.ndim != 2
                or probabilities.dtype != np.float16
                or len(probabilities) != len(self.labels)
                # NaN fails both comparisons.
                or not bool(((probabilities >= 0) & (probabilities <= 1)).all())
            ):
                raise RecordError(
                    "probabilities of predictions are no float16 from 0 to 1, one per class, "
                    "for each image"
                )
            probabilities.setflags(write=False)

    def check(self, images: EvaluationSet, row: AccuracyRow | None = None) -> None:
        """Make sure that these are answers to those images and agree with the stored row.

        Raises:
            RecordError: they answer another evaluation set, contain a class that does not exist,
                or do not agree with the row.
        """
        if self.evaluation_set != images.digest or len(self.labels) != len(images):
            raise RecordError(
                f"predictions of row {self.row} answer another evaluation set than the one stored "
                "beside them"
            )
        classes = len(images.class_names)
        width = classes if self.probabilities is None else self.probabilities.shape[1]
        if int(self.labels.max()) >= classes or width != classes:
            raise RecordError(
                f"predictions of row {self.row} hold a class that is not one of the {classes}"
            )
        if row is None:
            return
        counted = self.correct(images)
        if row.correct is not None and counted != row.correct:
            raise RecordError(
                f"predictions of row {self.row} count {shown(counted)} right images per bucket, "
                f"but the row says {shown(row.correct)}"
            )
        if row.correct is None:
            for right, count, said in zip(counted, images.num_instances, row.cells, strict=True):
                # Other programs keep a few digits; an image more or less is beyond them.
                if not math.isnan(said) and abs(right / count - said) > 0.5 / count:
                    raise RecordError(
                        f"predictions of row {self.row} give an accuracy of {right / count:.4f}, "
                        f"but the row says {said:.4f}"
                    )

    def hits(self, images: EvaluationSet) -> NDArray[np.bool_]:
        """(N,): which images were classified correctly."""
        return np.equal(self.labels, images.label)

    def correct(self, images: EvaluationSet) -> tuple[int, ...]:
        """Images classified correctly, per bucket."""
        right = np.bincount(images.bucket[self.hits(images)], minlength=len(images.buckets))
        return tuple(right.tolist())

    def to_bytes(self) -> bytes:
        """The file of this row's predictions."""
        arrays: dict[str, NDArray[Any]] = {"labels": self.labels}
        if self.probabilities is not None:
            arrays["probabilities"] = self.probabilities
        return tensors_to_bytes(
            arrays,
            metadata={
                "format": _FORMAT,
                "version": _VERSION,
                "row": str(self.row),
                "evaluation_set": self.evaluation_set,
            },
        )

    @classmethod
    def load(cls, path: Path) -> RowPredictions:
        """Read a file of :meth:`to_bytes`; nothing about the file is trusted.

        Raises:
            RecordError: the file is damaged or of another format.
        """
        arrays, metadata = _read(path, {"labels"}, optional={"probabilities"})
        row = metadata.get("row", "")
        if not re.fullmatch(r"[0-9]{1,9}", row) or predictions_file_name(int(row)) != path.name:
            raise RecordError(f"{path.name}: holds the predictions of row {shown(row)}")
        try:
            return cls(
                row=int(row),
                labels=arrays["labels"],
                probabilities=arrays.get("probabilities"),
                evaluation_set=metadata.get("evaluation_set", ""),
            )
        except RecordError as error:
            raise RecordError(f"{path.name}: {error}") from error


def predictions_file_name(row: int) -> str:
    """The name of the file of a row's predictions.

    >>> predictions_file_name(4)
    'row_004.safetensors'
    """
    return f"row_{row:03d}.safetensors"


def _read(
    path: Path, expected: Set[str], optional: Set[str] = frozenset()
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    try:
        arrays, metadata = read_tensors(path, untrusted.MAX_PREDICTIONS_BYTES)
        if (
            metadata.get("format") != _FORMAT
            or not expected <= arrays.keys() <= expected | optional
        ):
            raise RecordError(f"is no file of {_FORMAT}")
        if metadata.get("version", "").split(".")[0] != _VERSION.split(".")[0]:
            raise RecordError(
                f"is of version {shown(metadata.get('version'))} of the format; this clear_mlflow "
                f"reads {_VERSION.split('.')[0]}.x: upgrade it"
            )
    except RecordError as error:
        raise RecordError(f"{path.name}: {error}") from error
    except OSError as error:
        raise RecordError(f"{path.name}: cannot be read ({error.strerror or error})") from error
    return arrays, metadata


def _texts(metadata: dict[str, str], name: str) -> tuple[str, ...]:
    try:
        texts = untrusted.json_value(metadata.get(name, ""), untrusted.MAX_METADATA_BYTES)
    except RecordError as error:
        raise RecordError(f"{name} of an evaluation set {error}") from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RecordError(
            f"{name} of an evaluation set is {shown(texts)}; expected a list of texts"
        )
    return tuple(texts)
