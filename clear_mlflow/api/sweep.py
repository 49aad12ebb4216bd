"""Train a grid of runs and compare them: the declaration, and the result. Imports no MLflow."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.grids.grid import PlannedRun

if TYPE_CHECKING:
    from clear_mlflow.api.compared import ComparedRuns

# States of a run.
DONE_BEFORE, DONE, FAILED = "done before", "done", "failed"
ELSEWHERE, NOT_DONE, TRAINING = "trains elsewhere", "not done", "training"


def sweep(
    grid: Mapping[str, Any] | str | Path,
    *,
    experiment: str | None = None,
    run_name: str | None = None,
    engine: Literal["local", "ray"] = "local",
    jobs: int | Literal["auto"] = "auto",
    address: str = "local",
    cpus: float = 1,
    gpus: float | Literal["auto"] = "auto",
    retries: int = 2,
    group_by: str | Sequence[str] = "auto",
    rank_by: str = "auto",
) -> SweepResult:
    """Train each combination of a grid as a child run of one parent run, and compare the runs.

    Runs that the experiment already contains are skipped, and interrupted ones are resumed, so the
    same call continues where it stopped. A run that fails does not stop the others.

    Args:
        grid: YAML file of strategies, seeds and parameters (docs/sweeps.md); in Python also its
            content, for example ``{"fixed": {...}, "grid": {"strategy": [...]}}``.
        experiment: experiment of the runs. None: the experiment of the environment.
        run_name: name of the parent run. None: strategies and number of runs.
        engine: where to train: local, on this machine, or ray, on a Ray cluster.
        jobs: number of runs at a time. auto: one, and on Ray as many as the cluster has room for.
        address: address of a running Ray cluster, HOST:6379 or auto. local: start Ray on this
            machine.
        cpus: cores per run, on Ray.
        gpus: GPUs per run, on Ray; with 0.5, two runs share one. auto: one if the cluster has any.
        retries: number of times to resume a run that was killed or whose machine went down.
        group_by: parameters or tags that the seeds of one method share. auto: strategy, dataset
            and the parameters that the grid varies, except seeds.
        rank_by: metric of ranking and verdicts. auto: ``clear/challenge_score`` where it is
            defined.

    Returns:
        The outcome of each run, and the comparison as ``compared``.

    Raises:
        ConfigError: a run of the grid cannot be trained.
        TrackingError: the store cannot be reached, or another process works on the same sweep.
        KeyboardInterrupt: Ctrl-C was pressed; active runs were scored. Another signal that stops
            the sweep raises SystemExit.
    """
    arguments = dict(locals())
    from clear_mlflow.api.sweep_runs import run_sweep

    result, signals = run_sweep(**arguments)
    signals.raise_received()
    return result


@dataclass
class SweepRun:
    """One planned run of a sweep: a row of its table."""

    planned: PlannedRun = field(repr=False)
    state: str = NOT_DONE
    run_id: str | None = None
    error: str | None = None
    seconds: float | None = None  # from the start of the last training to its end
    num_tries: int = 0  # trainings that this sweep started
    note: str | None = None  # whether the last training resumes, or why it does not
    started_at: float = field(default=0.0, repr=False)  # monotonic time
    # Number of resumes in the store before this sweep resumed the run; None if it did not.
    resumes_before: str | None = field(default=None, repr=False)
    # Attempts that cannot be resumed: run id to reason.
    refusals: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Name of the MLflow run: strategy, dataset, seed and the other varied parameters."""
        return self.planned.name

    def to_dict(self) -> dict[str, Any]:
        """Return id, name, state, error, parameters and config hash, for JSON."""
        return {
            "run_id": self.run_id,
            "name": self.planned.name,
            "state": self.state,
            "error": self.error,
            "parameters": dict(self.planned.asked),
            "fingerprint": self.planned.fingerprint,
        }


@dataclass(frozen=True, repr=False)
class SweepResult:
    """Outcome of a sweep; a notebook shows the comparison, and ``print`` its tables.

    ``clear_mlflow.runs(EXPERIMENT)`` returns the runs as objects.
    """

    run_id: str  # of the parent run
    runs: tuple[SweepRun, ...]
    comparison: ComparedRuns | None = None
    problems: tuple[str, ...] = ()  # one line each, about anything except single runs

    @property
    def counts(self) -> Counter[str]:
        """Number of runs by state."""
        return Counter(run.state for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """Whether every run is done, and all are compared."""
        return not self.problems and all(run.state in (DONE, DONE_BEFORE) for run in self.runs)

    @property
    def compared(self) -> ComparedRuns:
        """Comparison of all runs that are done. Raises ConfigError if there is none."""
        if self.comparison is None:
            problem = f"nothing was compared in {self.summary}"
            raise ConfigError("; ".join([problem, *self.problems]))
        return self.comparison

    @property
    def summary(self) -> str:
        """Number of runs by state, in one line."""
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.counts.items()))
        return f"sweep {self.run_id}: {counts or 'no runs'}"

    def __repr__(self) -> str:
        return f"SweepResult({self.summary})"

    def __str__(self) -> str:
        parts = [self.summary, *self.problems]
        return "\n\n".join(parts if self.comparison is None else [*parts, str(self.comparison)])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in (self.summary, *self.problems))
        return lines if self.comparison is None else lines + self.comparison._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome of each run, the comparison and the problems, for JSON."""
        return {
            "run_id": self.run_id,
            "runs": [run.to_dict() for run in self.runs],
            "compared": None if self.comparison is None else self.comparison.to_dict(),
            "problems": list(self.problems),
        }
