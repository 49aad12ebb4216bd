"""What a strategy with a memory keeps: one module per way to choose, named as the way is."""

from __future__ import annotations

import pkgutil


def buffer_names() -> tuple[str, ...]:
    """All buffers' names, found without importing them."""
    return tuple(
        sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    )
