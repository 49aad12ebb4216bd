"""A training in two steps, so that what is wrong shows in seconds: check it, then prepare it."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from clear_mlflow.core.distributed import ALONE_HERE, DistributedEnv
from clear_mlflow.core.errors import StateError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.version import __version__
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.features.stored import StoredFeatures
from clear_mlflow.data.files import resolve_root
from clear_mlflow.data.scenarios import TASK
from clear_mlflow.data.stream import DOMAIN, BucketStream, evaluation_set
from clear_mlflow.learning.arguments import dataset_arguments, scenario_arguments
from clear_mlflow.learning.checkpoint import SavedTraining, apart, read_state, to_bytes
from clear_mlflow.learning.device import (
    cudnn_benchmark,
    resolve_compile,
    resolve_device,
    resolve_precision,
    tf32,
    translate_oom,
)
from clear_mlflow.learning.inference.description import NOT_DESCRIBED, ModelDescription
from clear_mlflow.learning.loop import TrainedBucket, train
from clear_mlflow.learning.measured import (
    MeasuredRow,
    OnCurve,
    OnState,
    OnTest,
    StreamMetadata,
    TrainingState,
    ignore,
)
from clear_mlflow.learning.models import check_model, check_weights
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup, check_devices
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.recipes import AUTO, FULL, NONE
from clear_mlflow.learning.progress import CollectingProgress, TrainingProgress
from clear_mlflow.learning.samples.decoded import DecodedStream, FeatureStream, TrainingStream
from clear_mlflow.learning.strategies._base import check_strategy, load_strategy

_LESS_MEMORY = "pass a smaller batch_size, image_size or memory"


def check(config: TrainConfig, dist_env: DistributedEnv = ALONE_HERE) -> TrainConfig:
    """Check everything that needs no data, and return the configuration completely resolved.

    Raises ConfigError if parameters are in conflict, or if this machine cannot train with them.
    """
    complete = complete_arguments(config)
    device = resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    if dist_env.size > 1:
        check_devices(dist_env, device, one_each=True)
    check_parameters(config, num_processes=dist_env.size)
    check_files(config)
    return dataclasses.replace(
        complete,
        device=device,
        precision=precision,
        compile=resolve_compile(
            config.compile, device, config.epochs, on_images=config.features == NONE
        ),
    )


def complete_arguments(config: TrainConfig) -> TrainConfig:
    """Return a configuration with all arguments as typed values, including the defaults."""
    return dataclasses.replace(
        config,
        strategy_args=dataclasses.asdict(check_strategy(config)),
        dataset_args=dataset_arguments(config.dataset, config.data_root, config.dataset_args),
        scenario_args=scenario_arguments(config.scenario, config.scenario_args),
    )


def check_parameters(config: TrainConfig, num_processes: int = 1) -> None:
    """Raise ConfigError if parameters do not fit the strategy, or images do not fit the model."""
    check_strategy(config, num_processes)
    if config.features == NONE:  # a linear head accepts features of any width
        check_model(
            config.model,
            image_size=config.image_size,
            # A last batch of one image is joined with the batch before it.
            batch_size=2 if config.batch_size == FULL else min(config.batch_size, 2),
        )


def check_files(config: TrainConfig, num_classes: int | None = None) -> None:
    """Raise an error unless the folder and the file of weights exist and fit the parameters.

    num_classes: of the dataset, or None if it is not known yet.
    """
    if config.data_root != AUTO and ":" not in config.dataset:  # a function finds its own data
        resolve_root(Path(config.data_root))
    if not load_strategy(config.strategy).makes_its_model():
        sizes = {"image_size": config.image_size, "num_classes": num_classes}
        check_weights(config.model, config.weights, **sizes)


def check_stream(config: TrainConfig, stream: BucketStream) -> None:
    """Raise ConfigError if a bucket has one image, and the model cannot train on a batch of one."""
    smallest = min(len(bucket.train) for bucket in stream.buckets)
    if config.features == NONE and smallest == 1:  # check has tried batches of two and more
        check_model(config.model, image_size=config.image_size, batch_size=1)


@dataclass(frozen=True, eq=False)
class StreamTraining:
    """A training on a stream, in this process; ready to begin."""

    config: TrainConfig  # as check returned it
    stream: BucketStream  # its images are decoded when they are needed
    source: str  # where the dataset was read from, for people
    progress: TrainingProgress
    features: StoredFeatures | None = None  # which a linear head is trained on instead of images
    cache: DecodedCache | None = None  # without one, images are decoded into memory
    num_left_out: int = 0  # damaged images that the stream lacks
    group: ProcessGroup = ALONE  # of its processes but the first, rows have no files
    saved: Path | None = None  # a state to resume from; of several processes, the first reads it

    def __post_init__(self) -> None:
        check_stream(self.config, self.stream)  # again, since damaged images may be left out

    @property
    def metadata(self) -> StreamMetadata:
        """The dataset that is trained on."""
        images = self._evaluation_set
        absent = self.stream.absent_classes
        lacks = [(name, key) for key, names in absent.get("train", {}).items() for name in names]
        more = f", and so {len(lacks) - 1} more" if len(lacks) > 1 else ""
        told = (
            f"class {safe_repr(name)} is not in the training set of bucket {safe_repr(key)}{more}"
            for name, key in lacks[:1]
        )
        return StreamMetadata(
            name=self.stream.name,
            digest=self.stream.digest,
            source=self.source,
            num_classes=len(self.stream.class_names),
            buckets=tuple(bucket.key for bucket in self.stream.buckets),
            num_train=tuple(len(bucket.train) for bucket in self.stream.buckets),
            num_test=tuple(len(bucket.test) for bucket in self.stream.buckets),
            protocol=self.stream.protocol,
            split=self.stream.split,
            warnings=(*self.stream.warnings, *told),
            features=None if self.features is None else self.features.name,
            features_digest=None if self.features is None else self.features.digest,
            num_left_out=self.num_left_out,
            times=self.stream.times,
            scenario=self._scenario,
            absent=absent,
            licence=self.stream.licence,
            evaluation_set=None if images is None else images.to_bytes(),
        )

    @property
    def _scenario(self) -> dict[str, Any]:
        """What the record says of a scenario but that of domains."""
        if self.stream.scenario == DOMAIN:
            return {}
        classes = {"classes": [list(names) for names in self.stream.new_classes]}
        return {"name": self.stream.scenario, **self.config.scenario_args, **classes}

    @cached_property
    def _evaluation_set(self) -> EvaluationSet | None:
        if self.config.predictions == NONE or self.group.rank > 0:
            return None
        return evaluation_set(self.stream)

    def for_member(self, config: TrainConfig) -> StreamTraining:
        """Return the training of one member of an ensemble, which shares the loaded data."""
        if self.config.seeds != NONE:
            self.progress.downloading(f"seed {config.seed}", 0, 0)  # shown as a line of text
        return dataclasses.replace(self, config=config)

    def rows(
        self, on_curve: OnCurve = ignore, on_test: OnTest = ignore, on_state: OnState = ignore
    ) -> Iterator[MeasuredRow]:
        """Train, and yield each row as soon as it is measured."""
        arithmetic = tf32(self.config.precision == "tf32")
        with translate_oom(_LESS_MEMORY), arithmetic, cudnn_benchmark(), self.progress as shown:
            if self.group.rank > 0:
                on_curve = on_test = ignore
            progress = CollectingProgress(shown, on_curve, on_test)
            stream = self.on_device()
            saved = self._load_saved_training()
            if saved is not None:
                yield self._repeat_row(saved, stream)
            on_its_way: list[Future[None]] = []
            for trained in train(
                stream, self.config, progress=progress, group=self.group, saved=saved
            ):
                measured = self.measured(trained)
                wait(on_its_way)
                yield dataclasses.replace(measured, curve=progress.take())
                for state in on_its_way:
                    state.result()  # its error, behind the row that was measured meanwhile
                on_its_way = self._hand_over_state(trained, measured.predictions, on_state)

    def measured(self, trained: TrainedBucket) -> MeasuredRow:
        """Return a row with the files that the configuration asks for."""
        predictions = None
        if self._evaluation_set is not None:
            predictions = RowPredictions(
                row=trained.row.row,
                labels=trained.evaluation.labels,
                probabilities=trained.evaluation.probabilities,
                evaluation_set=self._evaluation_set.digest,
            ).to_bytes()
        model = None
        if self.group.rank == 0 and self._keeps_model(trained.row):
            weights = {**trained.model.state_dict(), **trained.standardised}
            model = self._model_file(weights, trained.row)
        return MeasuredRow(trained.row, predictions, model)

    def _hand_over_state(
        self, trained: TrainedBucket, predictions: bytes | None, on_state: OnState
    ) -> list[Future[None]]:
        """Copy the training state, and write its file in a thread while training continues."""
        row, config = trained.row, self.config
        is_last = row.row == len(row.buckets)
        if trained.snapshot is None or is_last or self.group.rank > 0 or config.resumable == "off":
            return []
        try:
            snapshot = trained.snapshot()
        except StateError as error:  # a run that cannot be resumed is better than none
            on_state(TrainingState(row.row, problem=str(error)))
            return []
        done: Future[None] = Future()

        def hand_over() -> None:
            try:
                on_state(TrainingState(row.row, to_bytes(snapshot, row, predictions)))
                done.set_result(None)
            except BaseException as error:  # it is the training's, which waits for it
                done.set_exception(error)

        # No process that is stopped waits for it.
        threading.Thread(target=hand_over, name="clear_mlflow state", daemon=True).start()
        return [done]

    def _keeps_model(self, row: AccuracyRow) -> bool:
        kept = {"none": (), "last": (len(row.buckets),)}.get(self.config.log_models)
        return kept is None or row.row in kept

    def _load_saved_training(self) -> SavedTraining | None:
        """Return the state to resume from, the same in all processes, or None."""
        content = self.group.broadcast(None if self.saved is None else self.saved.read_bytes())
        if content is None:
            return None
        saved = read_state(content)
        row, buckets = saved.row, self.stream.buckets
        tested = tuple(len(bucket.test) for bucket in buckets)
        if row.buckets != tuple(b.key for b in buckets) or row.num_instances != tested:
            raise StateError(
                f"the training state is of buckets {', '.join(row.buckets)[:200]}, which are not "
                "those of the dataset; start a new run"
            )
        return saved

    def _repeat_row(self, saved: SavedTraining, stream: TrainingStream) -> MeasuredRow:
        """Return the row from which training resumes, with its files as they were measured."""
        if self.group.rank > 0:
            return MeasuredRow(saved.row)
        model = None
        if self._keeps_model(saved.row):
            stream.begin_bucket(max(saved.row.row - 1, 0))
            model = self._model_file({**saved.snapshot.model, **stream.standardised}, saved.row)
        return MeasuredRow(saved.row, saved.predictions, model)

    def _model_file(self, state: Mapping[str, Tensor], row: AccuracyRow) -> bytes:
        """Return the file of the weights, with a description to build the model from."""
        config = self.config
        tensors = apart(state)  # weights may be tied
        if load_strategy(config.strategy).makes_its_model():
            return save(tensors, metadata=NOT_DESCRIBED)
        masks = self.stream.new_classes if self.stream.scenario == TASK else ()
        about = ModelDescription(
            model=config.model,
            num_classes=len(self.stream.class_names),
            class_names=self.stream.class_names,
            width=0 if self.features is None else self.features.width,
            image_size=config.image_size,
            augment=config.augment,
            precision=config.precision,
            strategy=config.strategy,
            dataset=self.stream.name,
            bucket=row.buckets[row.row - 1] if row.row else "",
            requirements=_requirements(),
            classes_by_bucket=dict(zip(row.buckets, masks, strict=False)),
        )
        return save(tensors, metadata=about.as_metadata())

    def on_device(self) -> TrainingStream:
        """The stream as tensors, decoded when they are first asked for."""
        device = torch.device(self.config.device)
        if self.features is not None:
            return FeatureStream(self.stream, self.features, device=device)
        return DecodedStream(
            self.stream,
            image_size=self.config.image_size,
            augment=self.config.augment,
            device=device,
            cache=self.cache,
        )


def _requirements() -> tuple[str, ...]:
    """The packages that a model of these needs: what is loaded, whatever is installed meanwhile."""
    found = {"clear_mlflow": __version__, "torch": torch.__version__}
    if "torchvision" in sys.modules:
        found["torchvision"] = sys.modules["torchvision"].__version__
    return tuple(f"{name}=={text.partition('+')[0]}" for name, text in found.items())
