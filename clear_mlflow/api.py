"""Training from Python: the command line's work in one call, inside the caller's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clear_mlflow.core.distributed import place_of_environment
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig, parameter_defaults, switches
from clear_mlflow.learning.parameters.recipes import NONE

if TYPE_CHECKING:
    from clear_mlflow.core.predictions import EvaluationSet
    from clear_mlflow.learning.session import StreamTraining
    from clear_mlflow.notebook.trained import TrainedRun
    from clear_mlflow.runs.loop_run import LoopRun
    from clear_mlflow.store.client import MlflowClient


def train(
    *,
    dataset: str = "digits",
    data_root: str | Path = "auto",
    dataset_args: str | Mapping[str, object] = "none",
    protocol: Literal["iid", "streaming"] = "iid",
    split: int | str = "auto",
    features: str = "none",
    damaged: Literal["stop", "leave_out"] = "stop",
    strategy: str = "naive",
    strategy_args: str | Mapping[str, object] = "none",
    memory: float | str = "auto",
    model: str = "auto",
    weights: str | Path = "none",
    freeze: Literal["none", "backbone"] = "none",
    image_size: int | str = "auto",
    augment: Literal["auto", "random_crop", "random_crop_flip", "square", "none"] = "auto",
    epochs: int | str = "auto",
    batch_size: int | str = "auto",
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd",
    optimizer_state: Literal["reset", "keep"] = "reset",
    lr: float | str = "auto",
    momentum: float = 0.9,
    weight_decay: float | str = "auto",
    schedule: Literal["step", "cosine", "constant"] = "step",
    lr_step: int | str = "auto",
    lr_gamma: float = 0.1,
    warmup_epochs: int = 0,
    label_smoothing: float = 0,
    clip_norm: float = 0,
    precision: Literal["auto", "off", "tf32", "bf16"] = "auto",
    compile: bool | Literal["on", "off"] = False,  # noqa: A002
    predictions: Literal["labels", "none", "probs"] = "labels",
    test_every: int | str = "off",
    metrics: str | Sequence[str] = "clear,renate",
    log_models: Literal["none", "last", "all"] = "none",
    resumable: bool | Literal["on", "off"] = True,
    seed: int = 0,
    seeds: str | Sequence[int] = "none",
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> TrainedRun:
    """Train on a stream of buckets, tracked in MLflow, and give the matrix as it was stored.

    An active MLflow run is joined and left open; without one, a run is opened and closed. The
    parameters are those of ``clear-mlflow train``; ``auto`` is what the dataset's recipe names.

    Args:
        dataset: digits or digits-writers (embedded; nothing to download), clear10,
            clear100, or a stream of your own (docs/own-streams.md).
        data_root: Folder of the dataset, in any of CLEAR's layouts, or of your own
            stream. auto, of CLEAR: its folder below CLEAR_MLFLOW_DATA, downloaded where
            it is not there; an embedded dataset has none.
        dataset_args: How your own stream is read: {"name": value}, or
            name=value,name=value; docs/own-streams.md lists what there is.
        protocol: iid: held-out test images; streaming: a bucket's test set is its
            training data.
        split: What protocol iid tests on. A number N: 30 % of each bucket's training
            images, drawn with seed N. auto: the released test set; in the released
            layout its lack is an error, in the others auto is split 0. validation: a
            tenth of what auto trains on, for choosing parameters; no test image is read
            (validation:N: a tenth of what split N trains on).
        features: Name of stored features to train a linear head on, for example moco_b0.
        damaged: What to do about an image that cannot be decoded: stop, or leave_out,
            which lists it in the record.
        strategy: How to learn from the stream, for example replay (docs/strategies.md),
            or a class of your own: package.module:Class.
        strategy_args: The strategy's own numbers: {"name": value}, or
            name=value,name=value; docs/strategies.md lists them.
        memory: What a strategy with a buffer may keep: images, or below 1 a fraction of
            the stream's training images; other strategies ignore it.
        model: small_cnn; any torchvision classification model by its name, for example
            resnet18; or linear, which is for features.
        weights: What the model starts from: none, DEFAULT (torchvision's best pretrained
            weights), or a file of weights, .safetensors or .pth.
        freeze: backbone: train the head alone and leave all other weights as they are.
        image_size: Side of the model's square input, pixels.
        augment: How images are cropped: random_crop, as the CLEAR authors do;
            random_crop_flip, mirrored too; square, the centre alone, cropped and
            mirrored; none: the centre.
        epochs: Passes over each bucket's training data.
        batch_size: Images in one optimiser step; full: all of an epoch.
        optimizer: sgd, adam or adamw.
        optimizer_state: The optimiser's state (momentum, for example) at a new bucket:
            reset or keep.
        lr: The learning rate at the start of a bucket.
        momentum: SGD's momentum; the other optimisers ignore it.
        weight_decay: The optimiser's weight decay.
        schedule: How the learning rate falls within a bucket: step, cosine (to 0) or
            constant.
        lr_step: Under schedule step, epochs after which the learning rate is multiplied
            by lr_gamma.
        lr_gamma: Factor on the learning rate every lr_step epochs.
        warmup_epochs: First epochs of each bucket over which the learning rate rises to
            lr.
        label_smoothing: Share of the target spread over all classes.
        clip_norm: Largest norm of a step's gradient; 0: not clipped.
        precision: Arithmetic of passes: off (float32), tf32 or bf16. auto: bf16 where
            the device has instructions for it, else off; off on the embedded datasets
            and on features.
        compile: Compile the model with torch.compile.
        predictions: What to store of the model's answer for each test image: the
            predicted class (labels), the probabilities too (probs), or nothing (none).
        test_every: Test inside each bucket, too: every so many epochs, as 1, or steps,
            as 200steps; off: after each bucket alone.
        metrics: Families of metrics to log, for example ["clear", "gem"];
            docs/metrics.md lists them.
        log_models: Which buckets' models to store as artifacts: none, last or all.
        resumable: Store after each bucket the state that a resume starts from
            (docs/resume.md); it is removed when the last row is stored.
        seed: Seed of all that is random.
        seeds: Seeds of an ensemble, for example [0, 1, 2]; train_ensemble alone takes
            them.
        device: cpu, cuda, or auto: cuda where there is one.

    Returns:
        The matrix, rebuilt from the rows that the run's artifact store holds, with ``metrics``,
        ``run_id``, ``plot()`` and ``compare(other)``; a notebook shows it as a heat map.

    Raises:
        ConfigError: a parameter has a value that it cannot have.
        DataError: the dataset is missing or damaged.
        TrackingError: MLflow cannot keep the run.
        TrainingError: training cannot continue; the rows so far are stored and scored.
    """
    asked = _asked(locals())
    config = TrainConfig.resolve(asked)
    if config.seeds != NONE:
        raise ConfigError(
            f"seeds is {config.seeds}, which trains an ensemble and gives a matrix for each seed; "
            "call train_ensemble, or pass seed=N"
        )
    client, training = _prepared(config)
    # Imported here, as in _prepared: the pure core loads neither torch nor mlflow.
    from clear_mlflow.notebook.trained import TrainedRun
    from clear_mlflow.runs.in_process import train_in_process

    return TrainedRun.of(client, train_in_process(client, training, asked))


def train_ensemble(
    *,
    dataset: str = "digits",
    data_root: str | Path = "auto",
    dataset_args: str | Mapping[str, object] = "none",
    protocol: Literal["iid", "streaming"] = "iid",
    split: int | str = "auto",
    features: str = "none",
    damaged: Literal["stop", "leave_out"] = "stop",
    strategy: str = "naive",
    strategy_args: str | Mapping[str, object] = "none",
    memory: float | str = "auto",
    model: str = "auto",
    weights: str | Path = "none",
    freeze: Literal["none", "backbone"] = "none",
    image_size: int | str = "auto",
    augment: Literal["auto", "random_crop", "random_crop_flip", "square", "none"] = "auto",
    epochs: int | str = "auto",
    batch_size: int | str = "auto",
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd",
    optimizer_state: Literal["reset", "keep"] = "reset",
    lr: float | str = "auto",
    momentum: float = 0.9,
    weight_decay: float | str = "auto",
    schedule: Literal["step", "cosine", "constant"] = "step",
    lr_step: int | str = "auto",
    lr_gamma: float = 0.1,
    warmup_epochs: int = 0,
    label_smoothing: float = 0,
    clip_norm: float = 0,
    precision: Literal["auto", "off", "tf32", "bf16"] = "auto",
    compile: bool | Literal["on", "off"] = False,  # noqa: A002
    predictions: Literal["labels", "none", "probs"] = "labels",
    test_every: int | str = "off",
    metrics: str | Sequence[str] = "clear,renate",
    log_models: Literal["none", "last", "all"] = "none",
    resumable: bool | Literal["on", "off"] = True,
    seed: int = 0,
    seeds: str | Sequence[int] = "none",
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> dict[int, TrainedRun]:
    """Train runs together that differ only in their seed, each tracked as its own run.

    They are nested below one run in MLflow, which holds the means of their metrics: the active run,
    which is left open, or one that is opened and closed. The parameters are those of
    :func:`train`, and ``seeds=[0, 1, 2]``.

    Args:
        dataset: digits or digits-writers (embedded; nothing to download), clear10,
            clear100, or a stream of your own (docs/own-streams.md).
        data_root: Folder of the dataset, in any of CLEAR's layouts, or of your own
            stream. auto, of CLEAR: its folder below CLEAR_MLFLOW_DATA, downloaded where
            it is not there; an embedded dataset has none.
        dataset_args: How your own stream is read: {"name": value}, or
            name=value,name=value; docs/own-streams.md lists what there is.
        protocol: iid: held-out test images; streaming: a bucket's test set is its
            training data.
        split: What protocol iid tests on. A number N: 30 % of each bucket's training
            images, drawn with seed N. auto: the released test set; in the released
            layout its lack is an error, in the others auto is split 0. validation: a
            tenth of what auto trains on, for choosing parameters; no test image is read
            (validation:N: a tenth of what split N trains on).
        features: Name of stored features to train a linear head on, for example moco_b0.
        damaged: What to do about an image that cannot be decoded: stop, or leave_out,
            which lists it in the record.
        strategy: How to learn from the stream, for example replay (docs/strategies.md),
            or a class of your own: package.module:Class.
        strategy_args: The strategy's own numbers: {"name": value}, or
            name=value,name=value; docs/strategies.md lists them.
        memory: What a strategy with a buffer may keep: images, or below 1 a fraction of
            the stream's training images; other strategies ignore it.
        model: small_cnn; any torchvision classification model by its name, for example
            resnet18; or linear, which is for features.
        weights: What the model starts from: none, DEFAULT (torchvision's best pretrained
            weights), or a file of weights, .safetensors or .pth.
        freeze: backbone: train the head alone and leave all other weights as they are.
        image_size: Side of the model's square input, pixels.
        augment: How images are cropped: random_crop, as the CLEAR authors do;
            random_crop_flip, mirrored too; square, the centre alone, cropped and
            mirrored; none: the centre.
        epochs: Passes over each bucket's training data.
        batch_size: Images in one optimiser step; full: all of an epoch.
        optimizer: sgd, adam or adamw.
        optimizer_state: The optimiser's state (momentum, for example) at a new bucket:
            reset or keep.
        lr: The learning rate at the start of a bucket.
        momentum: SGD's momentum; the other optimisers ignore it.
        weight_decay: The optimiser's weight decay.
        schedule: How the learning rate falls within a bucket: step, cosine (to 0) or
            constant.
        lr_step: Under schedule step, epochs after which the learning rate is multiplied
            by lr_gamma.
        lr_gamma: Factor on the learning rate every lr_step epochs.
        warmup_epochs: First epochs of each bucket over which the learning rate rises to
            lr.
        label_smoothing: Share of the target spread over all classes.
        clip_norm: Largest norm of a step's gradient; 0: not clipped.
        precision: Arithmetic of passes: off (float32), tf32 or bf16. auto: bf16 where
            the device has instructions for it, else off; off on the embedded datasets
            and on features.
        compile: Compile the model with torch.compile.
        predictions: What to store of the model's answer for each test image: the
            predicted class (labels), the probabilities too (probs), or nothing (none).
        test_every: Test inside each bucket, too: every so many epochs, as 1, or steps,
            as 200steps; off: after each bucket alone.
        metrics: Families of metrics to log, for example ["clear", "gem"];
            docs/metrics.md lists them.
        log_models: Which buckets' models to store as artifacts: none, last or all.
        resumable: Store after each bucket the state that a resume starts from
            (docs/resume.md); it is removed when the last row is stored.
        seed: Seed of all that is random.
        seeds: Seeds of an ensemble, for example [0, 1, 2]; train_ensemble alone takes
            them.
        device: cpu, cuda, or auto: cuda where there is one.

    Returns:
        Seed to matrix, as :func:`train` gives it.

    Raises:
        ConfigError: a parameter has a value that it cannot have, or there are no ``seeds``.
        DataError: the dataset or its features are missing or damaged.
        TrackingError: MLflow cannot keep the runs.
        TrainingError: training cannot continue; the rows so far are stored and scored.
    """
    asked = _asked(locals())
    config = TrainConfig.resolve(asked)
    if config.seeds == NONE:
        raise ConfigError("seeds is none; an ensemble needs some: pass seeds=0,1,2, or call train")
    client, training = _prepared(config)
    from clear_mlflow.notebook.trained import TrainedRun
    from clear_mlflow.runs.in_process import train_ensemble_in_process

    scores = train_ensemble_in_process(client, training, asked)
    return {seed: TrainedRun.of(client, of_member) for seed, of_member in scores.items()}


def track(
    *,
    buckets: int | Sequence[object],
    num_instances: int | Sequence[int] | Mapping[str, int] | None = None,
    dataset: str = "own",
    dataset_digest: str | None = None,
    protocol: str = "iid",
    split: Literal["test", "validation"] = "test",
    seed: int | None = None,
    strategy: str | None = None,
    model: str | None = None,
    params: Mapping[str, object] | None = None,
    tags: Mapping[str, object] | None = None,
    class_names: Sequence[str] | None = None,
    test_labels: Sequence[Any] | None = None,
    test_ids: Sequence[Sequence[object]] | None = None,
    evaluation_set: EvaluationSet | None = None,
    score: str = "accuracy",
    lower_is_better: bool = False,
    run_name: str | None = None,
    metrics: str | Sequence[str] = "clear,renate",
) -> LoopRun:
    """Track a training loop of your own, which hands over its rows: ``run.log_row(i, correct)``.

    Used as ``with clear_mlflow.track(...) as run:``. An active MLflow run is joined and left open;
    without one, a run is opened, and closed with the status that is true. Each row is stored when
    ``log_row`` returns. After the block, however it ended, the stored rows are scored, and
    ``run.scores`` and ``run.matrix`` hold what they say. A run that holds rows of the same loop
    already is continued.

    Args:
        buckets: keys of all buckets in stream order, or how many there are ("1" to "T").
        num_instances: test images per bucket; one number where all have as many. None where only
            accuracies are known, which leaves out what needs counts.
        dataset: its name, for people.
        dataset_digest: of its content; runs of different digests are not compared. "unknown", or
            that of the evaluation set, when not given.
        protocol: ``iid``: a held-out test set per bucket; ``streaming``: tested on its own
            training data.
        split: what the rows are measured on; numbers on validation images are for choosing by,
            and are never set beside those on test images.
        seed: of the run.
        strategy: its name, to group runs by.
        model: likewise.
        params: logged as MLflow params, where the run has none of that name.
        tags: logged as MLflow tags.
        class_names: the index is the label.
        test_labels: for each bucket, the true class of each test image: predictions can then be
            given per row, and ``num_instances`` follows.
        test_ids: for each bucket, the name of each test image.
        evaluation_set: in place of both, a :class:`~clear_mlflow.core.predictions.EvaluationSet`.
        score: what the rows are of, where that is no accuracy, as "rmse" or "perplexity": rows are
            then given as ``run.log_row(i, values=[...])``, of any finite numbers.
        lower_is_better: whether less of this score is better.
        run_name: of a run that is opened.
        metrics: families of metrics to log, for example ["clear", "gem"]; docs/metrics.md lists
            them.

    Returns:
        A context manager; entering it gives itself.

    Raises:
        ConfigError: something has a value that it cannot have, or two things contradict each other.
        RecordError: a key, a count or a name is not one that the record holds.
        TrackingError: on entering, when MLflow cannot keep the run or it holds another loop's rows.
    """
    given = locals()
    del given["run_name"], given["metrics"]
    from clear_mlflow.core.loop_metadata import describe_loop
    from clear_mlflow.runs.loop_run import LoopRun

    return LoopRun(describe_loop(**given), run_name, metrics)


def _refuse_several_processes() -> None:
    place = place_of_environment()
    if place.size > 1:
        raise ConfigError(
            f"this is one of {place.size} processes, each of which would train alone and open a "
            "run; start 'torchrun ... -m clear_mlflow train', or call this in one process"
        )


def _asked(given: Mapping[str, object]) -> dict[str, str]:
    """What a caller said, as texts: the parameters whose values are not their defaults."""
    texts = {name: _text_of(name, value) for name, value in given.items()}
    defaults = parameter_defaults()
    return {name: text for name, text in texts.items() if text != defaults[name]}


def _text_of(name: str, value: object) -> str:
    """A parameter's value, as a Python user writes it, as the text that the command line takes."""
    if isinstance(value, bool) and name in switches():
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(
            f"{key}={('yes' if item else 'no') if isinstance(item, bool) else item}"
            for key, item in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    # The text of a number's default, which is what it is compared with: 0.00001 is 1e-05 elsewhere.
    default = parameter_defaults()[name]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(ValueError):
            return default if float(default) == value else str(value)
    return str(value)


def _prepared(config: TrainConfig) -> tuple[MlflowClient, StreamTraining]:
    """A store that can keep the run, and a training that is ready to begin."""
    _refuse_several_processes()
    from clear_mlflow.learning.prepare import prepare
    from clear_mlflow.learning.session import check
    from clear_mlflow.notebook.live import progress_here
    from clear_mlflow.store.client import bound_retries, preflight

    config = check(config)
    bound_retries()
    client = preflight()  # before the data, which may take minutes to read
    return client, prepare(config, progress_here(config.protocol))
