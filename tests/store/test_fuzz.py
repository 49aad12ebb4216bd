"""Tens of thousands of damaged and made-up files: each is read as it says, or named in one line.

A case is a good file with a few changes, drawn from a seed that a failure tells. Hypothesis draws
the seeds and repeats those that failed; what is asserted of a case is the same everywhere: no other
exception than a ClearError of one line, and whatever is accepted says what the file says by a
reader of ours that knows nothing of the program's.
"""

import copy
import csv
import json
import math
import os
import pickle
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import result_files as files
import torch
from comparisons import counts, subject
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric
from rich.console import Console
from safetensors.torch import save
from stored_runs import row_texts
from strategy_runs import feature_stream, on_features, trained

from clear_mlflow.comparison import arrange, compare
from clear_mlflow.comparison.note import comparison_note
from clear_mlflow.comparison.page import comparison_page
from clear_mlflow.comparison.terminal_summary import comparison_text
from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.core.record import assemble, row_index
from clear_mlflow.core.text import one_line
from clear_mlflow.data.cached_arrays import CachedArrays, UnusableFileError, new_array
from clear_mlflow.data.features.torch_files import load_torch_file
from clear_mlflow.importers import FORMATS, Source, read_runs
from clear_mlflow.importers._literal_pickle import read_literals
from clear_mlflow.journal.journal import End, Journal, read_origin
from clear_mlflow.learning.checkpoint import read_state
from clear_mlflow.learning.models import build_model
from clear_mlflow.learning.parameters.config import TrainConfig, parameter_defaults, parse_parameter
from clear_mlflow.learning.parameters.logged import read_config_file
from clear_mlflow.scoring.plan import _read_versions
from clear_mlflow.store import heartbeat as liveness
from clear_mlflow.store import names
from clear_mlflow.store.matrix_tag import matrix_tag, read_matrix_tag
from clear_mlflow.store.rows import parse_rows
from clear_mlflow.store.states import Manifest

# Cases in one example: drawing a seed costs more than most cases do.
BATCH = 50
TOKENS = [
    *(b"null", b"true", b"-1", b"0", b"1.0", b"0.5", b"1e999", b"NaN", b"Infinity", b"-0"),
    *(b'""', b'"x"', b"{}", b"[]", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n"),
    *(b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\xe2\x80\xae", b"\x1b[31m", b"9" * 5000),
    *(b"18446744073709551616", b"<script>", b"../", b"%s", b"=1+1", b"\xef\xbb\xbf", b"[" * 2000),
]
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 10**6, 2**53, 2**53 + 1, 2**64, 10**400, 0.5, 1.0, -0.0),
    *(1e308, "", "1", "x", "\x1b[31m", "\u202e", "a\nb", "x" * 1000, "\ud800", "=1", "../../x"),
    *([], {}, [1], [None], [[]], {"a": 1}, [0.5, 0.25], ["1", "2"], ["1", "1"], {"1": {"2": 3}}),
]


# How many times as many examples as CI tries: .ci/nightly tries more.
_TIMES = int(os.environ.get("CLEAR_MLFLOW_FUZZ_TIMES", "1"))


def seeds(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on so many seeds, each for a batch of cases."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        return settings(max_examples=_TIMES * examples, deadline=None)(
            given(seed=st.integers(0, 2**32 - 1))(test)
        )

    return decorate


def draws(seed: int, number: int = BATCH):
    """Sources of chance for the cases of a batch."""
    return (random.Random(f"{seed} {case}") for case in range(number))


def read_or_refused(read: Callable[[], object]) -> Any:
    """What is read; None where it is refused, in one line that names what is wrong."""
    try:
        return read()
    except ClearError as error:
        message = str(error)
    assert "\n" not in message
    assert len(one_line(message)) > 8
    return None


def mangled(content: bytes, draw: random.Random) -> bytes:
    """A file with bytes changed, put in, taken out, doubled, or cut off."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at, length = draw.randint(0, len(changed)), draw.choice((0, 1, 1, 2, 8, 40))
        kind = draw.randrange(5)
        if kind == 0 and changed:
            changed[at % len(changed)] = draw.randrange(256)
        elif kind == 1:
            changed[at : at + length] = draw.choice(TOKENS)
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = changed[at : at + length]
        elif draw.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def altered(value: object, draw: random.Random, odds: float = 0.1) -> Any:
    """A document with other values, of other kinds, in some of its places."""
    if draw.random() < odds:
        return copy.deepcopy(draw.choice(VALUES))
    if isinstance(value, dict):
        found = {key: altered(part, draw, odds) for key, part in value.items()}
        if found and draw.random() < odds:
            del found[draw.choice(list(found))]
        if draw.random() < odds / 2:
            found[draw.choice(["x", "accuracy", "schema", "\x1b", "row", ""])] = draw.choice(VALUES)
        return found
    if isinstance(value, list):
        parts = [altered(part, draw, odds) for part in value]
        if parts and draw.random() < odds:
            parts.append(draw.choice(parts))
        if parts and draw.random() < odds:
            parts.pop(draw.randrange(len(parts)))
        return parts
    if isinstance(value, int) and not isinstance(value, bool) and draw.random() < odds:
        return value + draw.choice((-1, 1, 1000))
    return value


def changed_json(document: object, draw: random.Random) -> bytes:
    """A JSON file that was changed in its values, in its bytes, or in both."""
    odds = draw.choice((0.0, 0.02, 0.05, 0.2))
    text = json.dumps(altered(document, draw, odds), indent=draw.choice((None, 1)))
    content = text.encode("utf-8", "surrogatepass")
    return mangled(content, draw) if odds == 0.0 or draw.random() < 0.3 else content


# --- rows, and the matrices they make


@seeds(80)
def test_rows(seed):
    """A row's file (4,000 cases): its counts are the file's, and it is written back the same."""
    texts = list(row_texts().items())
    for draw in draws(seed):
        name, text = draw.choice(texts)
        content = changed_json(json.loads(text), draw)
        found = read_or_refused(lambda n=name, c=content: parse_rows({n: c}))
        if found is None:
            continue
        record = found[name]
        said = json.loads(content)
        assert record.row.row == said["row"]
        assert list(record.row.buckets) == said["buckets"]
        assert record.protocol == said["protocol"]
        assert record.seed == said["seed"]
        if "correct" in said:
            assert list(record.row.correct) == said["correct"]
            assert list(record.row.num_instances) == said["num_instances"]
        else:
            told = [math.nan if value is None else value for value in said["accuracy"]]
            assert np.array_equal(record.row.cells, told, equal_nan=True)
        again = parse_rows({name: record.to_json().encode()})[name]
        assert again == record


@seeds(60)
def test_sets_of_rows(seed):
    """Rows of a run (3,000 cases): every cell of an accepted matrix is one row's, or is empty."""
    good = {name: json.loads(text) for name, text in row_texts().items()}
    for draw in draws(seed):
        chosen = {name: good[name] for name in draw.sample(list(good), draw.randint(1, len(good)))}
        changed = {
            name: json.dumps(altered(document, draw, draw.choice((0, 0, 0.02)))).encode(
                "utf-8", "surrogatepass"
            )
            for name, document in chosen.items()
        }
        if draw.random() < 0.2:
            changed[draw.choice(["row_001.json", "row_009.json"])] = draw.choice(
                [*changed.values()]
            )
        record = read_or_refused(lambda c=changed: assemble(parse_rows(c)))
        if record is None:
            continue
        expected = np.full((max(map(row_index, changed)), len(record.matrix.buckets)), np.nan)
        initial = None
        for name, content in changed.items():
            said = json.loads(content)
            cells = np.array(said["correct"]) / np.array(said["num_instances"])
            if row_index(name) == 0:
                initial = cells
            else:
                expected[row_index(name) - 1] = cells
        assert np.array_equal(record.matrix.values, expected, equal_nan=True)
        assert (record.matrix.initial is None) == (initial is None)
        assert initial is None or np.array_equal(record.matrix.initial, initial)


# --- predictions


def evaluation_set() -> EvaluationSet:
    count = 24
    return EvaluationSet(
        buckets=("1", "2", "3"),
        class_names=("bus", "camera"),
        bucket=np.repeat(np.arange(3), 8).astype(np.uint16),
        label=(np.arange(count) % 2).astype(np.uint16),
        content=np.arange(count * 16, dtype=np.uint8).reshape(count, 16),
        names=tuple(f"image{i}" for i in range(count)),
    )


def literal_tensors(content: bytes) -> tuple[dict, dict]:
    """A safetensors file by its specification: an array for each name, and the metadata."""
    kinds = {"U8": np.uint8, "U16": np.uint16, "F16": np.float16, "I64": np.int64}
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    body = content[8 + length :]
    arrays = {}
    for name, told in header.items():
        begin, end = told["data_offsets"]
        arrays[name] = np.frombuffer(body[begin:end], kinds[told["dtype"]]).reshape(told["shape"])
    return arrays, metadata


def changed_tensors(content: bytes, draw: random.Random) -> bytes:
    """A safetensors file with another header, other numbers, or other bytes anywhere."""
    if draw.random() < 0.4:
        return mangled(content, draw)
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    if draw.random() < 0.7:
        header = altered(header, draw, draw.choice((0.02, 0.1)))
    for _ in range(draw.choice((0, 0, 1, 3))):
        body[draw.randrange(len(body))] = draw.randrange(256)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + bytes(body)


@seeds(20)
def test_predictions(seed):
    """Stored answers (1,000 cases): what is accepted is, number by number, what the file holds."""
    images = evaluation_set()
    rng = np.random.default_rng(0)
    likely = rng.dirichlet([1, 1], len(images)).astype(np.float16)
    labels = likely.argmax(1).astype(np.uint8)
    plain = RowPredictions(row=2, labels=labels, evaluation_set=images.digest)
    whole = RowPredictions(row=2, labels=labels, probabilities=likely, evaluation_set=images.digest)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, predictions_file_name(2))
        for draw in draws(seed):
            content = changed_tensors(draw.choice((plain, whole)).to_bytes(), draw)
            path.write_bytes(content)
            found = read_or_refused(lambda: RowPredictions.load(path))
            if found is None:
                continue
            arrays, metadata = literal_tensors(content)
            assert np.array_equal(found.labels, arrays["labels"])
            assert (found.probabilities is None) == ("probabilities" not in arrays)
            assert metadata["row"] == "2"
            checked = read_or_refused(lambda f=found: (f.check(images), f.correct(images)))
            if checked is not None:
                right = arrays["labels"] == images.label
                assert list(checked[1]) == [int(right[images.bucket == j].sum()) for j in range(3)]


@seeds(20)
def test_evaluation_sets(seed):
    """Which images were tested on (1,000 cases): accepted only as it was, to the last byte told."""
    images = evaluation_set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, EVALUATION_SET_FILE)
        for draw in draws(seed):
            path.write_bytes(changed_tensors(images.to_bytes(), draw))
            found = read_or_refused(lambda: EvaluationSet.load(path))
            # The names of files tell people which image it is, and are not in the digest.
            assert found is None or found.digest == images.digest


# --- result files of other programs


ROWS = [[0.9, 0.4, 0.3], [0.8, 0.85, 0.5], [0.7, 0.8, 0.9]]
SAMPLES: list[tuple[str, bytes]] = [
    ("a.csv", files.savetxt(ROWS, delimiter=",").encode()),
    ("a.txt", files.savetxt(ROWS).encode()),
    ("a.npy", files.npy(np.array(ROWS))),
    ("a.npz", files.npz(matrix=np.array(ROWS))),
    ("a.json", json.dumps({"values": ROWS, "buckets": ["a", "b", "c"], "seed": 3}).encode()),
    ("metric_log.txt", files.avalanche_text(ROWS).encode()),
    ("eval_results.csv", files.avalanche_csv(ROWS).encode()),
    ("e.json", files.avalanche_results(ROWS).encode()),
    ("metrics_summary_update_3.csv", files.renate_csv(ROWS).encode()),
    ("r.json", files.renate_results(ROWS, ROWS[0]).encode()),
    ("logs.pyd", files.mammoth_line(ROWS).encode()),
    ("acc.pkl", files.pickled(files.van_de_ven(ROWS))),
    ("ppl.jsonl", files.tic_lm(ROWS, ["201305", "201403", "201501"]).encode()),
    ("tic_wiki.json", files.tic_lm_downstream().encode()),
    ("ocl.json", files.capymoa_json(ROWS).encode()),
    ("ocl.npz", files.npz(**files.capymoa(ROWS))),
    ("wild.log", files.wild_time_stream(ROWS, 1).encode()),
    ("fix.log", files.wild_time_fix({2016: 0.5, 2017: 0.25}).encode()),
]


@seeds(160)
def test_import_formats(seed):
    """Results of other programs (8,000 cases): fractions or nothing, by the digits in the file."""
    for draw in draws(seed):
        name, content = draw.choice(SAMPLES)
        is_json = name.endswith(".json")
        if is_json and draw.random() < 0.5:
            content = changed_json(json.loads(content), draw)
        else:
            content = mangled(content, draw)
        kind = draw.choice(("auto", "auto", *FORMATS))
        runs = read_or_refused(lambda n=name, c=content, k=kind: read_runs(Source(n, c), kind=k))
        for run in runs or ():
            cells = run.matrix.values[~np.isnan(run.matrix.values)]
            fractions = bool(((cells >= 0) & (cells <= 1)).all())
            assert fractions or not run.matrix.score.is_accuracy
            assert run.matrix.num_buckets <= 1000
            assert all(key.isprintable() for key in run.matrix.buckets)
        # The two plain formats, by readers of the standard library.
        if runs and name == "a.csv" and kind in ("auto", "text") and b"#" not in content:
            plain = content.decode("utf-8").replace("\x00", "")
            numbers = [cell for line in csv.reader(plain.splitlines()) for cell in line]
            floats = {as_float(cell.strip()) for cell in numbers}
            assert {*cells_of(runs[0])} <= floats
        if runs and name == "a.json" and kind == "json":
            said = json.loads(content.decode("utf-8-sig"))
            rows = said if isinstance(said, list) else None
            for key in ("matrix", "values", "accuracy", "accuracies"):
                rows = said[key] if rows is None and key in said else rows
            told = {float(cell) for row in rows for cell in row if cell is not None}
            assert {*cells_of(runs[0])} <= told


def cells_of(run) -> list[float]:
    return run.matrix.values[~np.isnan(run.matrix.values)].tolist()


def as_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@seeds(60)
def test_pickles_are_taken_apart_and_never_run(seed):
    """Opcodes of pickles (3,000 cases): plain values come out, or a line; nothing is called."""
    values = [files.van_de_ven(ROWS), {"a": [1, 2.5, "x", None, True]}, [[1], [2]], {}]
    with tempfile.TemporaryDirectory() as folder:
        owned = Path(folder, "owned")

        class Owned:
            def __reduce__(self):
                return os.mkdir, (str(owned),)

        values.append({"a": Owned()})
        for draw in draws(seed):
            content = pickle.dumps(draw.choice(values), protocol=draw.choice((2, 3, 4, 5)))
            content = mangled(content, draw)
            found = read_or_refused(lambda c=content: read_literals(c))
            assert found is None or isinstance(found, (dict, list, str, int, float, bool))
            assert not owned.exists()


# --- what trainings start and go on from


@seeds(20)
def test_configurations(seed):
    """config.json (1,000 cases): every parameter is in force as it stands there, or is refused."""
    good = TrainConfig.resolve({"strategy": "replay", "seed": "3"}).as_text()
    good |= {"data_root": "auto"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        for draw in draws(seed):
            document = dict(good)
            for name in draw.sample(list(good), draw.choice((0, 1, 2))):
                document[name] = draw.choice(
                    [
                        *(
                            "auto",
                            "none",
                            "0",
                            "1",
                            "-1",
                            "0.5",
                            "1e999",
                            "nan",
                            "٣",
                            "1_0",
                            " 1",
                            "",
                        ),
                        *(
                            "on",
                            "off",
                            "\x1b[31m",
                            "x" * 5000,
                            "a=1",
                            "os:system",
                            "../x",
                            "9" * 5000,
                        ),
                    ]
                )
            path.write_bytes(changed_json(document, draw))
            config = read_or_refused(lambda: TrainConfig.resolve(read_config_file(path)))
            if config is None:
                continue
            said = json.loads(path.read_bytes())
            for name in parameter_defaults():
                text = said.get(name, parameter_defaults()[name])
                assert text == "auto" or parse_parameter(name, text) == getattr(config, name), name
            assert TrainConfig.resolve(config.as_text()) == config


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return build_model("small_cnn", num_classes=10, image_size=8).state_dict()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights(tmp_path, weights, suffix):
    """Files of weights (100 cases each): a model of finite numbers, or a line; no code is run."""
    path = tmp_path / f"weights{suffix}"
    torch.save(weights, path) if suffix == ".pth" else path.write_bytes(save(dict(weights)))
    good = path.read_bytes()
    options = {"num_classes": 10, "image_size": 8, "weights": str(path)}
    for draw in draws(0, 100 * _TIMES):
        at = draw.choice((slice(0, 4000), slice(-4000, None), slice(None)))
        content = bytearray(good)
        content[at] = mangled(bytes(content[at]), draw)
        path.write_bytes(bytes(content))
        model = read_or_refused(lambda: build_model("small_cnn", **options))
        assert model is None or all(
            bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values()
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.to_sparse(),
        lambda t: t.to(torch.complex64),
        lambda t: torch.full_like(t, math.nan),
        lambda t: t.to("meta"),
        lambda t: t.bool(),
        lambda t: torch.quantize_per_tensor(t, 1.0, 0, torch.qint8),
    ],
    ids=["sparse", "complex", "not a number", "meta", "bool", "quantised"],
)
def test_curious_tensors_are_no_weights(tmp_path, weights, change):
    """Tensors that torch reads, and that a model would take, fall over, or silently change."""
    path = tmp_path / "weights.pth"
    torch.save({**weights, "0.weight": change(weights["0.weight"])}, path)
    refusal = r"as 0\.weight, or numbers that are not finite|'0\.weight' is no plain tensor"
    with pytest.raises(ConfigError, match=refusal):
        build_model("small_cnn", num_classes=10, image_size=8, weights=str(path))


def test_names_of_weights_are_texts(tmp_path, weights):
    """Keys of two kinds cannot be sorted, and one with an escape sequence cannot be shown."""
    path = tmp_path / "weights.pth"
    for extra in ({1: torch.zeros(1), "z": torch.zeros(1)}, {"\x1b[31m": torch.zeros(1)}):
        torch.save({**weights, **extra}, path)
        with pytest.raises(ConfigError) as caught:
            build_model("small_cnn", num_classes=10, image_size=8, weights=str(path))
        assert str(caught.value).isprintable()


@pytest.mark.filterwarnings("ignore")
def test_stored_features(tmp_path):
    """Feature files (400 cases): torch's finite numbers or a line; our own as written or not."""
    path = tmp_path / "features.pth"
    torch.save({"feature": torch.rand(4, 3), "label": [0, 1, 0, 1]}, path)
    good = path.read_bytes()
    array = np.random.default_rng(0).random((4, 3)).astype(np.float32)
    other = tmp_path / "000.npy"
    with new_array(other, {"of": "made up"}) as file:
        np.save(file, array)
    whole = other.read_bytes()
    for draw in draws(0, 200 * _TIMES):
        path.write_bytes(mangled(good, draw))
        read_or_refused(lambda: load_torch_file(path))
        other.write_bytes(changed := mangled(whole, draw))
        try:
            found = CachedArrays().open(other, {})
        except UnusableFileError:
            assert changed != whole
        else:
            assert changed == whole
            assert np.array_equal(found[0], array)


# --- what the program itself leaves behind


def test_training_states(tmp_path):
    """A training's state (100 cases): gone on from, or refused; never a crash of the process."""
    parameters = on_features(strategy="replay", epochs="1")
    _, states, _ = trained(feature_stream(), parameters)
    path = tmp_path / "state.safetensors"
    for draw in draws(0, 100 * _TIMES):
        path.write_bytes(changed_state(states[1], draw))
        read_or_refused(lambda: trained(feature_stream(), parameters, read_state(path)))


def changed_state(content: bytes, draw: random.Random) -> bytes:
    """A state whose description, numbers or bytes were changed."""
    if draw.random() < 0.3:
        return mangled(content, draw)
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    described = json.loads(header["__metadata__"]["clear_mlflow"])
    described = altered(described, draw, draw.choice((0.002, 0.01, 0.05)))
    header["__metadata__"]["clear_mlflow"] = json.dumps(described)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


@seeds(40)
def test_manifests_of_states(seed):
    """What tells a state's size and hash (2,000 cases): read as it stands, or refused."""
    good = Manifest(
        row=2,
        written_at="2026-01-31T12:00:00.123Z",
        size=10,
        sha256="ab" * 32,
        config={"seed": "1"},
        data={"digest": "x"},
        package_version="1",
        torch_version="2",
    )
    for draw in draws(seed):
        text = changed_json(json.loads(good.to_json()), draw).decode("utf-8", "replace")
        found = read_or_refused(lambda t=text: Manifest.from_json(t, source="after_002.json"))
        if found is not None:
            assert json.loads(found.to_json()) == json.loads(text)


@pytest.fixture(scope="module")
def journal(tmp_path_factory) -> Path:
    """A journal that a training left."""
    root = tmp_path_factory.mktemp("journal") / "journal"
    journal = Journal.create(root, "ab" * 16, "sqlite:////x.db")
    journal.append("accuracy_matrix/rows/row_001.json", b"one")
    journal.append_metrics([Metric("renate/average_accuracy", 0.5, 1, 1)])
    journal.append("accuracy_matrix/rows/row_002.json", b"two")
    journal.write_end(End("FAILED", "because"))
    journal.close()
    return root


@seeds(4)
def test_spools(journal, seed):
    """Journals on the local disk (200 cases): sent in order as they lie there, or refused."""
    for draw in draws(seed):
        with tempfile.TemporaryDirectory() as folder:
            root, outside = Path(folder, "journal"), Path(folder, "outside.txt")
            outside.write_text("secret")
            shutil.copytree(journal, root)
            spoil(root, outside, draw)

            def everything(at: Path = root) -> list[tuple[str | None, bytes]]:
                read_origin(at)
                taken = Journal.take(at, read_origin(at).run_id)
                try:
                    taken.end()
                    found = []
                    for entry in taken.entries():
                        if entry.artifact is None:
                            entry.metrics()
                        found.append((entry.artifact, entry.file.read_bytes()))
                    return found
                finally:
                    taken.close()

            for artifact, content in read_or_refused(everything) or ():
                assert content != b"secret"
                assert artifact is None or not {"..", "", "."} & set(artifact.split("/"))


def spoil(root: Path, outside: Path, draw: random.Random) -> None:
    """Do what a full disk, an editor or somebody unfriendly does to a folder."""
    for _ in range(draw.choice((1, 1, 2))):
        there = [path for path in sorted(root.rglob("*")) if path.is_file()]
        path = draw.choice(there) if there else root / "x"
        kind = draw.randrange(6)
        if kind == 0:
            path.write_bytes(mangled(path.read_bytes() if path.is_file() else b"", draw))
        elif kind == 1:
            path.unlink(missing_ok=True)
        elif kind == 2:
            path.unlink(missing_ok=True)
            path.symlink_to(outside)
        elif kind == 3:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        elif kind == 4:
            path.with_name(draw.choice(["x", "\x1b[31m", "a b", "…", "-x"])).write_bytes(b"x")
        else:
            made = root / draw.choice(["00000003-file", "00000004-metrics", "9" * 30 + "-file"])
            made.mkdir(exist_ok=True)
            (made / draw.choice(["a", "metrics.json", "..x", "é"])).write_bytes(
                draw.choice(
                    (b"[]", b"[[1]]", b'[["a", 1, 1, 1]]', b"\xff", b'[["a", 1e999, 1, 1]]')
                )
            )


@seeds(20)
def test_tags(seed):
    """Tags that hold JSON (3,000 reads): what is not ours counts as not there."""
    texts = row_texts()
    contents = {name: text.encode() for name, text in texts.items()}
    records = parse_rows(contents)
    tag = matrix_tag("run", contents, records)
    beat = json.loads(liveness.heartbeat())
    for draw in draws(seed):
        assert read_matrix_tag("run", tag).records == records
        text = changed_json(json.loads(tag), draw).decode("utf-8", "replace")
        found = read_matrix_tag("run", text)
        assert found is None or found.records == records
        text = changed_json({"renate/average_accuracy": 1}, draw).decode("utf-8", "replace")
        assert all(
            isinstance(version, int)
            for version in _read_versions({names.VERSIONS_TAG: text}).values()
        )
        text = changed_json(beat, draw).decode("utf-8", "replace")
        run = SimpleNamespace(
            info=SimpleNamespace(status="RUNNING"),
            data=SimpleNamespace(tags={names.PROCESS_TAG: text}),
        )
        assert liveness.seems_abandoned(run) in (True, False)


# --- comparisons


@seeds(20)
def test_comparisons(seed):
    """Runs of any lengths, settings and labels: a page, a note and a table, with their means."""
    draw = random.Random(seed)
    runs = []
    for number in range(draw.randint(1, 8)):
        buckets = draw.choice((1, 2, 3, 4, 4, 4))
        rows = counts(draw.choice((100, 150, 180)), draw.randrange(4), buckets)
        name = draw.choice(["a", "b", "<b>\x1b", "x" * 300, ""])
        runs.append(
            subject(
                name,
                rows[: draw.randint(1, len(rows))],
                run_id=f"{number:032x}",
                seed=draw.choice((None, 0, 1, 2, 3)),
                protocol=draw.choice(("iid", "iid", "streaming")),
                digest="sha256:" + draw.choice(("ab", "cd")) * 32,
            )
        )
    by = draw.choice((["strategy"], ["strategy", "dataset"], []))
    found = read_or_refused(lambda: compare(arrange(runs, by)))
    assert found is not None
    page = comparison_page(found, title="t", footer="f")
    assert page.endswith("</html>\n")
    assert len(comparison_note(found, page="p").encode()) < 8_000
    out = Console(width=100, quiet=True)
    for part in comparison_text(found):
        out.print(part)
    for group in found.groups:
        for metric, summary in group.metrics.items():
            values = [m.summary[metric] for m in group.counted if metric in m.summary]
            assert summary.mean == pytest.approx(math.fsum(values) / len(values), abs=1e-12)
