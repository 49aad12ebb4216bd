"""Small streams on disk for tests of training."""

import hashlib

import numpy as np
import torch
from image_tables import build_table, build_test_stream
from PIL import Image

from clear_mlflow.data.decode import DecodedImages
from clear_mlflow.learning.device import RngPurpose, build_generator
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.photos import wrap_photos
from clear_mlflow.learning.samples import compute_batch_bounds, draw_order, iter_batches

CPU = torch.device("cpu")


def config(**changes):
    """Return a configuration for images of 8 pixels, from texts."""
    parameters = {"model": "small_cnn", "image_size": "8", "epochs": "2", "batch_size": "4"}
    parameters |= {"lr": "0.05", "memory": "6", "device": "cpu"}
    return TrainConfig.resolve(
        {**parameters, **{name: str(value) for name, value in changes.items()}}
    )


def squares(pixels, side=None, augment="none"):
    """Return images, (N, side, side, 3) in uint8, as a stream has them."""
    count, length = pixels.shape[:2]
    decoded = DecodedImages(pixels.numpy().reshape(-1), np.full((count, 2), length))
    return wrap_photos(decoded, side or length, augment)


def read_pixels(samples):
    """Return the central pixels of images, (N, side, side, 3) in uint8."""
    return samples.images.centre_crops().cut(0, len(samples))


def write_images(folder, images, labels):
    """Write lossless PNG files, and return them with their labels."""
    folder.mkdir(parents=True)
    paths = []
    for i, image in enumerate(images):
        paths.append(folder / f"{i}.png")
        Image.fromarray(image).save(paths[-1])
    contents = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    return build_table(paths, labels, contents)


def write_stream(folder, images, labels, *, num_classes):
    """Write a stream whose test images are its training images."""
    buckets = {}
    for i, (of_bucket, of_labels) in enumerate(zip(images, labels, strict=True)):
        buckets[str(i + 1)] = (write_images(folder / str(i), of_bucket, of_labels),)
    return build_test_stream("made-up", tuple(map(str, range(num_classes))), buckets)


def random_stream(folder, *, train, test, side, num_classes=3, seed=0):
    """Return a stream of noise with so many images per bucket, and the pixels of each file."""
    random = np.random.default_rng(seed)
    pixels, buckets = {}, {}
    for i, counts in enumerate(zip(train, test, strict=True)):
        sets = []
        for split, count in zip(("train", "test"), counts, strict=True):
            images = random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
            labels = random.integers(0, num_classes, count)
            image_set = write_images(folder / str(i) / split, images, labels)
            pixels |= dict(zip(image_set.paths, images, strict=True))
            sets.append(image_set)
        buckets[f"key{i}"] = tuple(sets)
    names = tuple(f"class {i}" for i in range(num_classes))
    return build_test_stream("noise", names, buckets), pixels


def iter_training_batches(samples, *, batch_size, device, seed, bucket_index, epoch, **options):
    """Yield the batches of one epoch as the trainer draws them."""
    return iter_batches(
        samples,
        draw_order(len(samples), seed, bucket_index, epoch),
        compute_batch_bounds(len(samples), batch_size),
        device=device,
        generator=build_generator(seed, RngPurpose.AUGMENTATION, bucket_index, epoch),
        **options,
    )


def list_batches(samples, **changes):
    options = {"batch_size": 3, "device": CPU, "seed": 0, "bucket_index": 0, "epoch": 0, **changes}
    return [(batch.inputs, batch.labels) for batch in iter_training_batches(samples, **options)]
