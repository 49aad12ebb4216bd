"""Pages that a process keeps while nothing that they show has changed."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable

# Half a megabyte each as a rule.
_MOST = 16


class BusyError(Exception):
    """Others wait for their pages already; asked again, it is this one's turn."""


class KeptPages:
    """Pages by what they show, drawn one at a time; a request waits *patience* seconds."""

    def __init__(self, patience: float = 10.0) -> None:
        self._patience = patience
        self._pages: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shown: object, draw: Callable[[], str]) -> str:
        """The page of what is shown (values that JSON takes): a kept one, or drawn now."""
        key = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
        if not self._lock.acquire(timeout=self._patience):
            raise BusyError
        try:
            if key not in self._pages:
                self._pages[key] = draw()
                if len(self._pages) > _MOST:
                    self._pages.popitem(last=False)
            self._pages.move_to_end(key)
            return self._pages[key]
        finally:
            self._lock.release()
