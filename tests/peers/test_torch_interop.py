"""Memory and files shared with PyTorch: DLPack both ways without copies, and what torch.save writes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from aril import Tensor, nn
from aril.nn.state import FileFormatError, get_state_dict, load_state_dict, safe_load, safe_save, torch_load

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `peers`")

KINDS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
         "float32", "float64"]  # fmt: skip


def theirs(kind: str, *shape: int):
    return torch.arange(int(np.prod(shape))).reshape(shape).to(getattr(torch, kind))


def numbers(t):
    return t.to(torch.float64).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_go_to_pytorch_without_a_copy(kind):
    ours = Tensor(numbers(theirs(kind, 2, 3))).cast(kind)
    out = torch.from_dlpack(ours)
    assert out.dtype == getattr(torch, kind)
    np.testing.assert_array_equal(numbers(out), ours.double().numpy())
    assert torch.from_dlpack(ours).data_ptr() == out.data_ptr()
    part = torch.from_dlpack(ours[1, ::2])
    np.testing.assert_array_equal(numbers(part), ours[1, ::2].double().numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_come_from_pytorch_without_a_copy(kind):
    t = theirs(kind, 3, 4)
    ours = Tensor.from_dlpack(t)
    assert ours.dtype.name == kind and np.asarray(ours._host()).ctypes.data == t.data_ptr()
    np.testing.assert_array_equal(ours.double().numpy(), numbers(t))
    turned = Tensor.from_dlpack(t.T)
    np.testing.assert_array_equal((turned.double() + 1).numpy(), numbers(t.T) + 1)
    np.testing.assert_array_equal(Tensor(t).double().numpy(), numbers(t))  # the constructor copies


def test_both_sides_see_what_the_other_writes():
    t = torch.zeros(4)
    ours = Tensor.from_dlpack(t)
    t[1] = 5
    assert ours.tolist() == [0, 5, 0, 0]
    ours[2] = 7.0
    ours.realize()
    assert t.tolist() == [0, 5, 7, 0]
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == t.data_ptr()


def test_memory_outlives_either_owner():
    t = torch.arange(1000.0)
    ours = Tensor.from_dlpack(t)
    del t
    gc.collect()
    assert ours.sum().item() == 499500
    back = torch.from_dlpack(ours + 1)
    gc.collect()
    assert back.sum().item() == 500500


def state():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2, bias=False))
    base = torch.arange(12.0).reshape(3, 4)
    return {
        "model": model.state_dict(), "step": 3, "name": "x", "rate": 0.5, "list": [1, None, True, (2, "b")],
        "turned": base.T, "part": base[1:, ::2], "again": base, "expanded": torch.ones(1, 3).expand(2, 3),
        "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "parameter": torch.nn.Parameter(torch.ones(2)),
        "size": base.shape, "type": torch.float16, "kinds": {k: theirs(k, 3) for k in KINDS},
        "small": {k: torch.tensor([1.0, -2.5]).to(getattr(torch, k)) for k in ("float8_e4m3fn", "float8_e5m2")},
    }  # fmt: skip


def same(got, expected):
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, Tensor) and got.shape == tuple(expected.shape)
        there = got.to("CPU")
        np.testing.assert_array_equal(there.double().numpy(), numbers(expected.detach()))
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            same(got[key], value)
    elif not isinstance(expected, torch.dtype):
        assert got == expected


@pytest.mark.parametrize("newer", [True, False], ids=["zip", "older"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_files_of_torch_save(newer, protocol, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(state(), path, _use_new_zipfile_serialization=newer, pickle_protocol=protocol)
    got = torch_load(path)
    same(got, state())
    assert got["model"]["0.weight"].device.startswith("DISK:")


@pytest.mark.parametrize("newer", [True, False], ids=["zip", "older"])
def test_optimizers_and_models(newer, tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "o.pt", _use_new_zipfile_serialization=newer)
    same(torch_load(tmp_path / "o.pt"), optimizer.state_dict())
    torch.save(model, tmp_path / "whole.pt", _use_new_zipfile_serialization=newer)
    with pytest.raises(FileFormatError, match=r"torch\.nn\.modules\.linear.*save its state_dict"):
        torch_load(tmp_path / "whole.pt")


def test_a_model_of_pytorch_runs_here(tmp_path):
    model = torch.nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    ours = nn.Linear(3, 2)
    load_state_dict(ours, torch_load(tmp_path / "m.pt"))
    x = np.ones((4, 3), np.float32)
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), model(torch.tensor(x)).detach().numpy(), rtol=1e-6)


def test_safetensors_both_ways(tmp_path):
    from safetensors.torch import load_file, save_file

    values = {k: theirs(k, 2, 3) for k in KINDS}
    save_file(values, tmp_path / "t.safetensors")
    ours = safe_load(tmp_path / "t.safetensors")
    same(ours, {k: values[k] for k in ours})
    safe_save({k: v.to("CPU") for k, v in ours.items()}, tmp_path / "o.safetensors")
    back = load_file(tmp_path / "o.safetensors")
    assert back.keys() == values.keys() and all(torch.equal(back[k], values[k]) for k in values)
    linear = nn.Linear(3, 2)
    safe_save(get_state_dict(linear), tmp_path / "l.safetensors")
    theirs_ = torch.nn.Linear(3, 2)
    theirs_.load_state_dict(load_file(tmp_path / "l.safetensors"))
    np.testing.assert_array_equal(theirs_.weight.detach().numpy(), linear.weight.numpy())
