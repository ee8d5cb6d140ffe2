"""Interop: NumPy and DLPack without copies, the buffer protocol, pickles, deep copies, and what repr shows."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import pickletools
import subprocess
import sys

import numpy as np
import pytest

from aril import Device, Tensor, dtypes, nn
from aril.interop import _lent
from aril.nn.state import get_state_dict
from tests.values import KINDS


def sample(kind: str) -> np.ndarray:
    return (np.arange(6).reshape(2, 3) % 2 if kind == "bool" else np.arange(6).reshape(2, 3)).astype(kind)


# --- NumPy ---


def test_values_of_views_are_read_without_computing():
    x = Tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4)).realize()
    reference = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    from aril import GlobalCounters

    before = GlobalCounters.kernels
    np.testing.assert_array_equal(x[1, ::-1].T.numpy(), reference[1, ::-1].T)
    np.testing.assert_array_equal(x[:, 1:2].expand(2, 5, 4).numpy(), np.repeat(reference[:, 1:2], 5, 1))
    np.testing.assert_array_equal(x.bitcast(dtypes.int32)[0].numpy(), reference.view(np.int32)[0])
    assert x[1, 2, 3].item() == 23.0
    assert GlobalCounters.kernels == before


def test_a_number_is_read_and_realized_again_and_again():
    t = Tensor(2.5)
    for _ in range(2):
        assert t.realize().item() == 2.5 and t.data().tolist() == [2.5] and str(t) == "<Tensor () float32 on CPU: 2.5>"


def test_elements_of_a_small_lazy_value_are_computed_together():
    from aril import GlobalCounters

    y = Tensor(np.arange(6.0).reshape(2, 3)) * 2 + 1
    before = GlobalCounters.kernels
    assert [y[i, j].item() for i in range(2) for j in range(3)] == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    assert GlobalCounters.kernels == before + 1


def test_asarray_shares_memory_and_numpy_copies():
    x = Tensor([1.0, 2.0, 3.0])
    shared, own = np.asarray(x), x.numpy()
    shared[0] = 7
    assert own[0] == 1 and x.numpy()[0] == 7 and np.array(x) is not shared
    assert np.asarray(x, dtype=np.int64).dtype == np.int64


def test_values_written_to_own_numpy_copies_stay_there():
    x = Tensor([1.0, 2.0])
    x.numpy()[0] = 9
    assert x.tolist() == [1.0, 2.0]


# --- DLPack ---


@pytest.mark.parametrize("kind", KINDS)
def test_dlpack_to_numpy_and_back_without_copies(kind):
    t = Tensor(sample(kind))
    array = np.from_dlpack(t)
    assert array.dtype == kind and array.shape == (2, 3)
    np.testing.assert_array_equal(array, sample(kind))
    assert array.ctypes.data == np.asarray(t).ctypes.data
    if kind != "bool":  # NumPy 1 exports no bool
        own = sample(kind)
        back = Tensor.from_dlpack(own)
        assert back.dtype.name == kind and np.asarray(back).ctypes.data == own.ctypes.data
        np.testing.assert_array_equal((back + back).numpy(), own + own)


@pytest.mark.parametrize("make", [lambda x: x[0], lambda x: x.T, lambda x: x[::-1, 1:], lambda x: x[0, 0]])
def test_views_leave_with_their_strides(make):
    x, reference = Tensor(sample("int32")).realize(), sample("int32")
    out = np.from_dlpack(make(x))
    expected = make(reference)
    np.testing.assert_array_equal(out, expected)
    assert np.shares_memory(out, np.asarray(x)) and out.strides == np.asarray(expected).strides


def test_lazy_values_are_computed_first():
    np.testing.assert_array_equal(np.from_dlpack(Tensor([1.0, 2.0]) * 3), [3.0, 6.0])
    np.testing.assert_array_equal(np.from_dlpack(Tensor(2.5)), 2.5)
    np.testing.assert_array_equal(np.from_dlpack(Tensor(2.5).realize()), 2.5)
    np.testing.assert_array_equal(np.from_dlpack(Tensor.ones(1, 2).realize()), [[1.0, 1.0]])
    assert np.from_dlpack(Tensor.zeros(0, 3)).shape == (0, 3)


def test_what_comes_in_is_shared_where_it_can_be():
    dense = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = Tensor.from_dlpack(dense.T)
    np.testing.assert_array_equal(t.numpy(), dense.T)
    dense[1, 2] = 50
    assert t[2, 1].item() == 50 and (t * 2)[2, 1].item() == 100
    t[0, 0] = -1.0
    t.realize()
    assert dense[0, 0] == -1

    gaps = np.arange(10, dtype=np.float32)[::3]
    np.testing.assert_array_equal(Tensor.from_dlpack(gaps).numpy(), gaps)
    np.testing.assert_array_equal(Tensor.from_dlpack(dense[::-1]).numpy(), dense[::-1])
    with pytest.raises(BufferError, match="leave out copy=False"):
        Tensor.from_dlpack(WithVersion(gaps), copy=False)
    assert Tensor.from_dlpack(np.empty((0, 2))).shape == (0, 2)
    assert Tensor.from_dlpack(np.array(3.0)).item() == 3.0


class WithVersion:
    """An array of NumPy 1 behind the protocol of 2024."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, max_version=None, copy=None):
        return self.array.__dlpack__()


def test_a_copy_is_a_copy():
    x = Tensor([1.0, 2.0])
    y = Tensor.from_dlpack(x, copy=True)
    assert Tensor.from_dlpack(x) is x
    x[0] = 5.0
    assert y.tolist() == [1.0, 2.0]
    own = np.ones(3)
    z = Tensor.from_dlpack(WithVersion(own), copy=True)
    own[:] = 0
    assert z.tolist() == [1.0, 1.0, 1.0]


def test_memory_lives_while_either_side_holds_it():
    n = len(_lent)
    array = np.from_dlpack(Tensor(np.arange(1000, dtype=np.int64)) + 1)
    gc.collect()
    assert len(_lent) == n + 1 and array.sum() == 500500
    del array
    gc.collect()
    assert len(_lent) == n

    capsule = Tensor([1.0]).__dlpack__()
    assert len(_lent) == n + 1
    del capsule  # nobody took it
    assert len(_lent) == n

    own = np.arange(1000, dtype=np.float64)
    t = Tensor.from_dlpack(own)
    count = sys.getrefcount(own)
    del own
    gc.collect()
    assert count > 2 and t.sum().item() == 499500


def test_a_capsule_is_taken_once():
    class Again:
        capsule = Tensor([1.0]).__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **more):
            return self.capsule

    assert Tensor.from_dlpack(Again()).tolist() == [1.0]
    with pytest.raises(TypeError, match="still unused"):
        Tensor.from_dlpack(Again())


def test_versions_and_read_only_memory():
    t = Tensor([1.0, 2.0])
    assert "dltensor_versioned" in repr(t.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(t.__dlpack__()) and '"dltensor"' in repr(t.__dlpack__(max_version=(0, 8)))
    assert t.__dlpack_device__() == (1, 0)

    class ReadOnly:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, *, max_version=None, copy=None):
            from aril.interop import to_capsule

            fixed = np.arange(3.0)
            fixed.flags.writeable = False
            return to_capsule(fixed, dtypes.float64, versioned=max_version is not None)

    assert Tensor.from_dlpack(ReadOnly()).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(BufferError, match="read-only"):
        Tensor.from_dlpack(ReadOnly(), copy=False)
    with pytest.raises(BufferError, match="max_version"):
        ReadOnly().__dlpack__()


def test_refusals_say_what_to_do():
    t = Tensor([1.0])
    with pytest.raises(BufferError, match="device"):
        t.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="no streams"):
        t.__dlpack__(stream=3)
    with pytest.raises(TypeError, match="list has no __dlpack__"):
        Tensor.from_dlpack([1.0])
    with pytest.raises(TypeError, match="no dtype here; cast"):
        Tensor.from_dlpack(np.ones(2, np.complex128))

    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **more):
            raise AssertionError

    with pytest.raises(BufferError, match="not on a CPU"):
        Tensor.from_dlpack(Elsewhere())


# --- buffers and memory ---


def test_data_is_a_memoryview_of_the_shape():
    view = Tensor(sample("float32")).data()
    assert view.shape == (2, 3) and view.format == "f" and view.tolist() == sample("float32").tolist()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes written in Python offer buffers from 3.12 on (PEP 688)")
def test_the_buffer_protocol():
    assert memoryview(Tensor([1, 2])).tolist() == [1, 2]


def test_dunder_buffer():
    assert Tensor(sample("int16")).T.__buffer__(0).tolist() == sample("int16").T.tolist()
    with pytest.raises(BufferError, match="bfloat16"):
        Tensor([1.0]).cast("bfloat16").__buffer__(0)


def test_a_blob_is_memory_that_exists():
    own = np.arange(4, dtype=np.float32)
    t = Tensor.from_blob(own.ctypes.data, (2, 2), dtypes.float32, owner=own)
    own[3] = 9
    assert t.tolist() == [[0, 1], [2, 9]]


# --- pickles and copies ---


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", [*KINDS, "bfloat16", "fp8e4m3"])
def test_pickles_hold_values(kind, protocol):
    t = Tensor(sample("int32")).cast(kind)
    t = t.is_param_(t.dtype.kind == "f")
    back = pickle.loads(pickle.dumps(t, protocol))
    assert back.dtype is t.dtype and back.shape == (2, 3) and back.is_param is t.is_param and back.device == t.device
    np.testing.assert_array_equal(back.numpy(), t.numpy())


def test_pickles_name_nothing_but_one_function():
    raw = pickle.dumps((Tensor([1.0, 2.0]) * 2)[::-1], 4)
    words = {arg for op, arg, _ in pickletools.genops(raw) if isinstance(arg, str)}
    assert words == {"aril.tensor_interop", "_unpickled", "aril.tensor", "Tensor", "float32", "CPU"}


def test_pickles_of_graphs_hold_no_graph_and_views_no_more_than_themselves():
    big = Tensor(np.zeros(100_000, np.float32))
    assert len(pickle.dumps(big[:2] + 1)) < 1000
    assert pickle.loads(pickle.dumps(big[3:5])).tolist() == [0.0, 0.0]


def test_buffers_leave_out_of_band():
    buffers: list[pickle.PickleBuffer] = []
    raw = pickle.dumps(Tensor(np.arange(1000.0)), 5, buffer_callback=buffers.append)
    assert len(raw) < 1000 and len(buffers) == 1
    np.testing.assert_array_equal(pickle.loads(raw, buffers=buffers).numpy(), np.arange(1000.0))


def test_devices_that_are_not_there_give_way_to_the_default():
    raw = pickle.dumps(Tensor([1.0]), 2).replace(b"CPU", b"XPU")
    assert pickle.loads(raw).device == "CPU"


class Net:
    def __init__(self):
        self.first, self.rest = nn.Linear(3, 4), [nn.BatchNorm(4), nn.Linear(4, 2)]

    def __call__(self, x):
        return self.rest[1](self.first(x).relu())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_models_survive(again):
    net = Net()
    other = again(net)
    x = Tensor(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(net(x).numpy(), other(x).numpy())
    mine, theirs = get_state_dict(net), get_state_dict(other)
    assert mine.keys() == theirs.keys() and [t.is_param for t in mine.values()] == [t.is_param for t in theirs.values()]
    other.first.weight.assign(Tensor.zeros(4, 3)).realize()
    assert abs(net.first.weight.numpy()).sum() > 0


def test_a_deep_copy_has_its_own_storage_and_gradient_and_keeps_sharing():
    x = Tensor([1.0, 2.0]).is_param_()
    (x * x).sum().backward()
    a, b = copy.deepcopy([x, x])
    assert a is b and a.is_param and a.grad.tolist() == [2.0, 4.0] and a.grad is not x.grad
    a[0] = 5.0
    assert x.tolist() == [1.0, 2.0] and a.tolist() == [5.0, 2.0]
    assert copy.copy(x).tolist() == [1.0, 2.0]


# --- text ---


def test_repr_shows_what_is_known_and_small():
    assert repr(Tensor([1.0, 2.5])) == "<Tensor (2,) float32 on CPU: [1. , 2.5]>"
    assert repr(Tensor(3)) == "<Tensor () int32 on CPU: 3>"
    assert repr(Tensor([[1, 2], [3, 4]])) == "<Tensor (2, 2) int32 on CPU:\n[[1, 2],\n [3, 4]]>"
    assert repr(Tensor([1.0]) + 1) == "<Tensor (1,) float32 on CPU>"
    assert repr(Tensor(np.zeros(201))) == "<Tensor (201,) float64 on CPU>"
    assert repr(Tensor.zeros(0, 2).realize()) == "<Tensor (0, 2) float32 on CPU>"
    assert repr(Tensor.empty(2)) == "<Tensor (2,) float32 on CPU>"


def test_print_computes_what_it_shows():
    x = Tensor([1.0, 2.0]) * 2
    assert str(x) == f"{x}" == repr(x) == "<Tensor (2,) float32 on CPU: [2., 4.]>"
    big = Tensor(np.zeros(1000)) + 1
    assert str(big) == "<Tensor (1000,) float64 on CPU>"


def test_repr_computes_nothing():
    from aril import GlobalCounters

    x = Tensor([1.0, 2.0]).realize()
    before = GlobalCounters.kernels
    repr(x * 2), repr(x[::-1]), repr(Tensor([1.0]).cast("bfloat16"))
    assert GlobalCounters.kernels == before


@pytest.mark.parametrize("kind", ["bfloat16", "fp8e4m3", "fp8e5m2", "fp8e4m3fnuz", "fp8e5m2fnuz"])
def test_small_floats_are_shown_exactly(kind):
    import ml_dtypes

    from aril.tensor_interop import _floats_of_bits

    names = {"fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2", "fp8e4m3fnuz": "float8_e4m3fnuz"}
    peer = np.dtype(getattr(ml_dtypes, names.get(kind, kind.replace("fp8", "float8_"))))
    bits = np.arange(256 if peer.itemsize == 1 else 65536, dtype=f"u{peer.itemsize}")
    with np.errstate(all="ignore"):
        expected = bits.view(peer).astype(np.float64)
        got = _floats_of_bits(bits, getattr(dtypes, kind))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(expected)[~np.isnan(got)])


def test_borrowed_memory_at_the_end_of_the_process():
    code = """
import numpy as np
from aril import Tensor
a = np.from_dlpack(Tensor([1.0]) + 1)
t = Tensor.from_dlpack(np.ones(3))
c = t.__dlpack__()
print(a[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "2.0\n" and done.stderr == ""


def test_save_to_a_stream():
    out = io.BytesIO()
    pickle.dump({"x": Tensor([1.0])}, out)
    out.seek(0)
    assert pickle.load(out)["x"].tolist() == [1.0]


# --- files and NumPy's memory ---


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[1:3],
        lambda x: x[:, 1],
        lambda x: x.T[::-1],
        lambda x: x[::2, ::-1].T,
        lambda x: x[2, 1],
        lambda x: x.T,
        lambda x: x[1:1],
    ],
)
@pytest.mark.parametrize("device", ["DISK", "NPY"])
def test_parts_of_memory_elsewhere_move_alone(make, device, tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    values.tofile(tmp_path / "x.bin")
    there = (
        Tensor.from_file(f"DISK:{tmp_path}/x.bin", 0, (4, 3), "float32")
        if device == "DISK"
        else Tensor.from_numpy(values)
    )
    np.testing.assert_array_equal(make(there).to("CPU").numpy(), make(values))
    np.testing.assert_array_equal((make(there).to("CPU") + 1).numpy(), make(values) + 1)
    np.testing.assert_array_equal(make(there).numpy(), make(values))
    np.testing.assert_array_equal(there.bitcast(dtypes.int32)[1:].to("CPU").numpy(), values.view(np.int32)[1:])


@pytest.mark.parametrize("device", ["DISK", "NPY"])
def test_memory_without_kernels_is_copied_by_the_first_operation(device, tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    values.tofile(tmp_path / "x.bin")
    place = f"DISK:{tmp_path}/x.bin"
    x = Tensor.from_file(place, 0, (4, 3), "float32") if device == "DISK" else Tensor.from_numpy(values)
    own = Tensor([1.0, 2.0, 3.0])
    for got, want in [
        (x + 1, values + 1),
        (1 - x, 1 - values),
        (own * x, own.numpy() * values),
        (x[1:, ::-1] + x[:3], values[1:, ::-1] + values[:3]),
        (x.T @ x, values.T @ values),
        (x.sum(0), values.sum(0)),
        (x.half(), values),
        (x.pad(((1, 0), (0, 0)))[0], np.zeros(3)),
        (x[Tensor([2, 0])], values[[2, 0]]),
        (x.expand(2, 4, 3).max(-1), np.broadcast_to(values, (2, 4, 3)).max(-1)),
        (x.cat(x), np.concatenate([values, values])),
        ((x > 3).where(x, 0), np.where(values > 3, values, 0)),
        (x.reshape(1, 1, 4, 3).avg_pool2d(2), [[[[2.0], [8.0]]]]),
        (x.contiguous(), values),
        (x.unfold(0, 2).sum(-1), values[:-1] + values[1:]),
    ]:
        np.testing.assert_allclose(got.numpy(), want)
    assert (x + 1).device == Device.DEFAULT and (x + own.to("CPU:1")).device == "CPU:1" and x.device.startswith(device)
    (g,) = (x * x).sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), 2 * values)
    assert x.rand_like().device == Device.DEFAULT and len((x > 5).nonzero()) == 6 and x[x > 8].tolist() == [9, 10, 11]
    np.testing.assert_array_equal(np.fromfile(tmp_path / "x.bin", np.float32), values.ravel())  # a file stays as it was
