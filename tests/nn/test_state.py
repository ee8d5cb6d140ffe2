"""State: names of a model's tensors, loading into it, and safetensors files both ways, whole and corrupt."""

from __future__ import annotations

import json
import os
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from aril import Tensor, dtypes, nn
from aril.nn.state import (
    FileFormatError,
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_load_metadata,
    safe_save,
)


class Block:
    def __init__(self):
        self.layers = [nn.Linear(3, 2), Tensor.relu, lambda x: x, nn.Linear(2, 1, bias=False)]
        self.scales = {"a": Tensor([1.0]), "b": (Tensor([2.0]), None, 3)}
        self.name = "block"


NAMES = ["layers.0.weight", "layers.0.bias", "layers.3.weight", "scales.a", "scales.b.0"]


def test_names_follow_attributes_lists_and_dicts():
    assert list(get_state_dict(Block())) == NAMES
    assert list(get_state_dict(Block(), "net.")) == [f"net.{n}" for n in NAMES]


def test_a_tensor_with_two_names_is_one_parameter():
    model = Block()
    model.again = model.layers
    assert len(get_state_dict(model)) == 8
    assert len(get_parameters(model)) == 5


def test_an_object_that_holds_itself_is_walked_once():
    model = Block()
    model.parent = model
    assert list(get_state_dict(model)) == NAMES


def test_loading_copies_into_the_tensors_of_the_model_and_casts():
    model = nn.Linear(3, 2)
    weight, bias = model.weight, model.bias
    load_state_dict(model, {"weight": Tensor(np.ones((2, 3), dtype=np.float64)), "bias": Tensor([1.0, 2.0])})
    assert model.weight is weight and model.bias is bias and weight.dtype is dtypes.float32
    np.testing.assert_array_equal(weight.numpy(), np.ones((2, 3)))
    np.testing.assert_array_equal(bias.numpy(), [1.0, 2.0])


def test_missing_and_unknown_names_are_told_before_anything_changes():
    model = nn.Linear(3, 2)
    before = model.weight.numpy().copy()
    with pytest.raises(KeyError, match=r"the model needs bias; the state also has extra"):
        load_state_dict(model, {"weight": Tensor.zeros(2, 3), "extra": Tensor([1.0])})
    np.testing.assert_array_equal(model.weight.numpy(), before)
    load_state_dict(model, {"weight": Tensor.zeros(2, 3), "extra": Tensor([1.0])}, strict=False)
    np.testing.assert_array_equal(model.weight.numpy(), np.zeros((2, 3)))


def test_another_shape_is_told_with_both_shapes():
    with pytest.raises(ValueError, match=r"weight is \(2, 3\), the state has \(3, 2\)"):
        load_state_dict(nn.Linear(3, 2, bias=False), {"weight": Tensor.zeros(3, 2)})


# --- files ---

SAMPLES = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "f64": np.array([1e300, -0.0]),
    "f16": np.array([[1.5], [np.inf]], dtype=np.float16),
    "i8": np.array([-128, 127], dtype=np.int8),
    "u8": np.array([0, 255], dtype=np.uint8),
    "i64": np.array([-(2**63), 2**63 - 1]),
    "u16": np.array([65535], dtype=np.uint16),
    "truth": np.array([True, False, True]),
    "scalar": np.array(2.5, dtype=np.float32),
    "nothing": np.zeros((0, 4), dtype=np.float32),
}


def test_what_we_save_the_safetensors_package_reads(tmp_path):
    path = tmp_path / "m.safetensors"
    safe_save({k: Tensor(v) for k, v in SAMPLES.items()}, path, {"made by": "aril"})
    read = safetensors.numpy.load_file(path)
    assert read.keys() == SAMPLES.keys()
    for name, expected in SAMPLES.items():
        assert read[name].dtype == expected.dtype
        np.testing.assert_array_equal(read[name], expected)
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"made by": "aril"}
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_what_the_safetensors_package_saves_we_read(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(SAMPLES, path, {"made by": "them"})
    read = safe_load(path)
    assert read.keys() == SAMPLES.keys()
    for name, expected in SAMPLES.items():
        got = read[name].to("CPU").numpy()
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)
    assert safe_load_metadata(path)[1]["__metadata__"] == {"made by": "them"}


def test_tensors_of_a_file_stay_on_disk_until_they_are_moved(tmp_path):
    path = tmp_path / "m.safetensors"
    safe_save({"x": Tensor([1.0, 2.0])}, path)
    x = safe_load(path)["x"]
    assert x.device.startswith("DISK:") and x.shape == (2,) and x.dtype is dtypes.float32


def test_small_floats_keep_their_bits(tmp_path):
    path = tmp_path / "m.safetensors"
    values = np.array([1.0, -2.5, 3.0e38], dtype=np.float32)
    safe_save({"x": Tensor(values).cast(dtypes.bfloat16)}, path)
    start, header = safe_load_metadata(path)
    assert header["x"]["dtype"] is dtypes.bfloat16
    stored = np.frombuffer(path.read_bytes()[start:], dtype=ml_dtypes.bfloat16)
    np.testing.assert_array_equal(stored, values.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(safe_load(path)["x"].to("CPU").float().numpy(), stored.astype(np.float32))


def test_a_model_survives_a_file(tmp_path):
    path = tmp_path / "m.safetensors"
    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    safe_save(get_state_dict(one), path)
    load_state_dict(two, safe_load(path))
    np.testing.assert_array_equal(one.weight.numpy(), two.weight.numpy())
    np.testing.assert_array_equal(one.bias.numpy(), two.bias.numpy())


def test_saving_over_a_file_that_is_being_read(tmp_path):
    path = tmp_path / "m.safetensors"
    safe_save({"x": Tensor([1.0, 2.0])}, path)
    lazy = safe_load(path)
    safe_save({"x": lazy["x"].to("CPU") + 1.0}, path)
    np.testing.assert_array_equal(safe_load(path)["x"].to("CPU").numpy(), [2.0, 3.0])


def test_a_failed_save_leaves_no_file_and_the_old_one_whole(tmp_path):
    path = tmp_path / "m.safetensors"
    safe_save({"x": Tensor([1.0])}, path)
    old = path.read_bytes()

    class Broken(Tensor):
        def detach(self):
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        safe_save({"a": Tensor([2.0]), "x": Broken([1.0])}, path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["m.safetensors"]


def test_what_is_no_tensor_is_refused(tmp_path):
    with pytest.raises(TypeError, match="'x' is a list"):
        safe_save({"x": [1.0]}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="__metadata__"):
        safe_save({"__metadata__": Tensor([1.0])}, tmp_path / "m.safetensors")


# --- files that lie ---


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def written(tmp_path, header, data=b"\0" * 8, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def test_the_header_of_these_tests_is_accepted_when_it_tells_the_truth(tmp_path):
    _, header = safe_load_metadata(written(tmp_path, {"x": entry()}))
    assert header == {"x": {"dtype": dtypes.float32, "shape": (2,), "data_offsets": (0, 8)}}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"x": entry(offsets=(0, 16))}, "outside"),
        ({"x": entry(offsets=(8, 0))}, "outside"),
        ({"x": entry(offsets=(1, 8))}, "does not take 7 bytes"),
        ({"x": entry(shape=(3,))}, "does not take 8 bytes"),
        ({"x": entry(shape=(1 << 40, 1 << 40))}, "does not take"),
        ({"x": entry(shape=(-1, -2))}, "natural"),
        ({"x": entry(shape=(True, 2))}, "natural"),
        ({"x": entry(shape=(2.0,))}, "natural"),
        ({"x": entry(shape=("2",))}, "natural"),
        ({"x": entry(offsets=(0, 4, 8))}, "natural"),
        ({"x": entry(dtype="F128")}, "F128"),
        ({"x": entry(dtype=["F32"])}, "not known"),
        ({"x": entry(), "y": entry()}, "ends at 8"),
        ({"x": entry(shape=(1,), offsets=(0, 4))}, "take 4 bytes, the file holds 8"),
        ({"x": entry(shape=(1,), offsets=(4, 8))}, "begins at 4"),
        ({"x": {"dtype": "F32", "shape": [2]}}, "not described"),
        ({"x": {**entry(), "more": 1}}, "not described"),
        ({"x": [1, 2]}, "not described"),
        ({"x": entry(), "__metadata__": {"a": 1}}, "map of strings"),
        ({"x": entry(), "__metadata__": "a"}, "map of strings"),
        (b'{"x": 1, "x": 2}', "twice"),
        (b"[1, 2]", "does not begin"),
        (b' {"x": 1}', "does not begin"),
        (b"{}{}", "not valid"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": \xff\xfe}', "not valid"),
        (b'{"a":' * 100_000, "not valid"),
        (b'{"a": 1' + b"0" * 10_000 + b"}", "not valid"),
        (b"{}", "take 0 bytes, the file holds 8"),
    ],
)
def test_a_corrupt_header_is_refused_with_the_reason(tmp_path, header, why):
    path = written(tmp_path, header)
    with pytest.raises(FileFormatError, match=why) as error:
        safe_load(path)
    assert str(path) in str(error.value)


def test_a_header_longer_than_the_file_or_the_limit_is_refused_unread(tmp_path):
    with pytest.raises(FileFormatError, match="cut short"):
        safe_load(written(tmp_path, {"x": entry()}, length=1 << 62))
    path = tmp_path / "huge.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 200_000_000))
        file.truncate(300_000_000)
    with pytest.raises(FileFormatError, match="at most 100000000"):
        safe_load(path)


@pytest.mark.parametrize("size", [0, 7, 8])
def test_a_file_of_a_few_bytes_is_refused(tmp_path, size):
    path = tmp_path / "short.safetensors"
    path.write_bytes(b"\x05" * size)
    with pytest.raises(FileFormatError):
        safe_load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        safe_load(tmp_path / "none.safetensors")
