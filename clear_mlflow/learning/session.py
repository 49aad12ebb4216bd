"""From parameters to a training: check them, load the data, prepare it, and train."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.disk import default_cache_dir
from clear_mlflow.core.distributed import SINGLE_PROCESS_ENV, DistributedEnv
from clear_mlflow.core.errors import ConfigError, DataError, StateError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.predictions import RowPredictions
from clear_mlflow.core.version import __version__
from clear_mlflow.data import load_stream
from clear_mlflow.data.decode import DECODED_FOLDER, DecodedCache, Resize, drop_undecodable
from clear_mlflow.data.download import fetch_clear
from clear_mlflow.data.features import StoredFeatures, find_features, load_features
from clear_mlflow.data.files import resolve_root
from clear_mlflow.data.scenarios import TASK, apply_scenario
from clear_mlflow.data.sources import CLEAR, is_custom_function
from clear_mlflow.data.stream import BucketStream, build_evaluation_set, describe_stream
from clear_mlflow.learning.arguments import complete_dataset_arguments, complete_scenario_arguments
from clear_mlflow.learning.checkpoint import (
    SavedTraining,
    copy_unshared,
    parse_state,
    serialize_state,
)
from clear_mlflow.learning.device import (
    allow_tf32,
    cudnn_benchmark,
    resolve_device,
    resolve_precision,
    translate_oom,
)
from clear_mlflow.learning.inference.description import NOT_DESCRIBED, ModelDescription
from clear_mlflow.learning.loop import TrainedBucket, train
from clear_mlflow.learning.measured import Measurement, OnMessage, ignore
from clear_mlflow.learning.models import check_model, check_weights, download_default_weights
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.recipes import AUTO, DEFAULT_WEIGHTS, FULL, NONE
from clear_mlflow.learning.parameters.values import OFF
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup, check_devices
from clear_mlflow.learning.progress import CollectingProgress, TrainingProgress
from clear_mlflow.learning.samples import DecodedStream, FeatureStream, TrainingStream
from clear_mlflow.learning.strategies import load_strategy, parse_strategy_arguments

_LESS_MEMORY = "pass a smaller batch_size, image_size or memory"


def resolve_config(
    config: TrainConfig, dist_env: DistributedEnv = SINGLE_PROCESS_ENV
) -> TrainConfig:
    """Check parameters without data, and resolve device, precision and arguments.

    See :func:`complete_arguments`. Raises ConfigError if parameters are in conflict, or if this
    machine cannot train with them, and DataError if ``data_root`` does not exist.
    """
    complete = complete_arguments(config)
    device = resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    if dist_env.size > 1:
        check_devices(dist_env, device, one_each=True)
    check_parameters(config, num_processes=dist_env.size)
    check_files(config)
    return dataclasses.replace(complete, device=device, precision=precision)


def complete_arguments(config: TrainConfig) -> TrainConfig:
    """Replace the texts of arguments by typed ones, with defaults.

    These are the arguments of strategy, dataset and scenario. Also names the parameters that the
    strategy replaces. Raises ConfigError if an argument is invalid.
    """
    strategy, arguments = load_strategy(config.strategy), parse_strategy_arguments(config)
    return dataclasses.replace(
        config,
        replaced=frozenset(strategy.list_replaced_parameters(config, arguments))
        - (config.ignored_parameters - config.replaced),
        strategy_args=dataclasses.asdict(arguments),
        dataset_args=complete_dataset_arguments(
            config.dataset, config.data_root, config.dataset_args
        ),
        scenario_args=complete_scenario_arguments(config.scenario, config.scenario_args),
    )


def check_parameters(config: TrainConfig, num_processes: int = 1) -> None:
    """Raise ConfigError if parameters do not fit strategy or model."""
    parse_strategy_arguments(config, num_processes)
    _check_model(config)


def _check_model(config: TrainConfig, smallest: int = 2, num_classes: int | None = None) -> None:
    if config.features == NONE and not load_strategy(config.strategy).has_custom_model():
        check_model(
            config.model,
            image_size=config.image_size,
            # A last batch of one image is joined with the batch before it.
            batch_size=smallest if config.batch_size == FULL else min(config.batch_size, smallest),
            num_classes=num_classes,
        )


def check_files(config: TrainConfig, num_classes: int | None = None) -> None:
    """Raise DataError without ``data_root``, and ConfigError for wrong weights.

    Skips ``data_root`` if it is ``auto`` or the dataset is a user's function, and the weights if
    the strategy builds its own model.

    num_classes: of the dataset, or None if it is not known yet.
    """
    if config.data_root != AUTO and ":" not in config.dataset:  # a function finds its own data
        resolve_root(Path(config.data_root))
    if not load_strategy(config.strategy).has_custom_model():
        sizes = {"image_size": config.image_size, "num_classes": num_classes}
        check_weights(config.model, config.weights, **sizes)


def check_stream(config: TrainConfig, stream: BucketStream) -> None:
    """Raise ConfigError if parameters do not fit the stream."""
    dataset = stream.dataset
    if config.label_delay != OFF and int(config.label_delay) >= len(dataset.buckets):
        raise ConfigError(
            f"label_delay is {config.label_delay} and {dataset.name} has {len(dataset.buckets)} "
            "buckets; nothing would be trained: pass fewer",
            parameter="label_delay",
        )
    sets = stream.train if config.time_order == "on" else ()
    for key, images in zip(dataset.buckets, sets, strict=False):
        try:
            images.time_order  # noqa: B018
        except DataError as error:
            raise ConfigError(
                f"time_order is on, but bucket {key} of {dataset.name} {error}; pass a "
                "dataset with a column of times and borders=UNIT (docs/own-streams.md), or "
                "time_order=off",
                parameter="time_order",
            ) from None
    smallest = min(2, *map(len, stream.train))
    if smallest == 1 or is_custom_function(config.model):  # others were tried without data
        _check_model(config, smallest, len(dataset.class_names))


def download_missing(config: TrainConfig, progress: TrainingProgress) -> None:
    """Download missing files: for ``weights=DEFAULT``, and for CLEAR with ``data_root=auto``."""
    if config.weights == DEFAULT_WEIGHTS:
        download_default_weights(config.model)
    if config.data_root == AUTO and config.dataset in CLEAR:
        fetch_clear(config.dataset, progress.downloading)


def load_data(config: TrainConfig, progress: TrainingProgress) -> BucketStream:
    """Read a dataset, or download a missing one, and check its stream.

    Raises ConfigError or DataError unless parameters, weights and features fit the dataset.
    """
    stream = load_stream(
        config.dataset,
        config.data_root,
        cache_dir=default_cache_dir(),
        arguments=config.dataset_args,
        borders=config.borders,
        protocol=config.protocol,
        split=config.split,
        on_image=partial(progress.images_prepared, "hashing"),
    )
    stream = apply_scenario(stream, config.scenario, config.scenario_args)
    check_files(config, len(stream.dataset.class_names))
    check_stream(config, stream)
    if config.features != NONE:
        find_features(stream, config.features, cache_dir=default_cache_dir())  # or an error
    return stream


def _hash_time_order(stream: BucketStream) -> str:
    content = hashlib.sha256()
    for images in stream.train:
        for row in images.time_order.tolist():
            content.update(images.contents[row].encode())
    return f"sha256:{content.hexdigest()}"


@dataclass(frozen=True, eq=False)
class StreamTraining:
    """A training in this process, on a stream that is ready."""

    config: TrainConfig  # as resolve_config returned it
    stream: BucketStream  # its images are decoded when they are needed
    progress: TrainingProgress
    features: StoredFeatures | None = None  # to train on instead of images
    cache: DecodedCache | None = None  # without one, images are decoded into memory
    num_left_out: int = 0  # damaged images that the stream lacks
    group: ProcessGroup = SINGLE_PROCESS  # only rank 0 returns rows with files
    saved: Path | None = None  # state file to resume from; rank 0 reads it

    @cached_property
    def dataset(self) -> DatasetDescription:
        """The dataset, with its test images if predictions are stored."""
        features, stream = self.features, self.stream
        keeps_predictions = self.config.predictions != NONE and self.group.rank == 0
        return dataclasses.replace(
            describe_stream(stream),
            features={} if features is None else {"name": features.name, "digest": features.digest},
            num_left_out=self.num_left_out,
            time_order_digest=_hash_time_order(stream) if self.config.time_order == "on" else "",
            evaluation_set=build_evaluation_set(stream) if keeps_predictions else None,
        )

    def for_member(self, config: TrainConfig) -> StreamTraining:
        """Print the seed unless ``seeds`` is none, and return its training."""
        if self.config.seeds != NONE:
            self.progress.print_line(f"seed {config.seed}")
        return dataclasses.replace(self, config=config)

    def rows(self, on_message: OnMessage = ignore) -> Iterator[Measurement]:
        """Train, and yield each row when it is measured.

        on_message: called with points of the loss curve, tests within buckets, and training states.

        A resumed training first yields the stored row that it continues from. Only on rank 0 do
        rows contain files, and is *on_message* called. Raises TrainingError if memory runs out.
        """
        arithmetic = allow_tf32(self.config.precision == "tf32")
        with translate_oom(_LESS_MEMORY), arithmetic, cudnn_benchmark(), self.progress as display:
            progress = CollectingProgress(display, ignore if self.group.rank > 0 else on_message)
            stream = self.build_training_stream()
            saved = self._read_saved_training()
            if saved is not None:
                yield self._build_saved_row(saved, stream)
            for trained in train(
                stream, self.config, progress=progress, group=self.group, saved=saved
            ):
                measured = self._build_measured_row(trained)
                yield dataclasses.replace(measured, curve=progress.take_points())
                if self._should_store_state(trained.row):
                    on_message(_build_state_message(trained, measured.predictions))

    def _build_measured_row(self, trained: TrainedBucket) -> Measurement:
        predictions = None
        if (images := self.dataset.evaluation_set) is not None:
            predictions = RowPredictions(
                row=trained.row.row,
                labels=trained.evaluation.labels,
                probabilities=trained.evaluation.probabilities,
                evaluation_set=images.digest,
            ).to_bytes()
        model = None
        if self.group.rank == 0 and self._should_store_model(trained.row):
            weights = {**trained.model.state_dict(), **trained.standardised}
            model = self._build_model_file(weights, trained.row)
        record = trained.prequential
        prequential = None if record is None else record.to_bytes()
        return Measurement(trained.row, predictions, prequential, model)

    def _should_store_state(self, row: AccuracyRow) -> bool:
        is_last = row.row == len(row.buckets)
        return self.config.resumable == "on" and not is_last and self.group.rank == 0

    def _should_store_model(self, row: AccuracyRow) -> bool:
        is_last = row.row == len(row.buckets)
        return self.config.log_models == "all" or (self.config.log_models == "last" and is_last)

    def _read_saved_training(self) -> SavedTraining | None:
        content = self.group.broadcast(None if self.saved is None else self.saved.read_bytes())
        if content is None:
            return None
        saved = parse_state(content)
        row, dataset = saved.row, self.dataset
        if (row.buckets, row.num_instances) != (dataset.buckets, dataset.num_test):
            raise StateError(
                f"the training state has the buckets {', '.join(row.buckets)[:200]}, which differ "
                "from the dataset's; start a new run"
            )
        return saved

    def _build_saved_row(self, saved: SavedTraining, stream: TrainingStream) -> Measurement:
        if self.group.rank > 0:
            return Measurement(saved.row)
        model = None
        if self._should_store_model(saved.row):
            stream.begin_bucket(max(saved.row.row - 1, 0))
            weights = {**saved.snapshot.model, **stream.standardised}
            model = self._build_model_file(weights, saved.row)
        return Measurement(saved.row, saved.predictions, model=model)

    def _build_model_file(self, state: Mapping[str, Tensor], row: AccuracyRow) -> bytes:
        config = self.config
        tensors = copy_unshared(state)  # weights may be tied
        if load_strategy(config.strategy).has_custom_model():
            return save(tensors, metadata=NOT_DESCRIBED)
        dataset = self.stream.dataset
        masks = dataset.scenario["classes"] if dataset.scenario.get("name") == TASK else ()
        description = ModelDescription(
            model=config.model,
            num_classes=len(dataset.class_names),
            class_names=dataset.class_names,
            width=0 if self.features is None else self.features.width,
            image_size=config.image_size,
            augment=config.augment,
            precision=config.precision,
            strategy=config.strategy,
            dataset=dataset.name,
            bucket=row.buckets[row.row - 1] if row.row else "",
            requirements=_list_requirements(),
            classes_by_bucket=dict(zip(row.buckets, masks, strict=False)),
        )
        return save(tensors, metadata=description.as_metadata())

    def build_training_stream(self) -> TrainingStream:
        """Build the stream of tensors, which decodes images at first use."""
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


def _build_state_message(trained: TrainedBucket, predictions: bytes | None) -> Measurement:
    try:
        return Measurement(state=serialize_state(trained.snapshot(), trained.row, predictions))
    except StateError as error:  # the training continues, but cannot be resumed
        return Measurement(state_problem=str(error))


def _list_requirements() -> tuple[str, ...]:
    versions = {"clear_mlflow": __version__, "torch": torch.__version__}
    if "torchvision" in sys.modules:
        versions["torchvision"] = sys.modules["torchvision"].__version__
    return tuple(f"{name}=={text.partition('+')[0]}" for name, text in versions.items())


def prepare_training(
    config: TrainConfig,
    progress: TrainingProgress,
    group: ProcessGroup = SINGLE_PROCESS,
    stream: BucketStream | None = None,
) -> StreamTraining:
    """Decode the images into the cache, and return the training.

    With ``features``, loads these instead of images. stream: the dataset, or None to load it.
    Raises DataError for a damaged image unless ``damaged=leave_out``, which drops it.
    """
    features, cache, num_left_out = None, None, 0
    with progress:
        stream = stream or load_data(config, progress)
        if config.features != NONE:
            features = load_features(
                stream,
                config.features,
                cache_dir=default_cache_dir(),
                on_image=partial(progress.images_prepared, "decoding"),
            )
        else:
            cache = DecodedCache(default_cache_dir() / DECODED_FOLDER)
            stream, num_left_out = drop_undecodable(
                stream,
                cache=cache,
                resize=Resize(config.image_size),
                damaged=config.damaged,
                on_image=partial(progress.images_prepared, "decoding"),
            )
    check_stream(config, stream)  # again, since damaged images may be left out
    return StreamTraining(config, stream, progress, features, cache, num_left_out, group)
