"""Names that MLflow makes up for runs that nobody named."""

from __future__ import annotations

import re

# MLflow has no public way to tell; without these lists nothing here imports, and tests say so.
from mlflow.utils.name_utils import _GENERATOR_NOUNS, _GENERATOR_PREDICATES


def is_generated(name: str | None) -> bool:
    """Whether MLflow itself made up a run's name, as ``upbeat-foal-91``.

    >>> is_generated("upbeat-foal-91"), is_generated("replay-buffer-3"), is_generated(None)
    (True, False, True)
    """
    if not name:
        return True
    match = re.fullmatch(r"([a-z]+)-([a-z]+)-[0-9]+", name)
    return bool(match and match[1] in _GENERATOR_PREDICATES and match[2] in _GENERATOR_NOUNS)
