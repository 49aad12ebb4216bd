"""Our training loop beside a bare one, in slices of a second: ``python benchmarks/in_slices.py``.

Two trainings one after the other differ by 20 % on a machine whose speed wanders, whatever they do.
Here all of them are under way at once, and each computes for a second while the others are stopped
(SIGSTOP), in turn, so that they meet the same machine. Counted are the seconds in which a side was
not stopped, from its row of the untrained model to its last one. The sides are those of
``learning.py``: the bare loop, twice, which shows what is left of the noise, and
``clear-mlflow train``, of this checkout and of others (``--beside``), with the cache there. What
ours does by the clock (a picture every 30 s at most, MLflow's system metrics) counts three times,
as the clock runs on while it is stopped: its ratio is an upper bound; versions compare fairly.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import learning
import psutil

HERE = Path(__file__).parents[1]
SLICE_SECONDS = 1.0
LOOK_SECONDS = 0.05


def main() -> None:
    """Measure, or be the bare loop."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", type=int, default=64, choices=learning.SIZES)
    options.add_argument("--precision", nargs="+", default=["off", "bf16"])
    options.add_argument("--beside", nargs="*", type=Path, default=[], help="other checkouts")
    options.add_argument("--bare", nargs=3, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.bare:
        folder, rows, precision = asked.bare
        learning.bare(Path(folder), asked.size, "cpu", precision, Path(rows))
        return
    print(learning.machine("cpu"), end="\n\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        train, test, batch = learning.SIZES[asked.size]
        learning.write_dataset(folder / "clear10", train, test)
        print(
            f"ResNet-18 at {asked.size} px, batch {batch}, {learning.EPOCHS} epoch; "
            f"{learning.BUCKETS} buckets of {train * 11} training and {test * 11} test images.\n"
        )
        print("| precision | side | loop, s | x bare loop |")
        print("|---|---|---:|---:|")
        learning.ours(folder, asked.size, "cpu", "off")  # builds the cache
        for precision in asked.precision:
            compare(folder, asked.size, precision, asked.beside)
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def compare(folder: Path, size: int, precision: str, beside: list[Path]) -> None:
    """Print the lines of one precision."""
    checkouts = {"ours": HERE, **{path.name: path.resolve() for path in beside}}
    sides = [Side(name, folder, size, precision) for name in ("bare", "bare again")]
    sides += [Side(name, folder, size, precision, path) for name, path in checkouts.items()]
    while sum(side.run_for_a_slice() for side in sides):
        pass
    for side in sides:
        ratio = side.loop / sides[0].loop
        print(f"| {precision} | {side.name} | {side.loop:.1f} | {ratio:.3f} |", flush=True)


class Side:
    """A training that is stopped but for its slices.

    Args:
        name: of it.
        folder: that the dataset and the cache are in.
        size: of the images, pixels.
        precision: ``off`` or ``bf16``.
        checkout: whose ``clear-mlflow train`` it is; None: the bare loop.
    """

    def __init__(
        self, name: str, folder: Path, size: int, precision: str, checkout: Path | None = None
    ) -> None:
        self.name = name
        work = folder / f"side {name}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        if checkout is None:
            command = [sys.executable, __file__, "--size", str(size)]
            command += ["--bare", str(folder), str(work), precision]
            environment = dict(os.environ)
            self._rows = (work, "row_*.json")
        else:
            command, environment = learning.command_of_ours(folder, work, size, "cpu", precision)
            environment["PYTHONPATH"] = str(checkout)
            self._rows = (work, "mlruns/*/*/artifacts/accuracy_matrix/rows/row_*.json")
        self._marks: list[float] = []
        self._active = 0.0
        with (work / "said").open("w") as said:
            self._process = psutil.Popen(
                command, cwd=work, env=environment, stdout=said, stderr=subprocess.STDOUT
            )
        self._signal(signal.SIGSTOP)

    @property
    def loop(self) -> float:
        """Seconds from the first row to the last one."""
        if self._process.returncode or len(self._marks) != learning.BUCKETS + 1:
            raise SystemExit(f"{self.name}: exit code {self._process.returncode}")
        return self._marks[-1] - self._marks[0]

    def run_for_a_slice(self) -> bool:
        """Let it run; whether it has not ended."""
        if self._process.poll() is not None:
            return False
        self._signal(signal.SIGCONT)
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < SLICE_SECONDS:
            folder, pattern = self._rows
            rows = len(list(folder.glob(pattern)))
            self._marks += [self._active + passed] * (rows - len(self._marks))
            time.sleep(LOOK_SECONDS)
            if self._process.poll() is not None:
                break
        self._signal(signal.SIGSTOP)
        self._active += time.perf_counter() - began
        return True

    def _signal(self, number: int) -> None:
        """To all of its processes."""
        try:
            for process in (self._process, *self._process.children(recursive=True)):
                process.send_signal(number)
        except psutil.NoSuchProcess:
            pass


if __name__ == "__main__":
    main()
