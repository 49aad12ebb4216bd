"""Biased reservoir: the newer an image is, the likelier it is to be held."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from numpy.typing import NDArray

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.buffers._base import Buffer
from clear_mlflow.learning.device import RngPurpose, generator


class BiasedReservoir(Buffer):
    """CLEAR's reservoir, which lets new images in more readily than a uniform sample would.

    Images arrive one by one. The first k, the buffer's capacity, fill it. The n-th one is let in
    with probability ``min(1, alpha * k / n)`` and takes the place of one that is drawn uniformly
    from those held.

    - Fixed alpha, ``alpha=2``: 1 is a uniform sample of the stream (:mod:`.reservoir`); the greater
      it is, the more the buffer prefers what is new, while still every image is let in less readily
      than those before it.
    - Dynamic alpha, ``alpha=0.75n/k``: it grows with the stream, so that every image is let in with
      the same probability, 0.75; the chance that an image is still there then falls exponentially
      with its age.

    A bucket's images arrive in a random order; in files they are sorted by class, and the last
    class would be preferred. The authors' code decides by bucket, with n at the bucket's end; here
    n counts images, as their text does.

    Source:
        Lin et al., The CLEAR Benchmark, arXiv:2201.06289, biased reservoir sampling. Their code
        tries alpha 0.25, 0.5, 1, 2 and 5, and 0.25, 0.5, 0.75 and 1 times n / k, with a buffer as
        large as a bucket.
    """

    counted = ("_num_seen",)
    _num_seen = 0  # images so far

    def _choose(self, position: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        draws = generator(self.seed, RngPurpose.BUFFER, position)
        count, num_held = len(labels), len(self)
        arriving = num_held + torch.randperm(count, generator=draws).numpy()
        luck = torch.rand(count, generator=draws, dtype=torch.float64).numpy()
        place = torch.randint(self.capacity, (count,), generator=draws).numpy()

        seen = self._num_seen + np.arange(1, count + 1)
        self._num_seen += count
        held = np.concatenate([np.arange(num_held), arriving[: self.capacity - num_held]])
        let_in = (luck < insertion_probability(seen, self.capacity, self.alpha)) & (
            seen > self.capacity
        )
        held[place[let_in]] = arriving[let_in]  # of several in one place, the last one stays
        return np.sort(held)

    @classmethod
    def check_alpha(cls, alpha: str) -> None:
        """Check the text of an alpha; see :func:`parse_alpha`."""
        parse_alpha(alpha)


def parse_alpha(text: str) -> tuple[float, bool]:
    """Read an alpha.

    Returns:
        The number, and whether it is a multiple of n / k.

    Raises:
        ConfigError: it is neither a number above 0 nor, at most 1, a multiple of n/k.

    >>> parse_alpha("2")
    (2.0, False)
    >>> parse_alpha("0.75n/k")
    (0.75, True)
    """
    number, dynamic = re.fullmatch(r"(.*?)(\*?n/k)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha > 0 and (alpha <= 1 or not dynamic)):
        raise ConfigError(
            f"strategy_args has alpha={text}; buffer=biased_reservoir expects a number above 0, as "
            "alpha=2, or a share that grows with the stream, from above 0 to 1, as alpha=0.75n/k"
        )
    return alpha, bool(dynamic)


def insertion_probability(
    seen: NDArray[np.int64], capacity: int, alpha: str
) -> NDArray[np.float64]:
    """The probability that an image is let into a full buffer.

    Args:
        seen: (N,), the number of images so far, each image itself counted.
        capacity: of the buffer.
        alpha: see :func:`parse_alpha`.
    """
    number, dynamic = parse_alpha(alpha)
    if dynamic:
        return np.full(len(seen), number)
    return np.minimum(1.0, number * capacity / seen)
