"""PNG files of any depth, which Pillow does not write."""

import struct
import zlib
from collections.abc import Sequence

GREY, RGB = 0, 2


def build_png(
    width: int,
    height: int,
    levels: Sequence[int] = (),
    *,
    depth: int = 8,
    colour_type: int = GREY,
    transparent: Sequence[int] = (),
) -> bytes:
    """Return a PNG whose lines all have these *levels*, of *depth* bits each.

    transparent: the transparent grey or colour. Without levels, the pixels are missing.
    """
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    chunks = [_build_chunk(b"IHDR", header)]
    if transparent:
        chunks.append(_build_chunk(b"tRNS", struct.pack(f">{len(transparent)}H", *transparent)))
    bits = "".join(f"{level:0{depth}b}" for level in levels)
    bits += "0" * (-len(bits) % 8)
    line = bytes(int(bits[n : n + 8], 2) for n in range(0, len(bits), 8))
    pixels = (b"\0" + line) * height if levels else bytes(1000)
    chunks += [_build_chunk(b"IDAT", zlib.compress(pixels)), _build_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _build_chunk(chunk_type: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(chunk_type + data)
    return struct.pack(">I", len(data)) + chunk_type + data + struct.pack(">I", checksum)
