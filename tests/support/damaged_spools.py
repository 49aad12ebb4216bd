"""Ways in which a journal on local disk can be another than a training wrote."""

import json
import shutil

from clear_mlflow.core.record import ROWS_FOLDER


def damage_link(spool, secret):
    (spool / "00000099-file").mkdir()
    (spool / "00000099-file" / "notes.txt").symlink_to(secret)


def damage_folder_link(spool, secret):
    (spool / "00000099-file").symlink_to(secret.parent)


def damage_name(spool, secret):
    (spool / "00000099-file").mkdir()
    (spool / "00000099-file" / "a?b#c.json").write_text("{}")


def damage_two(spool, secret):
    (spool / "00000099-file").mkdir()
    (spool / "00000099-file" / "one.txt").write_text("1")
    (spool / "00000099-file" / "two.txt").write_text("2")


def damage_row(spool, secret):
    folder = spool / "00000000-file" / ROWS_FOLDER
    folder.mkdir(parents=True)
    (folder / "row_001.json").write_text("{}")


def damage_contradiction(spool, secret):
    (file,) = spool.glob("*/accuracy_matrix/rows/row_002.json")
    row = json.loads(file.read_text())
    folder = spool / "00000000-file" / ROWS_FOLDER
    folder.mkdir(parents=True)
    row |= {"row": 1, "trained_through": "1"}
    (folder / "row_001.json").write_text(json.dumps(row))


def damage_metrics(spool, secret):
    (spool / "00000000-metrics").mkdir()
    (spool / "00000000-metrics" / "metrics.json").write_text('[["a", "b"]]')


def damage_origin(spool, secret):
    (spool / "spool.json").write_text('{"format": 1, "run_id": "../../x", "tracking_uri": "y"}')


def damage_format(spool, secret):
    (spool / "spool.json").write_text('{"format": 99}')


def damage_end(spool, secret):
    (spool / "end.json").write_text("[" * 100_000)


def damage_renamed(spool, secret):
    (file,) = spool.glob("*/accuracy_matrix/rows/row_002.json")
    folder = spool / "00000000-file" / ROWS_FOLDER
    folder.mkdir(parents=True)
    shutil.copy(file, folder / "row_009.json")


def damage_twice(spool, secret):
    (file,) = spool.glob("*/accuracy_matrix/rows/row_002.json")
    row = json.loads(file.read_text())
    folder = spool / "00000099-file" / ROWS_FOLDER
    folder.mkdir(parents=True)
    other = [count - 1 for count in row["correct"]]
    (folder / "row_002.json").write_text(json.dumps(row | {"correct": other}))


# Each takes the journal, which holds a row 2, and a file of this machine that must stay unread.
DAMAGES = {name: value for name, value in globals().items() if name.startswith("damage_")}
