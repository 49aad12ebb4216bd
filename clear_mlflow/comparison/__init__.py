"""Runs side by side: groups of seeds, a leaderboard, tests, pictures and a page.

Nothing here knows MLflow or torch: matrices come in, tables and texts go out.
"""

from clear_mlflow.comparison.arrangement import LEVEL, Arrangement, arrange
from clear_mlflow.comparison.build import Comparison, compare
from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.subjects import RowlessRun, Setting, Subject
from clear_mlflow.comparison.verdicts import PairTest, Verdict

__all__ = [
    "LEVEL",
    "Arrangement",
    "Comparison",
    "Group",
    "PairTest",
    "RowlessRun",
    "Setting",
    "Subject",
    "Verdict",
    "arrange",
    "compare",
]
