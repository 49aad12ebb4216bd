"""Work on many items at a time, a few at once, with results in the order of the items."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Items that are begun before the result of the first is taken, for each thread: enough that no
# thread waits for a slow neighbour, and few enough to keep in memory.
_AHEAD = 4


def mapped(
    function: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int
) -> Iterator[_Result]:
    """``map(function, items)``, with *jobs* threads that work ahead.

    Items are taken one by one as there is room, so an endless listing takes no more memory than a
    short one. Whoever stops taking results (a Ctrl-C) waits for nothing: what has begun ends by
    itself, in threads that hold no program open.

    Args:
        function: called in a thread; an exception is raised in its item's place.
        items: taken by the caller's thread.
        jobs: threads; with 1, the caller's thread does the work and there is no other.
    """
    if jobs == 1:
        yield from map(function, items)
        return
    work: queue.SimpleQueue[_Task[_Item, _Result] | None] = queue.SimpleQueue()

    def run() -> None:
        while (task := work.get()) is not None:
            if not stopped.is_set():
                task.run()

    stopped = threading.Event()
    threads = 0
    begun: deque[_Task[_Item, _Result]] = deque()
    try:
        for item in items:
            task = _Task(function, item)
            begun.append(task)
            work.put(task)
            if threads < jobs:
                threads += 1
                threading.Thread(target=run, name="clear_mlflow pool", daemon=True).start()
            while begun and (len(begun) >= _AHEAD * jobs or begun[0].done.is_set()):
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        stopped.set()
        for _ in range(threads):
            work.put(None)


class _Task(Generic[_Item, _Result]):
    """One item, and what became of it."""

    def __init__(self, function: Callable[[_Item], _Result], item: _Item) -> None:
        self.done = threading.Event()
        self._function = function
        # Of the caller: MLflow keeps there which workspace is meant.
        self._context = contextvars.copy_context()
        self._item = item
        self._results: list[_Result] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._results.append(self._context.run(self._function, self._item))
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def result(self) -> _Result:
        self.done.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]
