"""safetensors files, held against the package of that name."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors import SafetensorError
from safetensors.numpy import load, save

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.predictions.tensor_file import read_tensors, tensors_to_bytes

ARRAYS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter("__metadata__".__ne__),
    st.sampled_from([np.uint8, np.uint16, np.uint32, np.float16]).flatmap(
        lambda kind: arrays_of.arrays(kind, arrays_of.array_shapes(max_dims=2, min_side=0))
    ),
    min_size=1,
    max_size=5,
)
TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3)


def header_of(content):
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@settings(max_examples=200, deadline=None)
@given(arrays=ARRAYS, metadata=TEXTS)
def test_the_package_writes_and_reads_the_same(tmp_path_factory, arrays, metadata):
    """Header and numbers are those of its writer; each reads what the other wrote."""
    ours, theirs = tensors_to_bytes(arrays, metadata), save(arrays, metadata)
    described, numbers = header_of(theirs)
    assert header_of(ours) == ({"__metadata__": {}, **described}, numbers)
    same(load(ours), arrays)
    path = tmp_path_factory.mktemp("d") / "file"
    path.write_bytes(theirs)
    found, texts = read_tensors(path, 2**20)
    same(found, arrays)
    assert texts == metadata
    assert not any(array.flags.writeable for array in found.values())


def file_of(header, numbers=b"\0\0\0\0"):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def entry(shape, place, kind="U8"):
    return {"dtype": kind, "shape": shape, "data_offsets": place}


REFUSED = {
    "cut off": tensors_to_bytes({"a": np.zeros(9, np.uint8)}, {})[:-1],
    "more after it": tensors_to_bytes({"a": np.zeros(9, np.uint8)}, {}) + b"\0",
    "a gap": file_of({"a": entry([1], [0, 1]), "b": entry([2], [2, 4])}),
    "an overlap": file_of({"a": entry([3], [0, 3]), "b": entry([2], [2, 4])}),
    "backwards": file_of({"a": entry([4], [4, 0])}),
    "below zero": file_of({"a": entry([-4], [0, 4])}),
    "a shape of more": file_of({"a": entry([2, 3], [0, 4])}),
    "the types' sizes": file_of({"a": entry([4], [0, 4], "U16")}),
    "no type": file_of({"a": entry([4], [0, 4], "PICKLE")}),
    "no entry": file_of({"a": [0, 4]}),
    "metadata of numbers": file_of({"__metadata__": {"a": 1}, "b": entry([4], [0, 4])}),
    "a list": file_of([]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_package_refuses_is_refused(tmp_path, name):
    """A file that the format does not allow, in one line."""
    with pytest.raises(SafetensorError):
        load(REFUSED[name])
    path = tmp_path / "file"
    path.write_bytes(REFUSED[name])
    with pytest.raises(RecordError) as caught:
        read_tensors(path, 2**20)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [[0, 2**62], [1] * 80, [1.0], [True], "4"])
def test_shapes_that_no_memory_has_are_refused(tmp_path, shape):
    """Before any array is made of them."""
    path = tmp_path / "file"
    path.write_bytes(file_of({"a": entry(shape, [0, 0])}, b""))
    with pytest.raises(RecordError, match="'a'"):
        read_tensors(path, 2**20)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(tensors_to_bytes({"a": np.zeros(2**10, np.uint8)}, {}))
    with pytest.raises(RecordError, match="is larger than 1 KiB"):
        read_tensors(path, 2**10)
