"""Coverage-guided fuzzing of what reads files from elsewhere: ``python tools/fuzz.py PARSER``.

The fuzzer of tests/store/test_fuzz.py changes good files blindly, the same way in every run. This
one watches which lines of the parser a case reaches, and goes on from those that reach new ones;
half of its changes are to a file's values, half to its bytes. It stops at the first case that ends
in anything but what is read or a ClearError of one line, and leaves that case in the working
folder. Whatever follows the parser's name is libFuzzer's::

    pip install -e ".[test,fuzz]"
    python tools/fuzz.py row -runs=200000
    python tools/fuzz.py import -max_total_time=60
"""

from __future__ import annotations

import json
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
with atheris.instrument_imports(include=["clear_mlflow"]):
    import numpy as np
    from anytime_courses import inside_bucket
    from result_files import npy, npz, pickled, van_de_ven
    from stored_runs import row_texts
    from test_fuzz import SAMPLES, changed_json, changed_tensors, evaluation_set

    from clear_mlflow.core.anytime.anytime_row import AnytimeRow, anytime_file_name
    from clear_mlflow.core.errors import ClearError
    from clear_mlflow.core.predictions import EvaluationSet, RowPredictions, predictions_file_name
    from clear_mlflow.core.record import RowRecord
    from clear_mlflow.core.text import one_line
    from clear_mlflow.importers import FORMATS, Source, read_runs
    from clear_mlflow.importers._literal_pickle import read_literals
    from clear_mlflow.learning.parameters.logged import read_config_file
    from clear_mlflow.store.states import Manifest
    from clear_mlflow.sweep.grid import read_grid

_ROWS = [[0.9, 0.4], [0.8, 0.85]]
_FILE_NAMES = [name for name, _ in SAMPLES]
_KINDS = ["auto", *FORMATS]


def row(content: bytes) -> None:
    """A row's file; what is accepted is written as it was read."""
    record = RowRecord.from_json(_text(content), source="row_001.json")
    written = record.to_json()
    if RowRecord.from_json(written, source="again").to_json() != written:
        raise AssertionError("a row is read otherwise than it is written")


def inside(content: bytes) -> None:
    """The file of a test inside a bucket; what is accepted is written as it was read."""
    test = AnytimeRow.from_json(_text(content), source=anytime_file_name(1, 1))
    written = test.to_json("2026-01-31T12:00:00Z")
    if AnytimeRow.from_json(written, source=anytime_file_name(1, 1)) != test:
        raise AssertionError("a test is read otherwise than it is written")


def results(content: bytes) -> None:
    """Results of another program; the first two bytes choose the file's name and the format."""
    name = _FILE_NAMES[content[0] % len(_FILE_NAMES)] if content else "a.csv"
    kind = _KINDS[content[1] % len(_KINDS)] if len(content) > 1 else "auto"
    for run in read_runs(Source(name, content[2:]), kind=kind):
        cells = run.matrix.values[~np.isnan(run.matrix.values)]
        if run.matrix.score.is_accuracy and not ((cells >= 0) & (cells <= 1)).all():
            raise AssertionError("an accuracy is no fraction")


def predictions(content: bytes) -> None:
    """A row's answers."""
    RowPredictions.load(_file(predictions_file_name(2), content))


def images(content: bytes) -> None:
    """Which images were tested on."""
    EvaluationSet.load(_file("evaluation_set.safetensors", content))


def config(content: bytes) -> None:
    """A configuration's file."""
    read_config_file(_file("config.json", content))


def grid(content: bytes) -> None:
    """A sweep's file."""
    read_grid(_file("sweep.yaml", content))


def manifest(content: bytes) -> None:
    """The manifest of a training's state."""
    Manifest.from_json(_text(content), source="after_001.json")


def literals(content: bytes) -> None:
    """A pickle of plain values."""
    read_literals(content)


PARSERS: dict[str, tuple[Callable[[bytes], None], list[bytes]]] = {
    "row": (row, [text.encode() for text in row_texts().values()]),
    "inside": (
        inside,
        [inside_bucket(1, [[3, 4]], (9, 9))[0].to_json("2026-01-31T12:00:00Z").encode()],
    ),
    "import": (
        results,
        [bytes([k, 0]) + content for k, (_, content) in enumerate(SAMPLES)]
        + [bytes([3, 0]) + npz(matrix=np.array(_ROWS)), bytes([2, 0]) + npy(np.array(_ROWS))],
    ),
    "predictions": (
        predictions,
        [
            RowPredictions(
                row=2,
                labels=np.zeros(len(evaluation_set()), np.uint8),
                evaluation_set=evaluation_set().digest,
            ).to_bytes()
        ],
    ),
    "images": (images, [evaluation_set().to_bytes()]),
    "config": (config, [b'{"strategy": "replay", "epochs": "2", "lr": "0.1", "memory": "5%"}']),
    "grid": (grid, [b"fixed: {epochs: 1}\ngrid:\n  strategy: [naive, replay]\n  seed: [0, 1]\n"]),
    "manifest": (
        manifest,
        [
            Manifest(
                row=1,
                written_at="2026-01-01T00:00:00+00:00",
                size=2,
                sha256="ab" * 32,
                config={"seed": "0"},
                data={"name": "x"},
                package_version="1",
                torch_version="1",
            )
            .to_json()
            .encode()
        ],
    ),
    "pickle": (literals, [pickled(van_de_ven(_ROWS)), pickled([[1, 2.5], {"a": 3}], 2)]),
}
_ANOTHER_KIND = (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error)
_FOLDER = tempfile.TemporaryDirectory(prefix="clear_mlflow_fuzz_")


def main() -> None:
    """Fuzz the parser that is named."""
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        raise SystemExit(f"expected one of {', '.join(PARSERS)}, and libFuzzer's options")
    read, seeds = PARSERS[sys.argv.pop(1)]
    corpus = Path(_FOLDER.name, "corpus")
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
        read(seed)  # a good file is read

    def one(content: bytes) -> None:
        try:
            read(content)
        except ClearError as error:
            message = str(error)
            if "\n" in message or len(one_line(message)) <= 8:
                raise AssertionError(f"a refusal that is not one line: {message!r}") from error

    def changed(content: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)  # noqa: S311
        if draw.random() < 0.5:
            with suppress(*_ANOTHER_KIND):
                # Whatever the file is, if it is of that kind; else its bytes are changed.
                if read in (predictions, images):
                    return changed_tensors(content, draw)[:most]
                start = 2 if read is results else 0
                document = json.loads(content[start:])
                return (content[:start] + changed_json(document, draw))[:most]
        return bytes(atheris.Mutate(content, most))

    atheris.Setup([*sys.argv, str(corpus)], one, custom_mutator=changed)
    atheris.Fuzz()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _file(name: str, content: bytes) -> Path:
    path = Path(_FOLDER.name, name)
    path.write_bytes(content)
    return path


if __name__ == "__main__":
    main()
