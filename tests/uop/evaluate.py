"""A slow, obvious evaluator of integer and bool expressions: the reference that simplified graphs are compared with."""

from __future__ import annotations

from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.uop.node import UOp

INVALID = object()


def _wrap(v: int, t: DType) -> int:
    if t.weak or t.kind == "b":
        return v
    m = 1 << (8 * t.itemsize)
    v %= m
    return v - m if t.kind == "i" and v >= m // 2 else v


def _trunc(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _alu(op: Ops, v: list) -> object:
    a, b = v[0], v[1] if len(v) > 1 else None
    match op:
        case Ops.ADD:
            return a + b
        case Ops.SUB:
            return a - b
        case Ops.MUL:
            return a * b
        case Ops.NEG:
            return -a
        case Ops.MAX:
            return a if a > b else b
        case Ops.FLOORDIV:
            return a // b if b else 0
        case Ops.FLOORMOD:
            return a % b if b else 0
        case Ops.CDIV:
            return _trunc(a, b) if b else 0
        case Ops.CMOD:
            return a - b * _trunc(a, b) if b else 0
        case Ops.SHL:
            return a << b
        case Ops.SHR:
            return a >> b
        case Ops.AND:
            return a & b
        case Ops.OR:
            return a | b
        case Ops.XOR:
            return a ^ b
        case Ops.CMPLT:
            return a < b
        case Ops.CMPNE:
            return a != b
        case Ops.CMPEQ:
            return a == b
    raise NotImplementedError(op)  # fmt: skip


def evaluate(u: UOp, env: dict[UOp, int]) -> object:
    """The value of `u` with the leaves in `env`; INVALID where it has none."""
    done: dict[UOp, object] = dict(env)
    for n in u.toposort():
        if n in done:
            continue
        v = [done[s] for s in n.src]
        if n.op is Ops.CONST:
            done[n] = n.arg
        elif n.op is Ops.Invalid:
            done[n] = INVALID
        elif n.op is Ops.WHERE:
            done[n] = INVALID if v[0] is INVALID else v[1] if v[0] else v[2]
        elif n.op is Ops.PARAM and n.arg.size is not None:
            done[n] = [(7 * i + 3) % 23 - 4 for i in range(n.arg.size)]
        elif n.op is Ops.INDEX:
            done[n] = INVALID if v[1] is INVALID else (v[0], v[1])
        elif n.op is Ops.LOAD:
            if v[0] is INVALID:
                done[n] = v[1]
            else:
                memory, i = v[0]
                assert 0 <= i < len(memory), f"a load at {i} of {len(memory)} elements"
                done[n] = memory[i]
        elif n.op is Ops.RANGE:
            done[n] = 0  # a loop of length 1, or one the environment leaves out
        elif any(x is INVALID for x in v):
            done[n] = INVALID
        elif n.op is Ops.CAST:
            done[n] = bool(v[0]) if n.dtype is dtypes.bool else _wrap(int(v[0]), n.dtype)
        else:
            t = n.dtype
            if t is dtypes.bool and n.src[0].dtype is not dtypes.bool:
                a, b = n.src[0].dtype, n.src[1].dtype
                t = b if a.weak else a
            if t.kind in "iu":
                v = [_wrap(int(x), t) for x in v]
            r = _alu(n.op, v)
            done[n] = r if n.dtype is dtypes.bool else _wrap(r, n.dtype)
    return done[u]
