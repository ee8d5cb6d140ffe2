"""Captured functions whose arguments share memory with each other, with what they reach, with their results."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aril import Tensor, jit
from aril.device import GlobalCounters
from aril.jit import JitError


def tensor(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32)).realize()


W = tensor(1, 2)  # reached as a global


def test_an_argument_that_is_also_reached_by_closure_and_written_there() -> None:
    w = tensor(1, 2)

    @jit
    def f(x: Tensor) -> Tensor:
        y = x * 10
        w.assign(w + 1)
        return y + x

    for i in range(1, 6):
        assert f(w).tolist() == [10 * i + i + 1, 10 * (i + 1) + i + 2]  # x is w: it has changed
    assert f(tensor(1, 1)).tolist() == [11, 11]
    assert f(w).tolist() == [7 * 10 + 8, 8 * 10 + 9]
    assert w.tolist() == [8, 9]


def test_an_argument_that_is_also_an_attribute_a_global_an_item_a_default() -> None:
    class Model:
        def __init__(self) -> None:
            self.cache = [tensor(0, 0)]
            self.more = {"total": tensor(0, 0)}

        @jit
        def add(self, x: Tensor) -> Tensor:
            self.cache[0].assign(self.cache[0] + x + 1)
            self.more["total"].assign(self.more["total"] + x)
            return x.sum()

    m = Model()
    expected = np.zeros(2), np.zeros(2)
    for i in range(8):
        k = i % 3
        given = [m.cache[0], m.more["total"], tensor(i, 1)][k]
        x = [*expected, np.array([i, 1.0])][k]
        expected[0][:] = expected[0] + x + 1
        expected[1][:] = expected[1] + x
        assert m.add(given).item() == x.sum()
        np.testing.assert_array_equal(m.cache[0].numpy(), expected[0])
        np.testing.assert_array_equal(m.more["total"].numpy(), expected[1])

    before = W.numpy()

    @jit
    def g(x: Tensor, y: Tensor = m.cache[0]) -> Tensor:
        W.assign(W + 1)
        y.assign(y + x)
        return x + y

    last = m.cache[0].numpy()
    for _ in range(4):
        before, last = before + 1, last + before + 1
        assert g(W).tolist() == (before + last).tolist()


def test_one_tensor_as_two_arguments_one_of_them_written() -> None:
    @jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x + 1)
        return x + y

    a, b = tensor(1, 1), tensor(5, 5)
    for i in range(3):
        assert f(a, b).tolist() == [i + 7, i + 7]
    assert f(a, a).tolist() == [10, 10] and a.tolist() == [5, 5]
    assert f(b, a).tolist() == [11, 11]
    assert f(b, b).tolist() == [14, 14]
    assert f(a, b).tolist() == [13, 13]


def test_accumulating_into_an_argument() -> None:
    @jit
    def f(x: Tensor, total: Tensor) -> Tensor:
        total.assign(total + x)
        return total

    total = tensor(0, 0)
    for i in range(5):
        assert f(tensor(i, 1), total).tolist() == total.tolist() == [i * (i + 1) / 2, i + 1]
    assert f(total, total).tolist() == [20, 10]


def test_a_shift_buffer_that_is_passed_in() -> None:
    @jit
    def push(history: Tensor, x: Tensor) -> Tensor:
        history.assign(history[1:].cat(x))
        return history

    history = tensor(0, 0, 0, 0)
    expected = [0.0] * 4
    for i in range(6):
        expected = [*expected[1:], i]
        assert push(history, tensor(i)).tolist() == history.tolist() == expected
    assert push(history, history[0:1]).tolist() == [3, 4, 5, 2]
    assert push(history, history[1:2]).tolist() == [4, 5, 2, 4]


def test_ping_pong_in_place() -> None:
    @jit
    def step(new: Tensor, old: Tensor) -> None:
        new.assign(old.flip(0) + 1)

    a, b = tensor(1, 2, 3), tensor(0, 0, 0)
    expected = [np.array([1.0, 2, 3]), np.zeros(3)]
    for _ in range(7):
        step(b, a)
        expected = [expected[0][::-1] + 1, expected[0]]
        a, b = b, a
        assert a.tolist() == expected[0].tolist() and b.tolist() == expected[1].tolist()
    step(a, a)
    assert a.tolist() == (expected[0][::-1] + 1).tolist()


def test_views_as_arguments_stay_views() -> None:
    base = Tensor(np.arange(6, dtype=np.float32).reshape(3, 2)).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        x.assign(x * 2)
        return x.sum()

    column, row = base[:, 1], base[1]
    for _ in range(3):
        f(column)
    assert base.tolist() == [[0, 8], [2, 24], [4, 40]] and column.tolist() == [8, 24, 40] and row.tolist() == [2, 24]
    assert f(base[:, 0]).item() == 12 and base[:, 0].tolist() == [0, 4, 8]
    base.assign(base + 1).realize()
    assert column.tolist() == [9, 25, 41]


def test_two_views_of_one_memory() -> None:
    base = tensor(1, 2, 3, 4)

    @jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.assign(y + 10)
        return x + y

    assert f(base[0:2], base[2:4]).tolist() == [16, 18]
    assert f(base[0:2], base[2:4]).tolist() == [16, 18]
    for _ in range(2):
        base.assign(tensor(1, 2, 3, 4)).realize()
        assert f(base[0:2], base[1:3]).tolist() == [25, 16]  # y's first element is x's second
        assert base.tolist() == [12, 13, 3, 4]
    a = tensor(0, 0)
    assert f(a, base[2:4]).tolist() == [16, 18] and a.tolist() == [13, 14]


def test_buffers_that_overlap_in_part_are_refused() -> None:
    memory = np.zeros(6, np.float32)

    @jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x + 1)
        return x + y

    other = [Tensor.from_blob(memory.ctypes.data + 8 * i, (2,), "float32", owner=memory) for i in range(3)]
    for _ in range(3):
        f(other[0], other[1])
    assert memory.tolist() == [3, 3, 0, 0, 0, 0]
    crossing = Tensor.from_blob(memory.ctypes.data + 4, (2,), "float32", owner=memory)
    with pytest.raises(JitError, match=r"memory of [xy] by another name .* clone"):
        f(other[0], crossing)


def test_too_many_ways_to_share_are_refused() -> None:
    base = tensor(*range(40))

    @jit
    def f(x: Tensor) -> None:
        base.assign(base + x.sum())

    f(tensor(0, 0))
    f(tensor(0, 0))
    with pytest.raises(JitError, match="more than 8 ways"):
        for i in range(20):
            f(base[i : i + 2])


def test_work_that_depends_on_no_argument_can_be_pruned() -> None:
    w = tensor(1, 2)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        table = (w.exp2() * 3).contiguous().realize()
        w2 = (table + 1).contiguous().realize()
        return (x + w2).realize(), (w2 * 2).realize()

    def kernels(f: Any) -> int:
        before = GlobalCounters.kernels
        y, z = f(tensor(1, 1))
        assert y.tolist() == [8, 14] and z.tolist() == [14, 26]
        return GlobalCounters.kernels - before

    plain, pruned = jit(f), jit(prune=True)(f)
    for g in (plain, pruned):
        for _ in range(2):
            g(tensor(1, 1))
    assert (kernels(plain), kernels(pruned)) == (4, 2)
    w.assign(w + 1).realize()
    assert pruned(tensor(1, 1))[0].tolist() == [8, 14]  # as it was at the capture
    assert plain(tensor(1, 1))[0].tolist() == [14, 26]

    total = tensor(0, 0)

    @jit(prune=True)
    def g(x: Tensor) -> Tensor:
        total.assign(total + 1)  # depends on what the batch writes
        return (x + (total * 2).contiguous().realize()).realize()

    for i in range(5):
        assert g(tensor(0, 0)).tolist() == [2 * (i + 1)] * 2


# --- random programs ---

NAMES = ("a", "b", "w", "q")
Statement = tuple[Any, ...]


def random_program(rng: random.Random) -> list[Statement]:
    """Statements over arguments a and b, what is reached (w, q), and local values."""
    out: list[Statement] = []
    known = list(NAMES)

    def operand() -> tuple[str, bool]:
        return rng.choice(known), rng.random() < 0.3

    for i in range(rng.randint(2, 6)):
        kind = rng.choice(["let", "assign", "assign", "part", "realize"])
        if kind == "let":
            out.append(("let", f"t{i}", rng.choice("+-m"), operand(), operand()))
            known.append(f"t{i}")
        elif kind == "realize" and len(known) > len(NAMES):
            out.append(("realize", rng.choice(known[len(NAMES) :])))
        elif kind == "part":
            out.append(("part", rng.choice(NAMES), rng.randint(0, 2), operand()))
        elif kind == "assign":
            out.append(("assign", rng.choice(NAMES), rng.choice("+-m"), operand(), operand()))
    out.append(("return", [rng.choice(known) for _ in range(2)]))
    return out


def run_program(program: list[Statement], space: dict[str, Any], lib: Any) -> list[Any]:
    """By `lib`: how to combine, to flip, to write into, to compute at once."""

    def value(operand: tuple[str, bool]) -> Any:
        return lib.flip(space[operand[0]]) if operand[1] else space[operand[0]]

    for kind, *rest in program:
        if kind == "let":
            name, op, x, y = rest
            space[name] = lib.combine(op, value(x), value(y))
        elif kind == "assign":
            name, op, x, y = rest
            lib.write(space[name], lib.combine(op, value(x), value(y)))
        elif kind == "part":
            name, at, x = rest
            lib.write(space[name][at : at + 2], value(x)[0:2])
        elif kind == "realize":
            space[rest[0]] = lib.realize(space[rest[0]])
        else:
            return [lib.combine("+", space[n], space[n]) for n in rest[0]]
    raise AssertionError("a program returns")


class Numpy:
    combine = staticmethod(lambda op, x, y: x + y if op == "+" else x - y if op == "-" else np.maximum(x, y))
    flip = staticmethod(lambda x: x[::-1])
    realize = staticmethod(lambda x: x)

    @staticmethod
    def write(x: Any, value: Any) -> None:
        x[...] = value.copy()


class Aril:
    combine = staticmethod(lambda op, x, y: x + y if op == "+" else x - y if op == "-" else x.maximum(y))
    flip = staticmethod(lambda x: x.flip(0))
    realize = staticmethod(lambda x: x.realize())

    @staticmethod
    def write(x: Any, value: Any) -> None:
        x.assign(value)


# What a call may pass for a and b, of memory w (4), q (8) and p (4).
PASSED: list[Callable[[dict[str, Any]], Any]] = [
    lambda m: m["p"],
    lambda m: m["w"],
    lambda m: m["q"][0:4],
    lambda m: m["q"][2:6],
    lambda m: m["q"][4:8],
    lambda m: m["q"][::2],
    lambda m: m["r"],
]


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_do_what_numpy_does(seed: int) -> None:
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    for _ in range(4):
        program = random_program(rng)
        start = {n: numbers.integers(-9, 9, 8 if n == "q" else 4).astype(np.float32) for n in ("p", "w", "q", "r")}
        arrays = {n: v.copy() for n, v in start.items()}
        tensors = {n: Tensor(v).realize() for n, v in start.items()}
        q = tensors["q"][1:5]

        @jit
        def f(a: Tensor, b: Tensor, program: Any = program, w: Tensor = tensors["w"], q: Tensor = q) -> Any:
            return run_program(program, {"a": a, "b": b, "w": w, "q": q}, Aril)

        calls = [(0, 6)] * 3 + [(rng.randrange(7), rng.randrange(7)) for _ in range(4)] + [(0, 6)]
        for which in calls:
            x, y = [PASSED[k](arrays) for k in which]
            expected = run_program(program, {"a": x, "b": y, "w": arrays["w"], "q": arrays["q"][1:5]}, Numpy)
            found = f(*[PASSED[k](tensors) for k in which])
            for e, t in zip(expected, found, strict=True):
                np.testing.assert_array_equal(t.numpy(), e, err_msg=f"{program} {which}")
            for n, a in arrays.items():
                np.testing.assert_array_equal(tensors[n].numpy(), a, err_msg=f"{n} {program} {which}")


def test_results_in_storage_that_the_function_made_are_fresh_at_every_call() -> None:
    def changed(x: Tensor) -> Tensor:
        y = x + 1
        y[0] = 5
        return y

    def padded(x: Tensor) -> Tensor:
        y = Tensor.zeros(3)
        y[:2] = x
        return y

    for function, expected in (
        (lambda x: x.clone(), lambda v: [v, v]),
        (changed, lambda v: [5, v + 1]),
        (padded, lambda v: [v, v, 0]),
    ):
        f = jit(function)
        kept = [f(tensor(v, v)) for v in range(5)]
        assert [t.tolist() for t in kept] == [expected(v) for v in range(5)]


def test_results_computed_alike_are_apart() -> None:
    s = tensor(1, 2)
    f = jit(lambda x: (x.sum() + s, x.sum() + s))
    for i in range(5):
        a, b = f(tensor(i, 1))
        b.assign(b * 0)
        assert a.tolist() == [i + 2, i + 3] and b.tolist() == [0, 0]
