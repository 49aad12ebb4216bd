"""From checked parameters to a training: the files that they name, as a stream, ready to begin."""

from __future__ import annotations

from functools import partial

from clear_mlflow.core.disk import default_cache_dir
from clear_mlflow.data import load_stream
from clear_mlflow.data.decoding.decoded_cache import DECODED_FOLDER, DecodedCache, drop_undecodable
from clear_mlflow.data.download import fetch_clear
from clear_mlflow.data.features.stored import check_features, load_features
from clear_mlflow.data.scenarios import apply_scenario
from clear_mlflow.data.sources import CLEAR
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.learning.models import download_default_weights
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.recipes import AUTO, DEFAULT_WEIGHTS, NONE
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.photos import augmentation
from clear_mlflow.learning.session import StreamTraining, check_files, check_stream


def fetch(config: TrainConfig, progress: TrainingProgress) -> None:
    """Download the published weights and CLEAR if the parameters name them and they are missing."""
    if config.weights == DEFAULT_WEIGHTS:
        download_default_weights(config.model)
    if config.data_root == AUTO and config.dataset in CLEAR:
        fetch_clear(config.dataset, progress.downloading)


def load_data(config: TrainConfig) -> BucketStream:
    """List a dataset, and check parameters, weights and features against it."""
    stream = load_stream(
        config.dataset,
        config.data_root,
        cache_dir=default_cache_dir(),
        arguments=config.dataset_args,
        protocol=config.protocol,
        split=config.split,
    )
    stream = apply_scenario(stream, config.scenario, config.scenario_args)
    check_files(config, len(stream.class_names))
    check_stream(config, stream)
    if config.features != NONE:
        check_features(stream, config.features, cache_dir=default_cache_dir())
    return stream


def prepare(
    config: TrainConfig,
    progress: TrainingProgress,
    group: ProcessGroup = ALONE,
    stream: BucketStream | None = None,
) -> StreamTraining:
    """Decode a dataset into the cache, which raises DataError for damaged images."""
    stream = stream or load_data(config)
    training = partial(
        StreamTraining, config=config, source=stream.source, progress=progress, group=group
    )
    if config.features != NONE:
        with progress:
            features = load_features(
                stream,
                config.features,
                cache_dir=default_cache_dir(),
                on_image=progress.images_decoded,
            )
        return training(stream=stream, features=features)
    cache = DecodedCache(default_cache_dir() / DECODED_FOLDER)
    with progress:
        sound, num_left_out = drop_undecodable(
            stream,
            cache=cache,
            resize=augmentation(config.augment, config.image_size).resize,
            damaged=config.damaged,
            on_image=progress.images_decoded,
        )
    return training(
        stream=sound,
        cache=cache,
        num_left_out=num_left_out,
    )
