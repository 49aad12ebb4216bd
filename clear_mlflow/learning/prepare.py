"""From checked parameters to a training: the files that they name, as a stream, ready to begin."""

from __future__ import annotations

from clear_mlflow.config import AUTO, NONE, TrainConfig
from clear_mlflow.data import load_stream
from clear_mlflow.data.digits import default_cache_dir
from clear_mlflow.data.features import load_features
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.training import StreamTraining


def prepare(config: TrainConfig, progress: TrainingProgress) -> StreamTraining:
    """Read the dataset that a configuration names.

    Args:
        config: as :func:`~clear_mlflow.learning.training.check` returned it.
        progress: who is told how far the training is.

    Raises:
        DataError: the dataset is missing, damaged, or of another layout; or it lacks the features
            that the configuration names.
        ConfigError: the model cannot train on batches as small as its smallest bucket.
    """
    stream = load_stream(
        config.dataset,
        config.data_root,
        cache_dir=default_cache_dir(),
        protocol=config.protocol,
        split=config.split,
    )
    source = "embedded" if config.data_root == AUTO else config.data_root
    features = None
    if config.features != NONE:
        features = load_features(stream, config.features, cache_dir=default_cache_dir())
    return StreamTraining(
        config=config, stream=stream, source=source, progress=progress, features=features
    )
