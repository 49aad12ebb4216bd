"""The CLEAR authors' pixels, compared with torchvision's loader and transforms."""

import hashlib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from image_tables import build_table, build_test_stream
from learning_streams import CPU
from PIL import Image
from png_files import RGB, build_png
from scipy.stats import chisquare
from torchvision.transforms import CenterCrop, Resize

from clear_mlflow.data.stream import BucketStream
from clear_mlflow.learning.photos import Photos
from clear_mlflow.learning.samples import DecodedStream


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with grain, so that no two regions look alike."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 7, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    grain = random.integers(-25, 26, (height, width, 3))
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def build_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def save_transparent(path: Path) -> None:
    image = photo(60, 40)
    image.putalpha(Image.linear_gradient("L").resize((60, 40)))
    image.save(path)


PROBLEM_TYPES = {
    "photo.jpg": lambda p: photo(500, 375).save(p, quality=90),
    "upright.jpg": lambda p: photo(375, 500).save(p, quality=75),
    "progressive.jpg": lambda p: photo(333, 500).save(p, progressive=True),
    "photo.png": lambda p: photo(301, 200).save(p),
    "tiny.png": lambda p: photo(5, 3).save(p),
    "one pixel.png": lambda p: photo(1, 1).save(p),
    "square.png": lambda p: photo(224, 224).save(p),
    "grey.jpg": lambda p: photo(500, 333).convert("L").save(p),
    "grey.png": lambda p: photo(90, 140).convert("L").save(p),
    "grey with alpha.png": lambda p: photo(90, 140).convert("LA").save(p),
    "bilevel.png": lambda p: photo(70, 50).convert("1").save(p),
    "palette.png": lambda p: photo(70, 50).convert("P").save(p),
    "palette.gif": lambda p: photo(70, 50).convert("P").save(p),
    "transparent.png": save_transparent,
    "see-through palette.png": lambda p: photo(70, 50).convert("P").save(p, transparency=b"\0\7"),
    "cmyk.jpg": lambda p: photo(400, 300).convert("CMYK").save(p),
    "very wide.jpg": lambda p: photo(3000, 40).save(p),
    "very high.png": lambda p: photo(17, 2100).save(p),
    "several times too large.jpg": lambda p: photo(900, 1200).save(p),
    **{
        f"turned {n}.jpg": lambda p, n=n: photo(400, 300).save(p, exif=build_exif(n))
        for n in range(2, 9)
    },
    **{
        f"turned {n}.tiff": lambda p, n=n: photo(90, 60).save(p, exif=build_exif(n))
        for n in range(2, 9)
    },
    **{
        f"transparent grey {n}.png": lambda p, n=n: p.write_bytes(
            build_png(2**n, 7, range(2**n), depth=n, transparent=[2**n // 3])
        )
        for n in (1, 2, 4, 8)
    },
    "transparent colour.png": lambda p: p.write_bytes(
        build_png(
            4, 9, range(0, 48_000, 4000), depth=16, colour_type=RGB, transparent=(0, 4000, 8000)
        )
    ),
}


def build_stream(*paths: Path) -> BucketStream:
    """Return one bucket, whose test images are its training images."""
    contents = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    images = build_table(paths, contents=contents)
    return build_test_stream("photos", ("one", "two"), {"1": (images,)})


def torchvisions(path: Path, size: int) -> np.ndarray:
    """Return torchvision's test images: image loader, Resize, CenterCrop; before normalisation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of palettes with transparency
        image = torchvision.datasets.folder.pil_loader(str(path))
    cropped = CenterCrop(size)(Resize(size)(image))
    return np.asarray(cropped)


@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("size", [224, 99])
def test_test_images_equal_torchvisions(tmp_path, size):
    for name, save in PROBLEM_TYPES.items():
        save(tmp_path / name)
    paths = sorted(tmp_path.iterdir())
    for augment in ("random_crop", "none"):
        stream = DecodedStream(build_stream(*paths), image_size=size, augment=augment, device=CPU)
        held_out = stream.test().cut(0, len(paths)).numpy()
        for path, test_image in zip(paths, held_out, strict=True):
            assert np.array_equal(test_image, torchvisions(path, size)), path.name


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(8, 70), st.sampled_from(["jpg", "png"]))
def test_crops_of_any_size_equal_torchvisions(tmp_path_factory, width, height, size, suffix):
    path = tmp_path_factory.getbasetemp() / f"{width}x{height}.{suffix}"
    photo(width, height).save(path)
    stream = DecodedStream(build_stream(path), image_size=size, augment="random_crop", device=CPU)
    assert np.array_equal(stream.test().cut(0, 1)[0].numpy(), torchvisions(path, size))


def draw_crops(path: Path, augment: str, size: int, *, epochs: int) -> np.ndarray:
    """Return training crops of one image, 64 times in a bucket: (epochs * 64, size, size, 3)."""
    stream = DecodedStream(build_stream(*[path] * 64), image_size=size, augment=augment, device=CPU)
    photos = stream.train(0).images
    assert isinstance(photos, Photos)
    order = torch.arange(64)
    return np.concatenate(
        [
            photos.training_crops(order, torch.Generator().manual_seed(n)).cut(0, 64).numpy()
            for n in range(epochs)
        ]
    )


@pytest.mark.parametrize(("width", "height"), [(60, 40), (40, 60)])
def test_training_crops_are_anywhere_and_never_mirrored(tmp_path, width, height):
    """All 17 positions along the longer side are equally likely, as in torchvision.

    The probability of a false alarm is 1 in 10,000, with the same draws in every run.
    """
    path = tmp_path / "photo.png"
    photo(width, height).save(path)
    size = 32
    resized = np.asarray(Resize(size)(torchvision.datasets.folder.pil_loader(str(path))))
    num_offsets = max(resized.shape[:2]) - size + 1
    assert num_offsets == 17
    literal = {}
    for offset in range(num_offsets):
        top, left_edge = (0, offset) if width > height else (offset, 0)
        literal[resized[top : top + size, left_edge : left_edge + size].tobytes()] = offset
    offsets = [literal[crop.tobytes()] for crop in draw_crops(path, "random_crop", size, epochs=40)]
    counts = np.bincount(offsets, minlength=num_offsets)
    assert chisquare(counts).pvalue > 1e-4
    mirrored = draw_crops(path, "random_crop_flip", size, epochs=40)
    upright = np.array([crop.tobytes() in literal for crop in mirrored])
    assert all(crop[:, ::-1].tobytes() in literal for crop in mirrored[~upright])
    assert 0.45 < upright.mean() < 0.55
    centre = draw_crops(path, "none", size, epochs=1)
    assert {crop.tobytes() for crop in centre} == {torchvisions(path, size).tobytes()}
