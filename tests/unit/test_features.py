"""The built-in features "pixels" of every dataset."""

import itertools

import numpy as np
import pytest
from image_tables import build_table
from PIL import Image

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data import load_stream
from clear_mlflow.data.features import (
    PIXELS,
    check_extraction_name,
    compute_pixel_features,
    load_features,
)
from clear_mlflow.data.features.extracted import Extraction


@pytest.fixture(scope="module")
def digits(digits_cache):
    return load_stream("digits", "auto", cache_dir=digits_cache, protocol="iid", split="auto")


def test_a_small_image_is_its_bytes_around_zero(tmp_path):
    """Line by line, red first. Black is -1/4 and white 1/4."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    pixels[0, 0], pixels[15, 15] = 0, 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    images = build_table([tmp_path / "a.png"])
    (features,) = compute_pixel_features(images, cache_dir=tmp_path)
    cells = itertools.product(range(16), range(16), range(3))
    expected = [(int(pixels[y, x, colour]) - 127.5) / 510 for y, x, colour in cells]
    np.testing.assert_array_equal(features, np.array(expected, dtype=np.float32))
    assert features[0] == -0.25
    assert features[-1] == 0.25


def test_the_embedded_dataset_has_them(digits, tmp_path):
    reported = []
    options = {"on_image": lambda *counts: reported.append(counts)}
    features = load_features(digits, PIXELS, cache_dir=tmp_path, **options)
    again = load_features(digits, PIXELS, cache_dir=tmp_path / "other")
    assert features.width == 768
    assert features.digest == again.digest
    assert [array.shape for array in features.train] == [(len(i), 768) for i in digits.train]
    assert [array.shape for array in features.test] == [(len(i), 768) for i in digits.test]
    assert features.train[3].dtype == np.float32
    with Image.open(digits.train[3].paths[7]) as image:
        small = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(features.train[3][7] * 510 + 127.5, small.ravel(), atol=1e-4)
    assert reported[-1] == (1700, 1700)


def test_the_name_pixels_is_reserved(digits, tmp_path):
    with pytest.raises(ConfigError, match="pass another --name"):
        check_extraction_name(digits, Extraction(PIXELS, "resnet18", "x", "y"), cache_dir=tmp_path)
