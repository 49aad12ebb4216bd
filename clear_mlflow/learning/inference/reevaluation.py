"""Stored models tested again, on test sets that need not have existed when they were trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from clear_mlflow.core.errors import DataError, RecordError
from clear_mlflow.learning.device import tf32, translate_oom
from clear_mlflow.learning.inference.description import STANDARDISED
from clear_mlflow.learning.loop import fresh_model, measure_row
from clear_mlflow.learning.measured import MeasuredRow, OnCurve, OnState, OnTest, ignore
from clear_mlflow.learning.session import StreamTraining

_LESS_MEMORY = "end what else runs on it, or set CUDA_VISIBLE_DEVICES= to test on the CPU"


@dataclass(frozen=True, eq=False)
class Reevaluation(StreamTraining):
    """A training on the stream to test on, whose rows come from stored models."""

    models: Mapping[int, Path] = field(default_factory=dict)  # weights by their rows, in order

    @classmethod
    def of(
        cls, training: StreamTraining, models: Mapping[int, Path], trained_on: tuple[str, ...]
    ) -> Reevaluation:
        """Test models as *training* would, which were trained through these buckets, in order."""
        keys = training.facts.buckets
        needed = trained_on[: max(models, default=0)]
        if keys[: len(needed)] != needed:
            raise DataError(
                f"the models were trained through buckets {', '.join(needed)}, but those of the "
                f"dataset are {', '.join(keys)}; pass a data_root whose buckets begin with them"
            )
        return cls(**{f.name: getattr(training, f.name) for f in fields(training)}, models=models)

    def rows(
        self, on_curve: OnCurve = ignore, on_test: OnTest = ignore, on_state: OnState = ignore
    ) -> Iterator[MeasuredRow]:
        """Test each model on all buckets."""
        config = self.config
        arithmetic = tf32(config.precision == "tf32")
        with translate_oom(_LESS_MEMORY), arithmetic, self.progress as progress:
            stream = self.on_device()
            model = fresh_model(stream, config)
            for row, path in self.models.items():
                _load(model, path)
                stream.begin(max(row - 1, 0))
                trained = measure_row(model, stream, config, trained=row)
                progress.row_measured(trained.row)
                yield self.measured(trained)


def _load(model: nn.Module, path: Path) -> None:
    try:
        weights = load_file(path)
        model.load_state_dict({n: w for n, w in weights.items() if n not in STANDARDISED})
    except (OSError, SafetensorError, RuntimeError) as error:
        problem = " ".join(str(error).split())[:200]
        raise RecordError(
            f"{path.name} does not hold the weights of this model for this dataset's classes "
            f"({problem})"
        ) from error
