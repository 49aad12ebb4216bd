"""The C library's allocator, set to keep what is freed."""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Let this process reuse the memory of freed tensors instead of handing it back.

    By default every large activation is mapped by the kernel and unmapped again, page by page:
    making a batch of 224-pixel images floats took 12 times as long, and a training step of
    ResNet-18 at 64 pixels 4 % longer. It holds for the whole process and changes no result, so
    it is for a process of our own and not for a caller's.

    Returns:
        Whether the C library is one that can be set so: glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, as musl
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
