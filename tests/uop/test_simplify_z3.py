"""Proofs by z3: an expression of wrapping integers equals its simplified form for every value of its variables."""

import random

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp
from aril.uop.linear import const
from aril.uop.symbolic import simplify
from tests.uop.test_simplify_fuzz import condition

TRUE = z3.BoolVal(True)


def floor_div(a, b, signed):
    if not signed:
        return z3.UDiv(a, b)
    q = a / b  # truncates
    return z3.If(z3.And(z3.SRem(a, b) != 0, (a < 0) != (b < 0)), q - 1, q)


def floor_mod(a, b, signed):
    if not signed:
        return z3.URem(a, b)
    m = z3.SRem(a, b)
    return z3.If(z3.And(m != 0, (m < 0) != (b < 0)), m + b, m)


def to_z3(u, env, bits):
    """The bit-vector (or bool) term of a graph whose integers have `bits` bits."""
    done = {}
    for n in u.toposort():
        if n in env:
            done[n] = env[n]
            continue
        v = [done[s] for s in n.src]
        signed = n.src[0].dtype.kind != "u" if n.src else True
        bools = bool(n.src) and n.src[0].dtype is dtypes.bool
        match n.op:
            case Ops.CONST:
                r = z3.BoolVal(n.arg) if n.dtype is dtypes.bool else z3.BitVecVal(n.arg, bits)
            case Ops.ADD:
                r = v[0] + v[1]
            case Ops.SUB:
                r = v[0] - v[1]
            case Ops.MUL:
                r = v[0] * v[1]
            case Ops.NEG:
                r = -v[0]
            case Ops.MAX:
                r = z3.If(v[0] > v[1] if signed else z3.UGT(v[0], v[1]), v[0], v[1])
            case Ops.FLOORDIV:
                r = floor_div(v[0], v[1], signed)
            case Ops.FLOORMOD:
                r = floor_mod(v[0], v[1], signed)
            case Ops.CDIV:
                r = v[0] / v[1] if signed else z3.UDiv(v[0], v[1])
            case Ops.CMOD:
                r = z3.SRem(v[0], v[1]) if signed else z3.URem(v[0], v[1])
            case Ops.AND:
                r = z3.And(*v) if bools else v[0] & v[1]
            case Ops.OR:
                r = z3.Or(*v) if bools else v[0] | v[1]
            case Ops.XOR:
                r = z3.Xor(*v) if bools else v[0] ^ v[1]
            case Ops.CMPLT:
                r = z3.And(z3.Not(v[0]), v[1]) if bools else v[0] < v[1] if signed else z3.ULT(v[0], v[1])
            case Ops.CMPNE:
                r = v[0] != v[1]
            case Ops.CMPEQ:
                r = v[0] == v[1]
            case Ops.WHERE:
                r = z3.If(*v)
            case _:
                raise NotImplementedError(n.op)
        done[n] = r
    return done[u]


def small_expression(rng, leaves, depth, t):
    """Like the fuzzer's, of operations that a bit-blasting solver is quick about."""
    if depth == 0:
        return rng.choice(leaves) if rng.random() < 0.8 else const(rng.choice([1, 2, 3, 4, 6, 8]), t)
    x = small_expression(rng, leaves, depth - 1, t)
    kind = rng.randrange(8)
    if kind < 3:
        return UOp(Ops.ADD, (x, small_expression(rng, leaves, depth - 1, t)))
    if kind == 3:
        return UOp(Ops.MUL, (x, const(rng.choice([2, 3, 4, -1, 6]), t)))
    if kind < 7:
        return UOp(
            rng.choice([Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD]), (x, const(rng.choice([2, 3, 4, 6, 8]), t))
        )
    return UOp(
        Ops.WHERE,
        (UOp(Ops.CMPLT, (x, const(rng.choice([1, 3, 6]), t))), x, small_expression(rng, leaves, depth - 1, t)),
    )


def prove(u, leaves, bits):
    s = simplify(u)
    env, limits = {}, []
    for leaf in leaves:
        v = env[leaf] = z3.BitVec(leaf.arg.name, bits)
        low, high = leaf.bounds
        below, above = (z3.ULT, z3.UGT) if leaf.dtype.kind == "u" else (lambda x, y: x < y, lambda x, y: x > y)
        limits += [z3.Not(below(v, z3.BitVecVal(low, bits))), z3.Not(above(v, z3.BitVecVal(high, bits)))]
    solver = z3.Solver()
    solver.set("timeout", 2000)
    solver.add(*limits, to_z3(u, env, bits) != to_z3(s, env, bits))
    assert solver.check() != z3.sat, f"{solver.model()}\n{u!r}\nbecame\n{s!r}"


@pytest.mark.parametrize("t", [dtypes.int8, dtypes.uint8, dtypes.int16], ids=lambda t: t.name)
@settings(max_examples=100)
@given(seed=st.integers(0, 2**40))
def test_simplified_wrapping_integers_are_equal(t, seed):
    rng = random.Random(seed)
    wide = rng.random() < 0.5
    leaves = [UOp.variable(x, int(t.min) if wide else 0, int(t.max) if wide else 9, t) for x in "ab"]
    depth = rng.randint(1, 3)
    u = small_expression(rng, leaves, depth, t) if rng.random() < 0.6 else condition(rng, leaves, min(depth, 2), t)
    divisions = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
    zero = any(n.op in divisions and (n.src[1].op is not Ops.CONST or n.src[1].arg == 0) for n in u.toposort())
    if zero or any(n.op is Ops.CAST for n in u.toposort()):
        return  # bit-vectors of one width have neither
    prove(u, leaves, t.bits)
