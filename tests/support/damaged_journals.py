"""Ways to damage a run folder on local disk."""

import json
import shutil

_ROWS = "accuracy_matrix+rows+row_"


def _row_2(journal):
    (file,) = journal.glob(f"*-{_ROWS}002.json")
    return file


def _with(journal, name, **changes):
    row = json.loads(_row_2(journal).read_text())
    (journal / name).write_text(json.dumps(row | changes))


# Each takes the journal, which contains a row 2.
DAMAGES = {
    "row": lambda journal: (journal / f"00000000-{_ROWS}001.json").write_text("{}"),
    "contradiction": lambda journal: _with(
        journal, f"00000000-{_ROWS}001.json", row=1, trained_through="1"
    ),
    "metrics": lambda journal: (journal / "00000000-metrics.json").write_text('[["a", "b"]]'),
    "tags": lambda journal: (journal / "00000000-tags.json").write_text('{"mlflow.user": "x"}'),
    "origin": lambda journal: (journal / "run.json").write_text(
        '{"format": "1.0", "run_id": "../../x", "tracking_uri": "y"}'
    ),
    "format": lambda journal: (journal / "run.json").write_text('{"format": 99}'),
    "end": lambda journal: (journal / "00000099-outcome.json").write_text("[" * 100_000),
    "renamed": lambda journal: shutil.copy(_row_2(journal), journal / f"00000000-{_ROWS}009.json"),
    "twice": lambda journal: _with(
        journal,
        f"00000099-{_ROWS}002.json",
        correct=[count - 1 for count in json.loads(_row_2(journal).read_text())["correct"]],
    ),
}
