"""Whether OpenMP's threads spin or sleep while they wait for each other, for as long as they train.

Spinning is fastest where every thread has a core to itself. Where something else wants the cores, a
thread that spins keeps the one that it waits for from running: the same training took 10 times as
long, and up to 100 times. What else runs on a machine changes in the hours that a training takes,
so it is looked at once a second: Linux counts how long each thread was ready and had no core.

libgomp, the OpenMP of PyTorch's builds for Linux, spins for 300,000 rounds, some milliseconds, and
for 100 while more of its threads are alive than there are cores (its manual, ``GOMP_SPINCOUNT``).
So threads of its that do nothing make the others sleep, and once those end, they spin again. No
result depends on it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

# How a user says what these threads do; then it is not ours to choose.
_CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# Where Linux says how long a thread had no core.
_DELAYS = "schedstat"
# Rounds, some microseconds, where that is not known: benchmarks/README.md has what others cost.
_SPIN_COUNT = "3000"
# Seconds without a core in a second, of all threads. More is what one other program that never
# pauses makes, and from there on sleeping costs less than spinning (benchmarks/README.md).
_MOST_DELAY = 0.5
# Looks in a row, a second apart, that something else wants the cores, and that nothing does.
_BUSY_LOOKS, _CALM_LOOKS = 2, 5
# Elements that torch divides among its threads.
_FOR_ALL_THREADS = 2**17


def child_environment() -> dict[str, str]:
    """This process's environment, for one that trains.

    Where it cannot be known whether threads share their cores, they spin for a moment, always.
    """
    environment = dict(os.environ)
    if not Path("/proc/self", _DELAYS).exists() and not _is_chosen(environment):
        environment["GOMP_SPINCOUNT"] = _SPIN_COUNT
    return environment


def _is_chosen(environment: Mapping[str, str]) -> bool:
    return any(name in environment for name in _CHOSEN_BY_USER)


def run_delays() -> dict[str, float]:
    """Seconds that each thread of this process was ready to run and had no core, by its number."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            found[thread.name] = int((thread / _DELAYS).read_text().split()[1]) / 1e9
    return found


class Contention:
    """Whether something else wants the cores: two looks in a row say that, five that it is over."""

    def __init__(self) -> None:
        self._is_there = False
        self._looks_against = 0

    def look(self, delay: float) -> bool:
        """Take in another look.

        Args:
            delay: seconds without a core in each second since the look before, of all threads.
        """
        is_against = (delay > _MOST_DELAY) != self._is_there
        self._looks_against = self._looks_against + 1 if is_against else 0
        if self._looks_against == (_CALM_LOOKS if self._is_there else _BUSY_LOOKS):
            self._is_there, self._looks_against = not self._is_there, 0
        return self._is_there


class IdleTeams:
    """Enough threads of libgomp that do nothing to have more of them than cores, while wanted.

    Each thread that has computed something keeps a team of its own, of ``threads`` with itself.
    """

    def __init__(self, threads: int, cores: int) -> None:
        self.number = max(0, -(-(cores - threads + 1) // (threads - 1)))
        self._end = threading.Event()
        self._owners: list[threading.Thread] = []

    def want(self, wanted: bool) -> None:
        """Have them, or have them no longer."""
        if wanted and not self._owners:
            self._end.clear()
            self._owners = [
                threading.Thread(target=self._compute_and_wait, daemon=True)
                for _ in range(self.number)
            ]
            for owner in self._owners:
                owner.start()
        elif not wanted and self._owners:
            self._end.set()
            for owner in self._owners:
                owner.join()
            self._owners = []

    def _compute_and_wait(self) -> None:
        import torch  # only processes that train have it loaded

        torch.zeros(_FOR_ALL_THREADS).add_(1)
        self._end.wait()


@contextmanager
def watched() -> Iterator[None]:
    """In here, threads spin while they have the cores to themselves, and sleep else."""
    import torch

    threads = torch.get_num_threads()
    if threads == 1 or _is_chosen(os.environ):
        yield
        return
    end = threading.Event()
    teams = IdleTeams(threads, len(os.sched_getaffinity(0)))
    watcher = threading.Thread(target=_watch, args=(teams, end), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        end.set()
        watcher.join()


def _watch(teams: IdleTeams, end: threading.Event) -> None:
    contention = Contention()
    at, before = time.monotonic(), run_delays()
    while not end.wait(1.0):
        then, now = time.monotonic(), run_delays()
        delay = sum(now[thread] - before[thread] for thread in now.keys() & before.keys())
        teams.want(contention.look(delay / (then - at)))
        at, before = then, now
    teams.want(False)
