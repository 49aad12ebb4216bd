"""Work on many items at a time, a few at once, with results in the order of the items."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Items that are begun before the result of the first is taken, for each thread: enough that no
# thread waits for a slow neighbour, and few enough to keep in memory.
_AHEAD = 4


def mapped(
    function: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int
) -> Iterator[_Result]:
    """``map`` with *jobs* threads that work ahead a little; with 1, the caller's does it."""
    if jobs == 1:
        yield from map(function, items)
        return
    threads = ThreadPoolExecutor(jobs, "clear_mlflow pool")
    begun: deque[Future[_Result]] = deque()
    try:
        for item in items:
            # In the caller's context: MLflow keeps there which workspace is meant.
            begun.append(threads.submit(contextvars.copy_context().run, function, item))
            while begun and (len(begun) >= _AHEAD * jobs or begun[0].done()):
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
