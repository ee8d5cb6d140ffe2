"""Random programs of views, assignments, reads and realizations, compared with NumPy doing the same at once.

Elements are int32, so every order of effects but the right one shows exactly.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from aril import Tensor

SIDE = 4


class Program:
    """Tensors beside the arrays they should equal: `views` of memory that is written, `values` that were computed."""

    def __init__(self) -> None:
        self.views: list[tuple[Tensor, np.ndarray]] = []
        self.values: list[tuple[Tensor, np.ndarray]] = []
        self.log: list[str] = []

    def check(self) -> None:
        for t, a in [*self.views, *self.values]:
            np.testing.assert_array_equal(t.numpy(), a, err_msg="\n" + "\n".join(self.log))


def new_view(rnd: Random, t: Any, a: Any) -> tuple[Any, Any, str]:
    """A view of both, and how it was made."""
    kind = rnd.choice(["slice", "step", "flip", "transpose", "reshape", "row", "negative step"])
    n = a.shape[0] if a.ndim else 0
    if kind == "transpose" and a.ndim == 2:
        return t.permute(1, 0), a.T, "T"
    if kind == "flip" and a.ndim:
        return t.flip(0), a[::-1], "flip"
    if kind == "reshape" and a.ndim == 2 and a.flags.c_contiguous:
        return t.reshape(a.size), a.reshape(-1), "flatten"
    if kind == "row" and a.ndim == 2:
        i = rnd.randint(0, n - 1)
        return t[i], a[i], f"[{i}]"
    if kind == "step" and n >= 4:
        return t[::2], a[::2], "[::2]"
    if kind == "negative step" and n >= 4:
        return t[::-2], a[::-2], "[::-2]"
    if n < 2:
        return t, a, ""
    start = rnd.randint(0, n - 2)
    stop = rnd.randint(start + 1, n)
    return t[start:stop], a[start:stop], f"[{start}:{stop}]"


def expression(rnd: Random, p: Program, shape: tuple[int, ...]) -> tuple[Any, Any, str]:
    """A value of this shape computed from what there is, and how."""
    fitting = [(i, t, a) for i, (t, a) in enumerate([*p.views, *p.values]) if a.shape == shape]
    others = [(i, t, a) for i, (t, a) in enumerate([*p.views, *p.values]) if a.size]
    out_t: Any = rnd.randint(-3, 3)
    out_a: Any = np.int32(out_t)
    text = str(out_t)
    for _ in range(rnd.randint(1, 3)):
        kind = rnd.choice(["add", "mul", "flip", "sum", "roll", "max", "axis"])
        if fitting and kind in ("add", "mul", "flip", "roll"):
            i, t, a = rnd.choice(fitting)
            if kind == "add":
                out_t, out_a, text = out_t + t, out_a + a, f"({text} + #{i})"
            elif kind == "mul":
                out_t, out_a, text = out_t * t, out_a * a, f"({text} * #{i})"
            elif kind == "flip":
                axis = rnd.randint(0, a.ndim - 1) if a.ndim else None
                if axis is not None:
                    out_t, out_a, text = (
                        out_t + t.flip(axis),
                        out_a + np.flip(a, axis),
                        f"({text} + flip(#{i}, {axis}))",
                    )
            elif a.ndim and a.shape[0] > 1:
                out_t = out_t + t[1:].cat(t[:1])
                out_a, text = out_a + np.roll(a, -1, 0), f"({text} + roll(#{i}))"
        elif others:
            i, t, a = rnd.choice(others)
            if kind == "axis" and a.ndim == 2 and shape and a.shape[1] == shape[-1]:
                out_t, out_a, text = out_t + t.sum(0), out_a + a.sum(0, dtype=np.int32), f"({text} + sum(#{i}, 0))"
            elif kind == "max":
                out_t, out_a, text = out_t + t.max(), out_a + a.max(), f"({text} + max(#{i}))"
            else:
                out_t, out_a, text = out_t - t.sum(), out_a - a.sum(dtype=np.int32), f"({text} - sum(#{i}))"
    if not isinstance(out_t, Tensor):
        out_t = Tensor(out_t, dtype="int32")
    return out_t, np.broadcast_to(out_a, shape).astype(np.int32).copy() if out_a.shape != shape else out_a.copy(), text


def step(rnd: Random, p: Program) -> None:
    kind = rnd.choice(
        [
            "view",
            "value",
            "assign",
            "assign",
            "setitem",
            "setitem",
            "add",
            "realize",
            "read",
            "self",
            "pick",
            "mask",
            "drop",
            "adopt",
        ]
    )
    everything = [*p.views, *p.values]
    if kind == "view":
        i = rnd.randint(0, len(p.views) - 1)
        t, a, text = new_view(rnd, *p.views[i])
        p.log.append(f"#v{len(p.views)} = #{i}{text}")
        p.views.append((t, a))
    elif kind == "value":
        shape = rnd.choice([a.shape for _, a in everything])
        t, a, text = expression(rnd, p, shape)
        t = t._broadcast_to(shape) if t.shape != shape else t
        p.log.append(f"value {len(p.values)}: {text}")
        p.values.append((t, a))
    elif kind == "adopt" and p.values:  # a computed value that is written to is memory of its own
        i = rnd.randint(0, len(p.values) - 1)
        t, a = p.values.pop(i)
        p.log.append(f"value {i} *= 2, now a view")
        t.assign(t * 2)
        p.views.append((t, a * np.int32(2)))
    elif kind == "realize":
        chosen = [rnd.randrange(len(everything)) for _ in range(rnd.randint(1, 3))]
        p.log.append(f"realize {chosen}")
        everything[chosen[0]][0].realize(*[everything[c][0] for c in chosen[1:]])
    elif kind == "read":
        i = rnd.randint(0, len(everything) - 1)
        p.log.append(f"read {i}")
        np.testing.assert_array_equal(everything[i][0].numpy(), everything[i][1], err_msg="\n" + "\n".join(p.log))
    elif kind == "drop" and p.values:
        i = rnd.randint(0, len(p.values) - 1)
        p.log.append(f"drop value {i}")
        del p.values[i]
    else:
        i = rnd.randint(0, len(p.views) - 1)
        t, a = p.views[i]
        if kind == "self":
            p.log.append(f"#{i}.assign(#{i})")
            t.assign(t)
        elif kind == "assign":
            vt, va, text = expression(rnd, p, a.shape)
            p.log.append(f"#{i} <- {text}")
            t.assign(vt)
            a[...] = va
        elif kind == "add":
            vt, va, text = expression(rnd, p, a.shape)
            p.log.append(f"#{i} += {text}")
            t.assign(t + vt)
            a += va

        elif kind == "setitem" and a.ndim:
            start = rnd.randint(0, a.shape[0] - 1)
            stop = rnd.randint(start + 1, a.shape[0])
            forward = rnd.random() < 0.5
            key = slice(start, stop) if forward else slice(stop - 1, start - 1 if start else None, -1)
            vt, va, text = expression(rnd, p, a[key].shape)
            p.log.append(f"#{i}[{key}] = {text}")
            t[key] = vt
            a[key] = va
        elif kind == "pick" and a.ndim:
            n = a.shape[0]
            picks = rnd.sample(range(n), rnd.randint(1, min(3, n)))
            vt, va, text = expression(rnd, p, a[picks].shape)
            p.log.append(f"#{i}[{picks}] = {text}")
            t[picks] = vt
            a[picks] = va
        elif kind == "mask" and a.ndim:
            vt, va, text = expression(rnd, p, ())
            if vt.shape == ():
                p.log.append(f"#{i}[#{i} > 0] = {text}")
                t[t > 0] = vt
                a[a > 0] = va


def random_program(seed: int) -> None:
    """Run the program that grows from `seed`, then compare everything."""
    rnd = Random(seed)
    p = Program()
    for k in range(rnd.randint(1, 2)):
        a = np.arange(SIDE * SIDE, dtype=np.int32).reshape(SIDE, SIDE) + 100 * k
        p.views.append((Tensor(a), a.copy()))
    for _ in range(rnd.randint(2, 10)):
        step(rnd, p)
    p.check()


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_agree_with_numpy(seed: int) -> None:
    """Whatever the order of views, writes, reads and realizations, every tensor holds what NumPy's array holds."""
    random_program(seed)
