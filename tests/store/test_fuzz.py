"""Damaged and random files are read as they are, or rejected in one line.

Hypothesis changes values or bytes of valid files. Each test asserts that only a ClearError of one
line is raised, and that accepted content equals the result of an independent reader.
"""

import copy
import csv
import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import result_files as files
import torch
from anytime_courses import inside_bucket
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric
from safetensors.torch import save
from stored_runs import row_texts
from stored_values import build_images
from strategy_runs import feature_stream, on_features, train_with_states

from clear_mlflow.core.anytime import AnytimeRow, format_anytime_file_name
from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.core.predictions import (
    EvaluationSet,
    RowPredictions,
    format_predictions_file_name,
)
from clear_mlflow.core.text import one_line
from clear_mlflow.data.cache import UnusableFileError, read_array, write_array
from clear_mlflow.data.features.shipped import load_torch_file
from clear_mlflow.importers import FORMATS, ResultFile, parse_runs
from clear_mlflow.journal.run_folder import (
    METRICS_JSON,
    OUTCOME_JSON,
    Outcome,
    RunFolder,
    read_header,
)
from clear_mlflow.learning.checkpoint import parse_state
from clear_mlflow.learning.models import build_model
from clear_mlflow.learning.parameters.config import (
    TrainConfig,
    list_parameter_defaults,
    parse_parameter,
)
from clear_mlflow.learning.parameters.logged import read_config_file
from clear_mlflow.store.rows import parse_rows
from clear_mlflow.store.states import Manifest

TOKENS = [
    *(b"null", b"true", b"-1", b"0", b"1.0", b"0.5", b"1e999", b"NaN", b"Infinity", b"-0"),
    *(b'""', b'"x"', b"{}", b"[]", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b""),
    *(b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\xe2\x80\xae", b"\x1b[31m", b"9" * 5000),
    *(b"18446744073709551616", b"<script>", b"../", b"%s", b"=1+1", b"\xef\xbb\xbf", b"[" * 2000),
]
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 10**6, 2**53, 2**53 + 1, 2**64, 10**400, 0.5, 1.0, -0.0),
    *(1e308, "", "1", "x", "\x1b[31m", "\u202e", "a\nb", "x" * 1000, "\ud800", "=1", "../../x"),
    *([], {}, [1], [None], [[]], {"a": 1}, [0.5, 0.25], ["1", "2"], ["1", "1"], {"1": {"2": 3}}),
]
ANY = st.data()


def fuzz(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test so many times. .ci/nightly runs it more often."""
    times = int(os.environ.get("CLEAR_MLFLOW_FUZZ_TIMES", "1"))
    return settings(
        max_examples=times * examples, deadline=None, suppress_health_check=list(HealthCheck)
    )


def read_or_refused(read: Callable[[], object]) -> Any:
    """Return the read value, or None after a one-line error that names the file."""
    try:
        return read()
    except ClearError as error:
        message = str(error)
    assert "\n" not in message
    assert len(one_line(message)) > 8
    return None


@st.composite
def mangle_bytes(draw, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 5)))):
        at = draw(st.integers(0, len(changed)))
        end = at + draw(st.sampled_from((0, 1, 1, 2, 8, 40, len(content))))
        changed[at:end] = draw(st.sampled_from(TOKENS) | st.binary(max_size=2))
    return bytes(changed)


def alter_document(draw, value: Any) -> Any:
    if isinstance(value, (dict, list)) and value and draw(st.integers(0, 9)):
        offset = draw(
            st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value)))
        )
        if draw(st.integers(0, 5)) == 0:
            del value[offset]
        else:
            value[offset] = alter_document(draw, value[offset])
        return value
    if isinstance(value, int) and draw(st.booleans()):
        return value + draw(st.sampled_from((-1, 1, 1000)))
    return copy.deepcopy(draw(st.sampled_from(VALUES)))


@st.composite
def changed_json(draw, document: object, times: tuple[int, ...] = (0, 1, 1, 2, 4)) -> bytes:
    document, number = copy.deepcopy(document), draw(st.sampled_from(times))
    for _ in range(number):
        document = alter_document(draw, document)
    if isinstance(document, dict) and draw(st.integers(0, 9)) == 0:
        document["x"] = draw(st.sampled_from(VALUES))
    content = json.dumps(document).encode("utf-8", "surrogatepass")
    return content if number and draw(st.integers(0, 2)) else draw(mangle_bytes(content))


@pytest.mark.slow
@fuzz(400)
@given(ANY)
def test_rows(data):
    name, text = data.draw(st.sampled_from(sorted(row_texts().items())))
    content = data.draw(changed_json(json.loads(text)))
    records = read_or_refused(lambda: parse_rows({name: content}))
    if records is None:
        return
    record, parsed = records[name], json.loads(content)
    assert (record.row.row, list(record.row.buckets)) == (parsed["row"], parsed["buckets"])
    assert (record.dataset.protocol, record.seed) == (parsed["protocol"], parsed["seed"])
    if parsed.get("correct") is not None:
        assert list(record.row.correct) == parsed["correct"]
        assert list(record.row.num_instances) == parsed["num_instances"]
    else:
        accuracies = [math.nan if value is None else value for value in parsed["accuracy"]]
        assert np.array_equal(record.row.cells, accuracies, equal_nan=True)
    assert parse_rows({name: record.to_json()})[name] == record


@fuzz(200)
@given(ANY)
def test_tests_inside_a_bucket(data):
    (good,) = inside_bucket(2, [[1, 2, 3]], (9, 9, 9))
    name = format_anytime_file_name(2, 1)
    content = data.draw(changed_json(json.loads(good.to_json("2026-01-31T12:00:00Z"))))
    row = read_or_refused(lambda: AnytimeRow.from_json(content, source=name))
    if row is not None:
        parsed = json.loads(content)
        stored = json.loads(row.to_json(""))
        del stored["written_at"]  # not read
        assert stored.items() <= parsed.items()


def evaluation_set() -> EvaluationSet:
    count = 24
    content = np.arange(count * 16, dtype=np.uint8).reshape(count, 16)
    return build_images((8, 8, 8), np.arange(count) % 2, ("bus", "camera"), content)


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@st.composite
def changed_tensors(draw, content: bytes) -> bytes:
    if draw(st.integers(0, 2)) == 0:
        return draw(mangle_bytes(content))
    header, body = split_safetensors(content)
    text = (
        draw(changed_json(header, (0, 1, 1, 2)))
        if draw(st.booleans())
        else json.dumps(header).encode()
    )
    body = draw(mangle_bytes(body)) if draw(st.booleans()) else body
    return struct.pack("<Q", len(text)) + text + body


@fuzz(200)
@given(ANY)
def test_predictions(tmp_path, data):
    images = evaluation_set()
    likely = np.random.default_rng(0).dirichlet([1, 1], len(images)).astype(np.float16)
    original = RowPredictions(
        row=2,
        labels=likely.argmax(1).astype(np.uint8),
        probabilities=data.draw(st.sampled_from([None, likely])),
        evaluation_set=images.digest,
    )
    path = tmp_path / format_predictions_file_name(2)
    path.write_bytes(content := data.draw(changed_tensors(original.to_bytes())))
    loaded = read_or_refused(lambda: RowPredictions.load(path))
    if loaded is None:
        return
    header, body = split_safetensors(content)
    first_byte, end = header["labels"]["data_offsets"]
    labels = np.frombuffer(body[first_byte:end], loaded.labels.dtype)
    assert np.array_equal(loaded.labels, labels)
    assert (loaded.probabilities is None) == ("probabilities" not in header)
    assert header["__metadata__"]["row"] == "2"
    checked = read_or_refused(lambda: (loaded.check(images), loaded.count_correct(images)))
    if checked is not None:
        right = labels == images.label
        assert list(checked[1]) == [int(right[images.bucket == j].sum()) for j in range(3)]


ROWS = [[0.9, 0.4, 0.3], [0.8, 0.85, 0.5], [0.7, 0.8, 0.9]]
PLAIN = {"values": ROWS, "buckets": ["a", "b", "c"], "seed": 3}
SAMPLES: list[tuple[str, bytes]] = [
    ("a.csv", files.savetxt(ROWS, delimiter=",").encode()),
    ("a.txt", files.savetxt(ROWS).encode()),
    ("a.npy", files.npy(np.array(ROWS))),
    ("a.npz", files.npz(matrix=np.array(ROWS))),
    ("a.json", json.dumps(PLAIN).encode()),
    ("eval_results.csv", files.avalanche_csv(ROWS).encode()),
    ("e.json", files.avalanche_results(ROWS).encode()),
    ("metrics_summary_update_3.csv", files.renate_csv(ROWS).encode()),
    ("r.json", files.renate_results(ROWS, ROWS[0]).encode()),
    ("logs.pyd", files.mammoth_line(ROWS).encode()),
    ("ocl.npz", files.npz(matrix=ROWS)),
]


@pytest.mark.slow
@fuzz(800)
@given(ANY)
def test_import_formats(data):
    name, content = data.draw(st.sampled_from(SAMPLES))
    if name.endswith(".json") and data.draw(st.booleans()):
        content = data.draw(changed_json(json.loads(content)))
    else:
        content = data.draw(mangle_bytes(content) | st.binary(max_size=200))
    format_name = data.draw(st.sampled_from(("auto", "auto", *FORMATS)))
    runs = read_or_refused(lambda: parse_runs(ResultFile(name, content), format_name)) or ()
    matrices = [run.matrix.values[~np.isnan(run.matrix.values)] for run in runs]
    for run, cells in zip(runs, matrices, strict=True):
        assert bool(((cells >= 0) & (cells <= 1)).all())
        assert run.matrix.num_buckets <= 1000
        assert all(key.isprintable() for key in run.matrix.buckets)
    # The two plain formats, by readers of the standard library.
    if runs and name == "a.csv" and format_name in ("auto", "text") and b"#" not in content:
        readable = content.decode("utf-8").replace("\x00", "")
        cells = [cell for line in csv.reader(readable.splitlines()) for cell in line]
        assert {*matrices[0].tolist()} <= {as_float(cell.strip()) for cell in cells}
    if runs and name == "a.json" and format_name == "json":
        parsed = json.loads(content.decode("utf-8-sig"))
        rows = parsed
        if isinstance(parsed, dict):
            keys = ("matrix", "values", "accuracy", "accuracies")
            rows = next(parsed[key] for key in keys if key in parsed)
        cell_values = {float(cell) for row in rows for cell in row if cell is not None}
        assert {*matrices[0].tolist()} <= cell_values


def as_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


TEXTS = [
    *("auto", "none", "0", "1", "-1", "0.5", "1e999", "nan", "٣", "1_0", " 1", "", "on", "off"),
    *("\x1b[31m", "x" * 5000, "a=1", "os:system", "../x", "9" * 5000),
]


@fuzz(200)
@given(ANY)
def test_configurations(tmp_path, data):
    good = TrainConfig.resolve({"strategy": "replay", "seed": "3"}).as_text()
    good |= {"data_root": "auto"}
    good |= data.draw(
        st.dictionaries(st.sampled_from(sorted(good)), st.sampled_from(TEXTS), max_size=2)
    )
    path = tmp_path / "config.json"
    path.write_bytes(data.draw(st.just(json.dumps(good).encode()) | changed_json(good)))
    config = read_or_refused(lambda: TrainConfig.resolve(read_config_file(path)))
    if config is None:
        return
    content = json.loads(path.read_bytes())
    for name, default in list_parameter_defaults().items():
        text = content.get(name, default)
        assert text == "auto" or parse_parameter(name, text) == getattr(config, name), name
    assert TrainConfig.resolve(config.as_text()) == config


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    model = build_model("small_cnn", num_classes=10, image_size=8)
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@fuzz(60)
@given(ANY)
def test_weights(tmp_path, weights, suffix, data):
    """Accepted weights are finite and of the model. No code is run."""
    path = tmp_path / f"weights{suffix}"
    torch.save(weights, path) if suffix == ".pth" else path.write_bytes(save(dict(weights)))
    content = bytearray(path.read_bytes())
    at = data.draw(st.sampled_from((slice(0, 4000), slice(-4000, None), slice(None))))
    content[at] = data.draw(mangle_bytes(bytes(content[at])))
    path.write_bytes(bytes(content))
    model = read_or_refused(
        lambda: build_model("small_cnn", num_classes=10, image_size=8, weights=str(path))
    )
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
def test_unusual_tensors_are_rejected_as_weights(tmp_path, weights, change):
    """Tensors that torch loads, but that a model would reject or change silently."""
    path = tmp_path / "weights.pth"
    torch.save({**weights, "0.weight": change(weights["0.weight"])}, path)
    refusal = r"'0\.weight' is not a plain tensor"
    with pytest.raises(ConfigError, match=refusal):
        build_model("small_cnn", num_classes=10, image_size=8, weights=str(path))


@pytest.mark.filterwarnings("ignore")
@fuzz(100)
@given(ANY)
def test_stored_features(tmp_path, data):
    path, other = tmp_path / "features.pth", tmp_path / "000.npy"
    torch.save({"feature": torch.ones(4, 3), "label": [0, 1, 0, 1]}, path)
    path.write_bytes(data.draw(mangle_bytes(path.read_bytes())))
    read_or_refused(lambda: load_torch_file(path))
    array = np.random.default_rng(0).random((4, 3)).astype(np.float32)
    with write_array(other, {"of": "made up"}) as file:
        np.save(file, array)
    intact = other.read_bytes()
    other.write_bytes(changed := data.draw(mangle_bytes(intact)))
    try:
        arrays = read_array(other, {})
    except UnusableFileError:
        assert changed != intact
    else:
        assert changed == intact
        assert np.array_equal(arrays[0], array)


PARAMETERS = on_features(strategy="replay", epochs="1")


@pytest.fixture(scope="module")
def state() -> bytes:
    _, states, _ = train_with_states(feature_stream(), PARAMETERS)
    return states[1]


@fuzz(60)
@given(ANY)
def test_training_states(state, data):
    header, body = split_safetensors(state)
    described = json.loads(header["__metadata__"]["clear_mlflow"])
    if data.draw(st.booleans()):
        text = data.draw(changed_json(described)).decode("utf-8", "replace")
        header["__metadata__"]["clear_mlflow"] = text
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + body
    else:
        content = data.draw(mangle_bytes(state))
    read_or_refused(lambda: train_with_states(feature_stream(), PARAMETERS, parse_state(content)))


@fuzz(150)
@given(ANY)
def test_manifests_of_states(data):
    good = Manifest(
        row=2,
        written_at="2026-01-31T12:00:00.123Z",
        size=10,
        sha256="ab" * 32,
        data={"digest": "x"},
        package_version="1",
        torch_version="2",
    )
    text = data.draw(changed_json(json.loads(good.to_json()))).decode("utf-8", "replace")
    manifest = read_or_refused(lambda: Manifest.from_json(text, source="after_002.json"))
    if manifest is not None:
        assert json.loads(manifest.to_json()).items() <= json.loads(text).items()


@pytest.fixture(scope="module")
def journal(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("journal") / "journal"
    journal = RunFolder.create(root, "ab" * 16, "sqlite:////x.db")
    journal.append("accuracy_matrix/rows/row_001.json", b"one")
    journal.append_metrics([Metric("renate/average_accuracy", 0.5, 1, 1)])
    journal.append("accuracy_matrix/rows/row_002.json", b"two")
    journal.append_json(OUTCOME_JSON, Outcome("FAILED", "because"))
    journal.close()
    return root


@fuzz(150)
@given(ANY)
def test_journals(tmp_path, journal, data):
    root, outside = tmp_path / "journal", tmp_path / "outside.txt"
    outside.write_text("secret")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(journal, root)
    spoil(root, outside, data.draw)

    def everything() -> list[tuple[str, bytes]]:
        read_header(root)
        taken = RunFolder.reopen(root)
        try:
            taken.read_outcome()
            entries = []
            for entry in taken.list_entries():
                if entry.name == METRICS_JSON:
                    entry.read_metrics()
                entries.append((entry.name, entry.file.read_bytes()))
            return entries
        finally:
            taken.close()

    for artifact, content in read_or_refused(everything) or ():
        assert content != b"secret"
        assert artifact is None or not {"..", "", "."} & set(artifact.split("/"))


def spoil(root: Path, outside: Path, draw: Callable[[Any], Any]) -> None:
    path = draw(st.sampled_from([path for path in sorted(root.rglob("*")) if path.is_file()]))
    damage_type = draw(st.sampled_from(["mangle", "remove", "link", "pipe"]))
    if damage_type == "mangle":
        path.write_bytes(draw(mangle_bytes(path.read_bytes())))
    else:
        path.unlink()
        if damage_type == "link":
            path.symlink_to(outside)
        elif damage_type == "pipe":
            os.mkfifo(path)
