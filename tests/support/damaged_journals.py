"""Ways to damage a run folder on local disk."""

import json
import shutil

from clear_mlflow.core.record import ROWS_FOLDER


def _row(journal, number):
    return journal / "artifacts" / ROWS_FOLDER / f"row_{number:03}.json"


def _contradict(journal):
    row = json.loads(_row(journal, 2).read_text())
    _row(journal, 1).write_text(json.dumps({**row, "row": 1, "trained_through": "1"}))


# Each takes the journal, which contains a row 2.
DAMAGES = {
    "row": lambda journal: _row(journal, 1).write_text("{}"),
    "contradiction": _contradict,
    "metrics": lambda journal: (journal / "00000000-metrics.json").write_text('[["a", "b"]]'),
    "tags": lambda journal: (journal / "00000000-tags.json").write_text('{"mlflow.user": "x"}'),
    "origin": lambda journal: (journal / "run.json").write_text(
        '{"format": "2.0", "run_id": "../../x", "tracking_uri": "y"}'
    ),
    "format": lambda journal: (journal / "run.json").write_text('{"format": 99}'),
    "end": lambda journal: (journal / "00000099-outcome.json").write_text("[" * 100_000),
    "renamed": lambda journal: shutil.copy(_row(journal, 2), _row(journal, 9)),
}
