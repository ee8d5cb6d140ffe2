"""Captured programs in files: the same numbers in a process that never traced them, and no harm from any file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import aril
from aril import Context, Tensor, Variable, jit, nn
from aril.captured_format import ProgramError
from aril.device import GlobalCounters
from aril.engine import compile as kernels
from aril.jit import JitError
from aril.nn.state import FileFormatError, get_state_dict, safe_load, safe_load_metadata, safe_save
from aril.uop import Ops, UOp


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def saved(function: Any, path: Path, *args: Any, **options: Any) -> Any:
    """The function, captured with these arguments and saved."""
    f = jit(function)
    for _ in range(2):
        f(*args)
    f.save(path, **options)
    return f


def elsewhere(code: str, *args: Any) -> str:
    """What Python prints that runs `code` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Parts(NamedTuple):
    total: Tensor
    rest: list[Tensor]


# --- what it computes ---


def test_a_process_that_never_saw_the_function_runs_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    w, x, y = (rng.standard_normal(s).astype(np.float32) for s in ((4, 3), (2, 4), (2, 4)))
    weight = Tensor(w).realize()
    saved(lambda x: (x @ weight).relu(), tmp_path / "f", Tensor(x).realize())
    np.save(tmp_path / "y.npy", y)
    code = (
        "import sys, aril, numpy\n"
        "f = aril.load_captured(sys.argv[1])\n"
        "y = f(aril.Tensor(numpy.load(sys.argv[2])).realize())\n"
        "numpy.save(sys.argv[2], y.numpy())\n"
        "print('llvmlite' in sys.modules)"
    )
    elsewhere(code, tmp_path / "f", tmp_path / "y.npy")
    np.save(tmp_path / "y.npy", y)
    assert elsewhere(code, tmp_path / "f", tmp_path / "y.npy") == "False"  # the kernel came from the disk cache
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), np.maximum(y.astype(float) @ w, 0), rtol=1e-5)


def test_containers_of_arguments_and_results(tmp_path: Path) -> None:
    def f(x: dict[str, Any], flag: bool, scale: float = 2.0) -> Any:
        a, (b, c) = x["a"], x["bc"]
        return Parts((a + b).realize(), [c, a]), {"k": (c * scale).realize(), 3: None}, "text", float("inf")

    def args() -> tuple[Any, bool]:
        a, b, c = (Tensor(arange(3) + i).realize() for i in range(3))
        return {"a": a, "bc": (b, c)}, True

    saved(f, tmp_path / "f", *args())
    g = aril.load_captured(tmp_path / "f")
    given = args()
    parts, more, text, number = g(*given)
    assert type(parts).__name__ == "Parts" and parts.rest[1].uop is given[0]["a"].uop
    assert parts.total.tolist() == [1, 3, 5] and parts.rest[0].tolist() == [2, 3, 4]
    assert more["k"].tolist() == [4, 6, 8] and more[3] is None and (text, number) == ("text", np.inf)
    with pytest.raises(JitError, match="flag"):
        g(args()[0], False)
    with pytest.raises(JitError, match=r"x\['a'\]"):
        g({**args()[0], "a": Tensor.zeros(4)}, True)


def test_training_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    def trainer() -> tuple[Any, Any]:
        Tensor.manual_seed(3)
        net = [nn.Linear(6, 8), Tensor.relu, nn.BatchNorm(8), lambda x: x.dropout(0.3), nn.Linear(8, 2)]
        optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (x.sequential(net) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss.realize()

        return net, step

    def data(i: int) -> list[Tensor]:
        rng = np.random.default_rng(i)
        return [Tensor(rng.standard_normal((4, n)).astype(np.float32)).realize() for n in (6, 2)]

    with Context(TRAINING=1):
        net, step = trainer()
        f = jit(step)
        for i in range(4):
            f(*data(i))
        f.save(tmp_path / "step", state=get_state_dict(net))
        g = aril.load_captured(tmp_path / "step")
        assert [f(*data(i)).item() for i in range(4, 9)] == [g(*data(i)).item() for i in range(4, 9)]
    for name, t in get_state_dict(net).items():
        np.testing.assert_array_equal(g.state[name].numpy(), t.numpy(), err_msg=name)
    assert g.state["0.weight"].shape == (8, 6)
    (g.state["0.weight"] * 2).realize()
    g.save(tmp_path / "again", state={"0.weight": g.state["0.weight"]})  # where training stands now
    h = aril.load_captured(tmp_path / "again")
    with Context(TRAINING=1):
        assert f(*data(9)).item() == h(*data(9)).item() == g(*data(9)).item()


def test_a_bound_variable_is_an_argument(tmp_path: Path) -> None:
    n = Variable("n", 0, 7)
    cache = Tensor(np.zeros((8, 2), np.float32)).realize()

    def f(x: Tensor, at: Any) -> Tensor:
        cache[at].assign(x)
        return cache.shrink(((0, at + 1), (0, 2))).sum(0).realize()

    def run(f: Any) -> list[Any]:
        return [f(Tensor([1.0 * i, 10.0 * i]).realize(), n.bind(i)).tolist() for i in range(1, 7)]

    jitted = jit(f)
    run(jitted)
    cache.assign(Tensor.zeros(8, 2)).realize()
    jitted.save(tmp_path / "f")
    expected = np.cumsum([[i, 10 * i] for i in range(1, 7)], 0).tolist()
    assert run(aril.load_captured(tmp_path / "f")) == expected
    assert run(jitted) == expected


def test_methods_and_objects_as_arguments(tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.w = Tensor([1.0, 2.0]).realize()

        @jit
        def __call__(self, x: Tensor) -> Tensor:
            return (x * self.w).realize()

    m = Model()
    for _ in range(2):
        m.__call__(Tensor([1.0, 1.0]).realize())
    m.__call__.save(tmp_path / "m")
    assert aril.load_captured(tmp_path / "m")(Tensor([3.0, 4.0]).realize()).tolist() == [3, 8]
    saved(lambda model, x: (x + model.w).realize(), tmp_path / "f", m, Tensor([1.0, 1.0]).realize())
    assert aril.load_captured(tmp_path / "f")(Tensor([3.0, 4.0]).realize()).tolist() == [4, 6]
    with pytest.raises(ProgramError, match="neither a tensor nor a plain value"):
        saved(lambda models, x: (x + models[0].w).realize(), tmp_path / "f", [m], Tensor([1.0, 1.0]).realize())


def test_weights_by_reference(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)
    safe_save(get_state_dict(layer), tmp_path / "w.safetensors")
    x = Tensor(arange(2, 3)).realize()
    options = {"state": get_state_dict(layer), "weights": tmp_path / "w.safetensors"}
    f = saved(lambda x: layer(x), tmp_path / "f", x, **options)
    assert [n for n in safe_load(tmp_path / "f") if not n.startswith("aril.code")] == []
    np.testing.assert_array_equal(aril.load_captured(tmp_path / "f")(x).numpy(), f(x).numpy())

    other = {"weight": Tensor(arange(2, 3)), "bias": Tensor.ones(2)}
    safe_save(other, tmp_path / "other")
    found = aril.load_captured(tmp_path / "f", weights=tmp_path / "other")(x).numpy()
    np.testing.assert_allclose(found, arange(2, 3) @ arange(2, 3).T + 1)
    os.replace(tmp_path / "other", tmp_path / "w.safetensors")
    with pytest.raises(ProgramError, match="has changed"):
        aril.load_captured(tmp_path / "f")
    with pytest.raises(ProgramError, match="other values"):
        f.save(tmp_path / "f", **options)
    os.unlink(tmp_path / "w.safetensors")
    with pytest.raises(FileNotFoundError, match=r"w\.safetensors"):
        aril.load_captured(tmp_path / "f")
    with pytest.raises(FileNotFoundError, match=r"nothing: no such file; give the path of what jit's save\(\) wrote"):
        aril.load_captured(tmp_path / "nothing")


@pytest.mark.parametrize("device", ["PYTHON", "CPU:1"])
def test_on_other_devices(device: str, tmp_path: Path) -> None:
    w = Tensor(arange(3, 2), device=device).realize()

    def f(x: Tensor) -> Tensor:
        w.assign(w + 1)
        return (x @ w).realize()

    x = Tensor(arange(2, 3), device=device).realize()
    saved(f, tmp_path / "f", x)
    out = aril.load_captured(tmp_path / "f")(x)
    assert out.device == device
    np.testing.assert_allclose(out.numpy(), arange(2, 3) @ (arange(3, 2) + 3))


def test_positions_are_computed_where_they_are_read(tmp_path: Path) -> None:
    """A stretch with a step is written by positions: they are numbers only, on no device of their own."""
    t = Tensor(np.zeros((8, 8), np.float32), device="CPU:1").realize()

    def f(x: Tensor) -> Tensor:
        t[:, ::3] = x
        return (t + 1).realize()

    f_jit = saved(f, tmp_path / "f", Tensor(arange(8, 3), device="CPU:1").realize())
    launches = f_jit.captured.batch.launches
    assert {b.device for launch in launches for b in launch.buffers} == {"CPU:1"}
    expected = np.ones((8, 8))
    expected[:, ::3] = arange(8, 3) + 3
    found = aril.load_captured(tmp_path / "f")(Tensor(arange(8, 3) + 2, device="CPU:1").realize())
    np.testing.assert_array_equal(found.numpy(), expected)


def test_positions_of_a_sharded_tensor_are_computed_on_each_device() -> None:
    devices = ("CPU:1", "CPU:2")
    t = Tensor(np.zeros((8, 8), np.float32)).shard(devices, axis=0).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        t[:, ::3] = x
        return (t + 1).realize()

    expected = np.ones((8, 8))
    expected[:, ::3] = arange(8, 3) + 1
    for _ in range(3):
        found = f(Tensor(arange(8, 3)).shard(devices, axis=0).realize())
        np.testing.assert_array_equal(found.numpy(), expected)
    kernels = [launch for launch in f.captured.batch.launches if launch.loaded is not None]
    assert kernels and all(b.device == launch.loaded.device for launch in kernels for b in launch.buffers)


def test_floats_that_are_hard_to_compare(tmp_path: Path) -> None:
    def f(x: Tensor, s: float) -> Tensor:
        return (x * s).realize()

    x = Tensor([2.0, 3.0]).realize()
    g = saved(f, tmp_path / "nan", x, float("nan"))
    assert np.isnan(g(x, float("nan")).numpy()).all()
    assert np.isnan(aril.load_captured(tmp_path / "nan")(x, float("nan")).numpy()).all()
    g = saved(f, tmp_path / "zero", x, -0.0)
    h = aril.load_captured(tmp_path / "zero")
    assert np.signbit(g(x, -0.0).numpy()).all() and np.signbit(h(x, -0.0).numpy()).all()
    for function in (g, h):
        with pytest.raises(JitError, match="negative|-0.0"):
            function(x, 0.0)


def test_over_several_devices(tmp_path: Path) -> None:
    devices = ("CPU:1", "CPU:2")
    w = Tensor(arange(4, 4)).shard(devices, axis=None).realize()

    def args() -> Tensor:
        return Tensor(arange(3, 4)).shard(devices, axis=0).realize()  # an uneven split

    f = saved(lambda x: ((x @ w).realize(), x.sum().realize()), tmp_path / "f", args())
    y, total = aril.load_captured(tmp_path / "f")(args())
    np.testing.assert_allclose(y.numpy(), arange(3, 4) @ arange(4, 4))
    assert total.item() == arange(3, 4).sum() and y.device == f(args())[0].device
    with pytest.raises(JitError):
        aril.load_captured(tmp_path / "f")(Tensor(arange(3, 4)).shard(devices, axis=1).realize())


def test_a_custom_kernel(tmp_path: Path) -> None:
    def double(out: UOp, x: UOp) -> UOp:
        i = UOp.range(5, 0)
        return out[i].store(x[i] * 2).end(i).sink()

    def f(x: Tensor) -> Tensor:
        return Tensor.custom_kernel(Tensor.empty(5), x, fxn=double)[0].realize()

    saved(f, tmp_path / "f", Tensor(arange(5)).realize())
    assert aril.load_captured(tmp_path / "f")(Tensor(arange(5)).realize()).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "float64", "fp8e4m3"])
def test_state_of_every_width(dtype: str, tmp_path: Path) -> None:
    w = Tensor([0.0, 1.0, 2.0, 3.0]).cast(dtype).realize()
    saved(lambda x: w.where(x, 0) if dtype == "bool" else x + w.float(), tmp_path / "f", Tensor(arange(4)).realize())
    expected = arange(4) if dtype == "bool" else 2 * arange(4)
    assert aril.load_captured(tmp_path / "f")(Tensor(arange(4)).realize()).tolist() == expected.tolist()


def test_positions_that_are_computed_stay_inside(tmp_path: Path) -> None:
    table = Tensor(arange(5, 2)).realize()
    saved(lambda i: table[i].realize(), tmp_path / "f", Tensor([1, 2]).realize())
    found = aril.load_captured(tmp_path / "f")(Tensor([-1, 99]).realize()).numpy()
    np.testing.assert_array_equal(found, arange(5, 2)[[4, 4]])


def test_positions_that_another_kernel_has_stored_stay_inside(tmp_path: Path) -> None:
    """Two reductions read the rows: positions are stored once, and the kernels that find them there keep inside."""
    table = Tensor(arange(8, 16)).realize()
    saved(lambda i: table[i].layernorm(1).realize(), tmp_path / "f", Tensor([[1, 2, 3], [4, 5, -6]]).realize())
    found = aril.load_captured(tmp_path / "f")(Tensor([[-1, 0, 9], [7, -8, 2]]).realize()).numpy()
    rows = arange(8, 16).astype(np.float64)[[[7, 0, 7], [7, 0, 2]]]
    expected = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_gradients_through_a_sort(tmp_path: Path) -> None:
    w = np.array([[0.5], [-2], [1], [3], [0.25]])
    x = np.array([[3.0, 1], [2, 5], [-1, 4], [0, 0.5], [7, 2]])

    def f(t: Tensor) -> Tensor:
        return (t.sort(0)[0] * Tensor(w)).square().sum().gradient(t)[0].realize()

    saved(f, tmp_path / "f", Tensor(x + 1).realize())
    order = np.argsort(np.argsort(x, 0), 0)
    expected = 2 * x * w[:, 0][order] ** 2
    np.testing.assert_allclose(aril.load_captured(tmp_path / "f")(Tensor(x).realize()).numpy(), expected, rtol=1e-6)


def test_gradients_of_a_table_go_where_positions_say(tmp_path: Path) -> None:
    table = Tensor(arange(5, 2)).realize().is_param_()

    def f(i: Tensor) -> Tensor:
        table.grad = None
        table[i].square().sum().backward()
        assert table.grad is not None
        return table.grad.realize()

    saved(f, tmp_path / "f", Tensor([1, 2, 2]).realize())
    expected = np.zeros((5, 2))
    np.add.at(expected, [0, 4, 4], 2 * arange(5, 2)[[0, 4, 4]])
    found = aril.load_captured(tmp_path / "f")(Tensor([0, -1, 4]).realize()).numpy()
    np.testing.assert_array_equal(found, expected)


def test_what_was_pruned_is_saved_by_value(tmp_path: Path) -> None:
    w = Tensor(arange(4)).realize()
    f = jit(prune=True)(lambda x: (x + (w * 2).contiguous().realize()).realize())
    for _ in range(2):
        f(Tensor(arange(4)).realize())
    f.save(tmp_path / "f")
    g = aril.load_captured(tmp_path / "f")
    assert len(g.captured.batch.launches) == 1  # type: ignore[union-attr]
    assert g(Tensor(arange(4)).realize()).tolist() == [0, 3, 6, 9]


def test_arguments_that_share_memory_with_the_program(tmp_path: Path) -> None:
    w = Tensor(arange(4)).realize()

    def f(x: Tensor) -> Tensor:
        w.assign(w + 1)
        return (x * 2).realize()

    g = jit(f)
    g(w), g(w)
    with pytest.raises(ProgramError, match="clone"):
        g.save(tmp_path / "f")
    g(Tensor(arange(4)).realize())
    g.save(tmp_path / "f", state={"w": w})
    h = aril.load_captured(tmp_path / "f")
    assert h(Tensor(arange(4)).realize()).tolist() == [0, 2, 4, 6]
    assert h.state["w"].tolist() == [4, 5, 6, 7]
    with pytest.raises(JitError, match="clone"):
        h(h.state["w"])


# --- files ---


def _described(path: Path) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(safe_load_metadata(path)[1]["__metadata__"]["aril.program"])
    return out


def _write(path: Path, description: Any, source: Path) -> None:
    """A container with the tensors of another and this description."""
    safe_save(safe_load(source), path, {"aril.program": json.dumps(description)})


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    f = jit(lambda x: x + 1)
    with pytest.raises(ProgramError, match="not captured yet"):
        f.save(tmp_path / "f")
    assert not os.listdir(tmp_path)

    def inline(out: UOp, x: UOp) -> UOp:
        i = UOp.range(4, 0)
        return out[i].store(UOp(Ops.CUSTOMI, (x[i],), ("fmul {t0} {0}, {0}", x.dtype, "llvm"), x.dtype)).end(i).sink()

    def g(x: Tensor) -> Tensor:
        return Tensor.custom_kernel(Tensor.empty(4), x, fxn=inline)[0].realize()

    with pytest.raises(ProgramError, match="CUSTOMI has no form in a file"):
        saved(g, tmp_path / "g", Tensor(arange(4)).realize())

    def unguarded(out: UOp, x: UOp, i: UOp) -> UOp:
        k = UOp.range(4, 0)
        return out[k].store(x[i[k]]).end(k).sink()

    def h(x: Tensor, i: Tensor) -> Tensor:
        return Tensor.custom_kernel(Tensor.empty(4), x, i, fxn=unguarded)[0].realize()

    with pytest.raises(ProgramError, match="nothing in the kernel keeps it inside"):
        saved(h, tmp_path / "h", Tensor(arange(4)).realize(), Tensor([0, 1, 2, 3]).realize())
    n = Variable("n", 1, 4)
    with pytest.raises(ProgramError, match="symbolic shape"):
        saved(lambda x, n: (x[:n] * 2).contiguous(), tmp_path / "j", Tensor(arange(4)).realize(), n.bind(2))
    with pytest.raises(ProgramError, match="stands for compiled kernels"):
        w = Tensor(arange(4)).realize()
        saved(lambda x: (x + w).realize(), tmp_path / "k", Tensor(arange(4)).realize(), state={"aril.code.0.CPU": w})
    with pytest.raises(ProgramError, match="nothing keeps a SHRINK"):  # n = 4 reads a fifth element
        saved(lambda x, n: x.shrink(((0, n + 1),)).sum().realize(), tmp_path / "i", Tensor(arange(4)), n.bind(2))
    assert not os.listdir(tmp_path)


def test_machine_code_of_a_file_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    x = Tensor(arange(4)).realize()
    saved(lambda x: (x * 3).realize(), tmp_path / "f", x)
    saved(lambda x: (x * 5).realize(), tmp_path / "g", x)
    tensors = dict(safe_load(tmp_path / "f"))
    code = next(n for n in tensors if n.startswith("aril.code"))
    tensors[code] = safe_load(tmp_path / "g")[code]  # another kernel's code, as a stranger might put there
    safe_save(tensors, tmp_path / "h", {"aril.program": json.dumps(_described(tmp_path / "f"))})
    assert aril.load_captured(tmp_path / "h")(x).tolist() == [0, 3, 6, 9]
    before = dict(kernels.stats)
    assert aril.load_captured(tmp_path / "h", trust=True)(x).tolist() == [0, 5, 10, 15]
    assert kernels.stats == before
    d = _described(tmp_path / "f")
    d["code"] = {"CPU": "another machine"}
    _write(tmp_path / "i", d, tmp_path / "h")
    assert aril.load_captured(tmp_path / "i", trust=True)(x).tolist() == [0, 3, 6, 9]


def _program(tmp_path: Path) -> tuple[Path, Tensor]:
    """A container of a program with state, scratch, positions from memory and two kernels."""
    w = Tensor(arange(6, 4)).realize()

    def f(x: Tensor, i: Tensor) -> Tensor:
        h = (w[i] * x).sum(1).contiguous()
        w.assign(w + 1)
        return (h - h.max()).realize()

    args = Tensor(arange(3, 4)).realize(), Tensor([0, 5, 2]).realize()
    saved(f, tmp_path / "f", *args, state={"w": w})
    return tmp_path / "f", args[0]


@pytest.mark.parametrize("keep", [0, 7, 100, 0.3, 0.9, 0.999])
def test_a_file_cut_short_is_refused(keep: float, tmp_path: Path) -> None:
    path, _ = _program(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    with pytest.raises((FileFormatError, ProgramError), match=str(path)):
        aril.load_captured(path)


def test_other_safetensors_are_no_programs(tmp_path: Path) -> None:
    safe_save({"x": Tensor.ones(2)}, tmp_path / "x")
    with pytest.raises(ProgramError, match="without a captured program"):
        aril.load_captured(tmp_path / "x")
    safe_save({"x": Tensor.ones(2)}, tmp_path / "x", {"aril.program": "[" * 100_000})
    with pytest.raises(ProgramError, match="not valid"):
        aril.load_captured(tmp_path / "x")


def _first(rows: list[Any], op: str) -> list[Any]:
    out: list[Any] = next(r for r in rows if r[0] == op)
    return out


def lie_about_size(d: dict[str, Any]) -> None:
    next(m for m in d["memories"] if m["kind"] == "state").update(size=1 << 40)


def lie_about_a_span(d: dict[str, Any]) -> None:
    d["steps"][0][3][0][1] = 1 << 20


def lie_about_an_input(d: dict[str, Any]) -> None:
    d["signature"][0][2] = [1, 1]


def lie_about_outputs(d: dict[str, Any]) -> None:
    d["steps"][0][2] = 0


def write_without_end(d: dict[str, Any]) -> None:
    d["steps"][0][2] = 1 << 46


def a_variable_without_a_name(d: dict[str, Any]) -> None:
    row = _first(d["nodes"], "PARAM")
    row[3][6] = ["e", "ALU"]
    row[3][4] = ["t", 0, 3]


def grow_a_parameter(d: dict[str, Any]) -> None:
    for row in d["nodes"]:
        if row[0] == "PARAM" and row[3][3]:
            row[3][3] *= 2


def drop_the_clamps(d: dict[str, Any]) -> None:
    for row in d["nodes"]:
        if row[0] == "INDEX":
            slots = [i for i, r in enumerate(d["nodes"]) if r[0] == "PARAM" and r[3][2] == ["d", "int32"]]
            row[2][1] = slots[0]


def name_a_file_as_memory(d: dict[str, Any]) -> None:
    d["memories"][-1]["device"] = "DISK:/etc/passwd"


def inline_source(d: dict[str, Any]) -> None:
    _first(d["nodes"], "MUL")[0] = "CUSTOMI"


def name_with_source(d: dict[str, Any]) -> None:
    _first(d["nodes"], "SINK")[3][1] = 'f() { ret void } define void @"'


def refer_backwards(d: dict[str, Any]) -> None:
    _first(d["nodes"], "MUL")[2][0] = -1


def refer_to_itself(d: dict[str, Any]) -> None:
    d["nodes"][-1][2] = [len(d["nodes"]) - 1]


def unknown_argument(d: dict[str, Any]) -> None:
    _first(d["nodes"], "MUL")[3] = ["o", "os.system", "true"]


def other_format(d: dict[str, Any]) -> None:
    d["format"] = 99


def weights_elsewhere(d: dict[str, Any]) -> None:
    state = next(m for m in d["memories"] if m["kind"] == "state")
    state["digest"], d["weights"] = "00", "../../etc/shadow"


@pytest.mark.parametrize(
    "lie",
    [
        lie_about_size, lie_about_a_span, lie_about_an_input, lie_about_outputs, grow_a_parameter, drop_the_clamps,
        write_without_end, a_variable_without_a_name,
        name_a_file_as_memory, inline_source, name_with_source, refer_backwards, refer_to_itself, unknown_argument,
        other_format, weights_elsewhere,
    ],
)  # fmt: skip
def test_a_description_that_lies_is_refused(lie: Any, tmp_path: Path) -> None:
    path, _ = _program(tmp_path)
    d = _described(path)
    lie(d)
    _write(tmp_path / "lie", d, path)
    compiled = kernels.stats["compiled"]
    with pytest.raises(ProgramError, match=str(tmp_path / "lie")):
        aril.load_captured(tmp_path / "lie")
    assert kernels.stats["compiled"] == compiled


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[p for k, v in items for p in _places(v, (*path, k))]]


def test_random_changes_are_refused_or_harmless(tmp_path: Path) -> None:
    """Each change is one that a bounds check might miss. Programs that still load are run; nothing around their memory
    may change (canaries are every other tensor of this process: a wild write ends it)."""
    path, x = _program(tmp_path)
    original = json.dumps(_described(path))
    rng = random.Random(5)
    places = _places(json.loads(original))[1:]
    values = [0, 1, -1, 3, 7, 64, 1 << 31, 1 << 62, None, True, "x", [], {}, 0.5, "CPU", "float64", ["t", 1]]
    refused = 0
    for _ in range(150):
        d = json.loads(original)
        *above, last = rng.choice(places)
        thing = d
        for k in above:
            thing = thing[k]
        thing[last] = rng.choice(values)
        _write(tmp_path / "g", d, path)
        try:
            g = aril.load_captured(tmp_path / "g")
            g(x, Tensor([0, 5, 2]).realize())
        except (ProgramError, JitError):
            refused += 1
    assert refused > 75


def test_saving_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = _program(tmp_path)
    before = path.read_bytes()

    def fail(fd: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        saved(lambda x: (x + 1).realize(), path, x)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["f"]


def test_a_program_is_loaded_once_a_kernel_and_replayed(tmp_path: Path) -> None:
    x = Tensor(arange(4)).realize()
    f = saved(lambda x: (x.exp2() + x.sum()).realize(), tmp_path / "f", x)
    g = aril.load_captured(tmp_path / "f")
    counts = []
    for program in (f, g):
        before = GlobalCounters.kernels
        program(x)
        counts.append(GlobalCounters.kernels - before)
    assert counts[0] == counts[1]
    with pytest.raises(JitError, match="loaded program"), Context(JIT=0):
        g(x)
