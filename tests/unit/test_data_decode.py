"""Decoding: every kind of photo becomes square RGB bytes."""

import hashlib
import io
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_tables import build_table
from one_line_errors import check_error
from PIL import Image, ImageOps
from png_files import RGB, build_png
from released_layout import write_image

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import decode as decode_module
from clear_mlflow.data.decode import (
    DecodedCache,
    LibraryTransform,
    Resize,
    UndecodableError,
    decode_file,
    iter_decoded,
)

decode = DecodedCache(None).load
RED, WHITE = (255, 0, 0), (255, 255, 255)


def decode_image(path: Path, size: int = 8) -> np.ndarray:
    return decode(build_table([path]), Resize(size, square=True)).pixels.reshape(-1, size, size, 3)[
        0
    ]


def extract_image(path: Path) -> np.ndarray:
    """Return the upright image that another library's transform receives."""
    transform = LibraryTransform(lambda image: np.array(image), side=8, text="same")
    (image,) = iter_decoded(build_table([path]), transform)
    assert isinstance(image, np.ndarray)
    return image


def refusal(path: Path) -> str:
    return check_error(DataError, str(path), decode_image, path)


def quadrants(width: int, height: int) -> Image.Image:
    """Return an image whose four quarters show its orientation."""
    image = Image.new("RGB", (width, height))
    colours = ((250, 10, 10), (10, 250, 10), (10, 10, 250), (250, 250, 10))
    for number, colour in enumerate(colours):
        left_edge, top = number % 2 * (width // 2), number // 2 * (height // 2)
        image.paste(colour, (left_edge, top, left_edge + width // 2, top + height // 2))
    return image


@settings(max_examples=60)
@given(width=st.integers(1, 70), height=st.integers(1, 70), side=st.integers(1, 29))
def test_any_size_becomes_the_central_square(tmp_path_factory, width, height, side):
    path = tmp_path_factory.getbasetemp() / f"{width}x{height}.png"
    write_image(path, size=(width, height), seed=f"{width}x{height}")
    pixels = decode(build_table([path]), Resize(side, square=True)).pixels
    result = pixels.reshape(-1, side, side, 3)
    assert result.shape == (1, side, side, 3)
    assert result.dtype == np.uint8
    assert result.flags.c_contiguous
    with Image.open(path) as image:
        scaled = np.asarray(image, dtype=np.float64)
    square = min(width, height)
    rows = _bilinear(height, (height - square) / 2, square, side)
    columns = _bilinear(width, (width - square) / 2, square, side)
    literal = np.einsum("yh,xw,hwc->yxc", rows, columns, scaled)
    # Pillow rounds to complete levels after either direction.
    assert np.abs(result[0] - literal).max() <= 1.5


def _bilinear(length: int, start: float, extent: float, side: int) -> np.ndarray:
    """Return weights of a triangle filter by its definition: (side, length)."""
    step = extent / side
    width = max(step, 1.0)
    weights = np.zeros((side, length))
    for i in range(side):
        centre = start + (i + 0.5) * step
        for j in range(length):
            weights[i, j] = max(0.0, 1.0 - abs(j + 0.5 - centre) / width)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("width", "height"), [(48, 32), (31, 47)])
@pytest.mark.parametrize("ending", ["jpg", "png", "tiff"])
def test_orientation_of_the_camera_is_undone_once(tmp_path, ending, orientation, width, height):
    """Pillow turns a TIFF itself when it reads the pixels."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{ending}"
    options = {"quality": 95} if ending == "jpg" else {}
    quadrants(width, height).save(path, exif=exif, **options)
    with Image.open(path) as image:
        ImageOps.exif_transpose(image).save(tmp_path / "upright.png")
    for read in (extract_image, lambda path: decode_image(path, 20)):
        difference = read(path).astype(int) - read(tmp_path / "upright.png")
        assert np.abs(difference).max() <= 2
    assert extract_image(path).shape[:2] == (
        (height, width) if orientation < 5 else (width, height)
    )


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # as the module does, before pytest
def test_photos_with_damaged_exif_are_decoded(tmp_path):
    quadrants(32, 32).save(tmp_path / "bad.jpg", exif=b"Exif\0\0MM\0*" + b"\xff" * 13)
    quadrants(32, 32).save(tmp_path / "none.jpg")
    assert np.array_equal(decode_image(tmp_path / "bad.jpg"), decode_image(tmp_path / "none.jpg"))


def _sixteen_bits(path: Path) -> None:
    Image.fromarray(np.full((8, 8), 0x80FF, dtype=np.uint16)).save(path)


KINDS = {
    "grey.png": (lambda p: Image.new("L", (8, 8), 77).save(p), (77, 77, 77)),
    "grey.jpg": (lambda p: Image.new("L", (8, 8), 77).save(p), (77, 77, 77)),
    "grey with alpha.png": (lambda p: Image.new("LA", (8, 8), (0, 0)).save(p), WHITE),
    "bilevel.png": (lambda p: Image.new("1", (8, 8), 1).save(p), WHITE),
    "sixteen bits.png": (_sixteen_bits, (128, 128, 128)),
    "palette.png": (lambda p: Image.new("RGB", (8, 8), RED).convert("P").save(p), RED),
    "palette.gif": (lambda p: Image.new("RGB", (8, 8), RED).convert("P").save(p), RED),
    "clear palette.png": (lambda p: Image.new("P", (8, 8), 0).save(p, transparency=0), WHITE),
    "clear colour.png": (lambda p: Image.new("RGB", (8, 8), RED).save(p, transparency=RED), WHITE),
    "opaque.png": (lambda p: Image.new("RGBA", (8, 8), (*RED, 255)).save(p), RED),
    "half.png": (lambda p: Image.new("RGBA", (8, 8), (0, 0, 0, 128)).save(p), (127, 127, 127)),
    "cmyk.jpg": (lambda p: Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(p), RED),
    "colour.bmp": (lambda p: Image.new("RGB", (8, 8), RED).save(p), RED),
    "colour.webp": (lambda p: Image.new("RGB", (8, 8), RED).save(p, lossless=True), RED),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_image_becomes_rgb(tmp_path, name):
    save, colour = KINDS[name]
    save(tmp_path / name)
    difference = decode_image(tmp_path / name).astype(int) - np.array(colour)
    assert np.abs(difference).max() <= 2


GREYS = np.repeat(np.array([[0, 255 * 16, 128 * 257, 65535]], np.uint16), 4, axis=0)
# 16-bit grey in each mode of Pillow: I;16, I;16B and I.
SIXTEEN_BITS = {"I;16.png": GREYS, "I;16B.tiff": GREYS.astype(">u2"), "I.ppm": GREYS}


@pytest.mark.parametrize("name", SIXTEEN_BITS)
def test_sixteen_bits_are_scaled_for_training_and_features(tmp_path, name):
    """0 to 65535 become 0 to 255 in every geometry, whatever Pillow calls the image."""
    Image.fromarray(SIXTEEN_BITS[name]).save(tmp_path / name)
    with Image.open(tmp_path / name) as image:
        assert image.mode == name.partition(".")[0]
    images = build_table([tmp_path / name])
    transform = LibraryTransform(lambda image: np.array(image), side=4, text="same")
    (extracted,) = iter_decoded(images, transform)
    trained = (decode(images, Resize(4, square=square)).pixels for square in (False, True))
    for pixels in (extracted, *trained):
        assert pixels.reshape(4, 4, 3)[:, :, 0].tolist() == [[0, 15, 128, 255]] * 4


@pytest.mark.parametrize(
    ("depth", "transparent"),
    [(1, 0), (1, 1), (2, 1), (2, 2), (4, 1), (4, 7), (4, 14), (8, 7), (16, 7), (16, 0x8042)],
)
def test_transparent_grey_of_any_depth_is_white(tmp_path, depth, transparent):
    path = tmp_path / "grey.png"
    most = 2**depth - 1
    levels = [level for level in (0, 1, 2, 7, 14, 0x8042, most) if level <= most]
    png = build_png(len(levels), len(levels), levels, depth=depth, transparent=[transparent])
    path.write_bytes(png)
    expected = [255 if level == transparent else level * 255 // most for level in levels]
    for image in (extract_image(path), decode_image(path, len(levels))):
        assert image[:, :, 0].tolist() == [expected] * len(levels)
    opaque = decode(build_table([path]), Resize(len(levels))).pixels[: 3 * len(levels) : 3]
    assert opaque.tolist() == [level * 255 // most for level in levels]


@pytest.mark.parametrize("colour", [(0x12, 0x34, 0x56), (0x1234, 0x5678, 0x9ABC)])
def test_a_transparent_colour_of_any_depth_is_white(tmp_path, colour):
    path, depth = tmp_path / "colour.png", 16 if max(colour) > 255 else 8
    path.write_bytes(
        build_png(2, 2, [*colour, 1, 2, 3], depth=depth, colour_type=RGB, transparent=colour)
    )
    other = [n >> (depth - 8) for n in (1, 2, 3)]
    for image in (extract_image(path), decode_image(path, 2)):
        assert image.tolist() == [[[255] * 3, other]] * 2


def test_a_file_is_hashed_and_decoded_from_one_reading(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(build_png(2, 1, [1, 2]))
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    for expected_hash in (None, content):
        content_hash, image = decode_file(str(path), Resize(1), expected_hash)
        assert content_hash == content
        assert not isinstance(image, UndecodableError)
        assert image[0, :, 0].tolist() == [1, 2]
    check_error(DataError, str(path), decode_file, str(path), Resize(1), "0" * 64)
    path.write_bytes(b"text")
    content_hash, error = decode_file(str(path), Resize(1), None)
    assert content_hash == hashlib.sha256(b"text").hexdigest()
    assert str(error) == "it is not an image in a format of photos"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["exif", "palette", "bomb"])
def test_no_warning_lacks_a_file_name(tmp_path, damage):
    """Pillow warns without a name; what matters is in our own messages."""
    folder = tmp_path / "data/2004/bus"
    folder.mkdir(parents=True)
    (folder.parent / "cab").mkdir()
    for n in range(8):
        path = folder.parent / ("bus", "cab")[n % 2] / f"{n}.png"
        Image.new("RGB", (9, 9), (n + 99, n, n)).save(path)
    if damage == "exif":
        quadrants(32, 32).save(folder / "a.jpg", exif=b"Exif\0\0MM\0*" + b"\xff" * 13)
    elif damage == "palette":
        Image.new("P", (9, 9), 1).save(folder / "a.png", transparency=b"\0\7")
    else:
        (folder / "a.png").write_bytes(build_png(10_000, 10_000))
    command = [sys.executable, "-m", "clear_mlflow", "data", "check", str(tmp_path / "data")]
    command += ["--dataset", "folder"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Warning" not in done.stdout + done.stderr
    assert ("10000 x 10000 pixels" in done.stdout) == (damage == "bomb")


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"sixteen bits.png"}))
def test_eight_bits_are_trained_on_as_torchvision_loads_them(tmp_path, name):
    KINDS[name][0](tmp_path / name)
    with Image.open(tmp_path / name) as image:
        expected = image.convert("RGB").resize((4, 4), Image.Resampling.BILINEAR)
    assert decode(build_table([tmp_path / name]), Resize(4)).pixels.tobytes() == expected.tobytes()


def test_order_is_kept_and_progress_reported(tmp_path):
    paths = [tmp_path / f"{n}.png" for n in range(50)]
    for n, path in enumerate(paths):
        Image.new("RGB", (9, 7), (n, 2 * n, 3 * n)).save(path)
    reported: list[int] = []
    decoded = decode(build_table(paths), Resize(4, square=True), on_image=reported.append)
    result = decoded.pixels.reshape(-1, 4, 4, 3)
    assert np.array_equal(result[:, 0, 0], [(n, 2 * n, 3 * n) for n in range(50)])
    assert reported == sorted(set(reported))
    assert reported[-1] == 50


@pytest.mark.slow
@pytest.mark.parametrize("height", [518, 4 * 518])
def test_images_decoded_ahead_are_limited_in_bytes(tmp_path, monkeypatch, height):
    """At most 1 GiB waits on 64 cores with DINOv2's size."""
    monkeypatch.setattr(decode_module, "count_usable_cores", lambda: 64)
    path = tmp_path / "image.png"
    Image.new("RGB", (8, 8)).save(path)
    made = []

    def make(image):
        made.append(image.size)
        return np.zeros((3, height, 518), dtype=np.float32)

    images = build_table([path] * 2000)
    decoded = iter_decoded(images, LibraryTransform(make, side=518, text="518"))
    num_used = 0
    while num_used < 400:
        next(decoded)
        num_used += 1
    before = -1
    while before < len(made):  # until nothing more is decoded ahead
        before = len(made)
        time.sleep(0.5)
    assert len(made) > num_used
    assert (len(made) - num_used) * 3 * height * 518 * 4 <= 2**30
    num_used += len(list(decoded))
    assert num_used == len(made) == 2000


def _save_image(image_format: str, image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format)
    return file.getvalue()


JPEG = _save_image("JPEG", quadrants(64, 64))


BROKEN = {
    "empty.jpg": b"",
    "text.jpg": b"<html>404 Not Found</html>\n",
    "truncated.jpg": JPEG[: len(JPEG) // 2],
    "header.jpg": JPEG[:20],
    "truncated.png": build_png(64, 64)[:60],
    "too few pixels.png": build_png(640, 640),
    # Pillow reads it, and we do not ask.
    "old.pcx": _save_image("PCX", Image.new("RGB", (8, 8), RED)),
    "more than 16 bits.tiff": _save_image("TIFF", Image.new("I", (8, 8), 1 << 16)),
    "below zero.tiff": _save_image("TIFF", Image.new("I", (8, 8), -1)),
    "float.tiff": _save_image("TIFF", Image.new("F", (8, 8), 0.5)),  # of no known range
    "postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_images_are_rejected_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    assert "cannot be decoded" in refusal(tmp_path / name)
    with pytest.raises(DataError, match="cannot be decoded"):  # as images are trained on
        decode(build_table([tmp_path / name]), Resize(4))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 100_000, 2**31 - 1])
def test_decompression_bombs_are_not_inflated(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(build_png(side, side))
    assert "pixels" in refusal(tmp_path / "bomb.png")


_WITH_LITTLE_MEMORY = """
import hashlib, resource, sys
from pathlib import Path
import numpy as np
from clear_mlflow.core.errors import DataError
from clear_mlflow.data import check as findings
from clear_mlflow.data.decode import Resize
from clear_mlflow.data.decode import DecodedCache
from clear_mlflow.data.images import ImageTable

path, what = Path(sys.argv[1]), sys.argv[2]
content = hashlib.sha256(path.read_bytes()).hexdigest()
contents = (content,) if what == "cache" else ()
zeros = np.zeros(1, np.int64)
images = ImageTable((str(path),), zeros, zeros, zeros == 1, contents)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
if what == "check":
    print(findings._check_image(str(path), path.parent)[1])
else:
    try:
        DecodedCache(path.parent / "cache").load(images, Resize(224))
    except DataError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["cache", "memory", "check"])
def test_an_image_too_large_for_the_memory_is_a_one_line_error(tmp_path, cause):
    path = tmp_path / "large.png"
    Image.new("I;16", (9000, 8900)).save(path)
    command = [sys.executable, "-c", _WITH_LITTLE_MEMORY, str(path), cause]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert "needs more memory to be decoded than this machine can give" in line
    assert not list(tmp_path.glob("cache/*.npy"))
