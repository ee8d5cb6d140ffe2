"""Decompositions: operations and dtypes that a target lacks, in terms of those it has.

In comes kernel form after expansion (values are scalars or vectors), out goes the same form for the target. Missing
dtypes are `emulate.py`, functions with polynomials `transcendental.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from aril.codegen import transcendental as tr
from aril.codegen.emulate import emulate
from aril.codegen.transcendental import Arithmetic
from aril.dtype import DType, dtypes, strong
from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer
from aril.uop.composed import composed, operand_of
from aril.uop.node import UOp
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import RewriteError, rewrite


def decompose(sink: UOp, renderer: Renderer) -> UOp:
    """`sink` without operations and dtypes that the target lacks.

    before: STORE(a, EXP2(x))      FLOORDIV(i, 8)      ADD(x: bfloat16, y)
    after:  STORE(a, polynomial)   SHR(i, 3)           rounded(ADD(x: float32, y))
    """
    return lower_operations(emulate(sink, renderer), renderer)


def lower_operations(root: UOp, renderer: Renderer) -> UOp:
    """Only the operations. Replacements are lowered in turn, until the target has everything.

    Errors: NotImplementedError for a target that lacks an operation and those that would stand for it.
    """

    try:
        return rewrite(root, _OPERATIONS, renderer)
    except RewriteError as e:
        what = f"{e.node.op.name} on {e.node.src[0].dtype.name}"
        raise NotImplementedError(f"{renderer.name} has neither {what} nor what it is decomposed into") from None


def _lower(ctx: Renderer, u: UOp, old: UOp) -> UOp | None:
    """A step towards what the target has for an operation that it lacks; None where it has it."""
    kind = u.src[0].dtype if u.op in OpGroup.COMPARISON else u.dtype
    if kind.weak and kind.kind == "f":
        kind = strong(kind)
    if ctx.supports(u.op, kind) or (kind.weak and ctx.supports(u.op, dtypes.int64)):
        return None
    if kind.kind == "f":
        return _lower_float(u, kind, ctx, old)
    rule = _INTEGER.get(u.op) or _PLAIN.get(u.op)
    return None if rule is None else rule(u)


# ------------------------------------------------------------------------------------------------------- integers


def _not_negative(u: UOp) -> bool:
    return u.dtype.kind == "u" or u.vmin >= 0


def _power_of_two(u: UOp) -> int | None:
    """n where `u` is the constant 2**n."""
    if u.op is Ops.CONST and u.arg.__class__ is int and u.arg > 0 and u.arg & (u.arg - 1) == 0:
        return int(u.arg.bit_length()) - 1
    return None


def _bit_division(u: UOp) -> UOp | None:
    """Division of integers by 2**n as a shift or a mask, where the rounding is the same."""
    x, y = u.src
    n = _power_of_two(y)
    if n is None or u.dtype.kind not in "iu":
        return None
    if u.op in (Ops.CDIV, Ops.CMOD) and not _not_negative(x):
        return None
    if u.op in (Ops.CDIV, Ops.FLOORDIV):
        return UOp(Ops.SHR, (x, y.const_like(n)))
    return UOp(Ops.AND, (x, y.const_like(y.arg - 1)))


def _nonzero_constant(y: UOp) -> bool:
    return y.op is Ops.CONST and y.arg != 0


def _rounds_down(rest: UOp, y: UOp) -> UOp:
    """Where the truncated quotient of remainder `rest` is above the floor. Never for y = 0, whose remainder is 0."""
    if _nonzero_constant(y):
        zero = rest.const_like(0)
        return UOp(Ops.CMPLT, (rest, zero) if y.arg > 0 else (zero, rest))
    signs = [UOp(Ops.CMPLT, (v, v.const_like(0))) for v in (rest, y)]
    return UOp(Ops.AND, (UOp(Ops.CMPNE, (rest, rest.const_like(0))), UOp(Ops.CMPNE, tuple(signs))))


def _floor_division(u: UOp) -> UOp:
    """FLOORDIV and FLOORMOD of integers by the truncating ones."""
    x, y = u.src
    divide = u.op is Ops.FLOORDIV
    if _not_negative(x) and _not_negative(y):
        return UOp(Ops.CDIV if divide else Ops.CMOD, (x, y))
    quotient = UOp(Ops.CDIV, (x, y))
    if divide and _nonzero_constant(y):
        rest = UOp(Ops.SUB, (x, UOp(Ops.MUL, (quotient, y))))
    else:
        rest = UOp(Ops.CMOD, (x, y))
    down = _rounds_down(rest, y)
    if divide:
        return UOp(Ops.ADD, (quotient, UOp(Ops.WHERE, (down, u.const_like(-1), u.const_like(0)))))
    return UOp(Ops.ADD, (rest, UOp(Ops.WHERE, (down, y, u.const_like(0)))))


def _integer_power(u: UOp) -> UOp:
    """Powers of integers by squaring. A negative exponent truncates: 0, but for bases 1 and -1."""
    base, exponent = u.src
    one, zero = u.const_like(1), u.const_like(0)
    negative = None if _not_negative(exponent) else UOp(Ops.CMPLT, (exponent, zero))
    bits = u.dtype.bits
    if exponent.op is Ops.CONST:
        bits = max(int(exponent.arg).bit_length(), 1)
    elif not exponent.dtype.weak:
        high = exponent.vmax
        bits = min(bits, max(int(high).bit_length(), 1)) if high >= 0 else 1
    out, square, left = one, base, exponent
    for i in range(bits):
        odd = UOp(Ops.CMPNE, (UOp(Ops.AND, (left, one)), zero))
        out = UOp(Ops.WHERE, (odd, square if i == 0 else UOp(Ops.MUL, (out, square)), out))
        if i + 1 < bits:
            square, left = UOp(Ops.MUL, (square, square)), UOp(Ops.SHR, (left, one))
    if negative is None:
        return out
    odd = UOp(Ops.CMPNE, (UOp(Ops.AND, (exponent, one)), zero))
    minus = UOp(
        Ops.WHERE, (UOp(Ops.CMPEQ, (base, u.const_like(-1))), UOp(Ops.WHERE, (odd, u.const_like(-1), one)), zero)
    )
    unit = UOp(Ops.WHERE, (UOp(Ops.CMPEQ, (base, one)), one, minus))
    return UOp(Ops.WHERE, (negative, unit, out))


def threefry(u: UOp) -> UOp:
    """Threefry-2x32 of 20 rounds (Salmon et al., SC 2011) on the halves of uint64 counter and key."""
    a, u32, u64 = Arithmetic(), dtypes.uint32, dtypes.uint64
    (c0, c1), (k0, k1) = [(v.cast(u32), a.shr(v, 32).cast(u32)) for v in u.src]
    keys = (k0, k1, a.xor(a.xor(k0, k1), 0x1BD11BDA))
    x, y = a.add(c0, k0), a.add(c1, k1)
    for block in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x = a.add(x, y)
            y = a.xor(a.either(a.shl(y, r), a.shr(y, 32 - r)), x)
        x = a.add(x, keys[(block + 1) % 3])
        y = a.add(a.add(y, keys[(block + 2) % 3]), block + 1)
    return a.either(x.cast(u64), a.shl(y.cast(u64), 32))


# --------------------------------------------------------------------------------------------------- bool and plain


def _bool_operation(u: UOp) -> UOp:
    """Arithmetic on bool as logic: a sum is OR, a product AND, a difference XOR; the negative of a bool is itself."""
    if u.op is Ops.NEG or u.op is Ops.TRUNC:
        return u.src[0]
    if u.op is Ops.MULACC:
        return UOp(Ops.OR, (UOp(Ops.AND, u.src[:2]), u.src[2]))
    return UOp({Ops.ADD: Ops.OR, Ops.MAX: Ops.OR, Ops.MUL: Ops.AND, Ops.SUB: Ops.XOR}[u.op], u.src)


def _negate(u: UOp) -> UOp:
    return UOp(Ops.MUL, (u.src[0], u.const_like(-1)))


def _subtract(u: UOp) -> UOp:
    return UOp(Ops.ADD, (u.src[0], UOp(Ops.NEG, u.src[1:])))


def _multiply_add(u: UOp) -> UOp:
    return UOp(Ops.ADD, (UOp(Ops.MUL, u.src[:2]), u.src[2]))


def _maximum(u: UOp) -> UOp:
    x, y = u.src
    if u.dtype.kind != "f":
        return UOp(Ops.WHERE, (UOp(Ops.CMPLT, (x, y)), y, x))
    # of equal operands their sum is not used but for zeros, of which it is the positive one unless both are negative
    larger = UOp(Ops.WHERE, (UOp(Ops.CMPLT, (x, y)), y, x))
    zeros = UOp(Ops.AND, (UOp(Ops.CMPEQ, (x, y)), UOp(Ops.CMPEQ, (x, x.const_like(0.0)))))
    larger = UOp(Ops.WHERE, (zeros, UOp(Ops.ADD, (x, y)), larger))
    return UOp(Ops.WHERE, (UOp(Ops.CMPNE, (y, y)), y, larger))


def _equal(u: UOp) -> UOp:
    return UOp(Ops.XOR, (UOp(Ops.CMPNE, u.src), UOp.const(dtypes.bool, True)))


# ---------------------------------------------------------------------------------------------------------- floats


def _lower_float(u: UOp, kind: DType, renderer: Renderer, old: UOp) -> UOp | None:
    if u.op in _WIDE:
        if kind not in (dtypes.float32, dtypes.float64):
            return _through(u, dtypes.float32)
        u = UOp(u.op, tuple([s.cast(kind) if s.dtype is not kind else s for s in u.src]))
        return _WIDE[u.op](u, Arithmetic(renderer.supports(Ops.MULACC, kind)), old)
    rule = _FLOAT.get(u.op) or _PLAIN.get(u.op)
    return None if rule is None else rule(u)


def _through(u: UOp, wide: DType) -> UOp:
    """`u` computed in a wider float type."""
    x = operand_of(u)
    out = UOp(u.op, tuple([s.cast(wide) for s in u.src])) if x is None else composed(u.op, x.cast(wide))
    return out.cast(u.dtype)


def _exp2(u: UOp, a: Arithmetic, old: UOp) -> UOp:
    exponent = operand_of(u)
    return tr.exp2(u.src[0], a) if exponent is None else tr.exp(exponent, a)


def _sin(u: UOp, a: Arithmetic, old: UOp) -> UOp:
    angle = operand_of(u)
    return tr.sin(u.src[0], a) if angle is None else tr.cos(angle, a)


def _log2(u: UOp, a: Arithmetic, old: UOp) -> UOp:
    """`old` is `u` before its operands were lowered: what stands for an exponential does not tell that it is one."""
    x = operand_of(u)
    if x is None:
        return tr.log2(u.src[0], a)
    return tr.log2_of_fraction(x, a) if tr.is_fit(old) else tr.log2_of_next(x, u.src[0], a)


def _truncate(u: UOp) -> UOp:
    """Towards zero, by way of integers: beyond 2**mantissa every number is whole."""
    x = u.src[0]
    a = Arithmetic()
    wide = dtypes.int64 if x.dtype is dtypes.float64 else dtypes.int32
    limit = 2.0**x.dtype.mantissa
    inside = a.both(a.less(-limit, x), a.less(x, limit))
    whole = a.where(inside, x, 0.0).cast(wide).cast(x.dtype)
    signed = a.where(a.both(a.equal(whole, 0.0), a.less(x, 0.0)), -0.0, whole)
    return a.where(a.both(inside, a.differ(x, 0.0)), signed, x)


def _float_floor_division(u: UOp) -> UOp:
    """floor(x / y), and x - floor(x / y) * y."""
    x, y = u.src
    a = Arithmetic()
    quotient = a.op(Ops.FDIV, x, y)
    whole = a.op(Ops.TRUNC, quotient)
    if u.op in (Ops.FLOORDIV, Ops.FLOORMOD):
        whole = a.where(a.less(quotient, whole), a.sub(whole, 1.0), whole)
    return whole if u.op in (Ops.FLOORDIV, Ops.CDIV) else a.sub(x, a.mul(whole, y))


Rule = Callable[[UOp], "UOp | None"]
_INTEGER: dict[Ops, Rule] = {
    Ops.FLOORDIV: _floor_division,
    Ops.FLOORMOD: _floor_division,
    Ops.POW: _integer_power,
    Ops.THREEFRY: threefry,
    Ops.TRUNC: lambda u: u.src[0],
}
_FLOAT: dict[Ops, Rule] = {
    Ops.RECIPROCAL: lambda u: UOp(Ops.FDIV, (u.const_like(1.0), u.src[0])),
    Ops.TRUNC: _truncate,
    **dict.fromkeys((Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD), _float_floor_division),
}
_PLAIN: dict[Ops, Rule] = {
    Ops.NEG: _negate,
    Ops.SUB: _subtract,
    Ops.MULACC: _multiply_add,
    Ops.MAX: _maximum,
    Ops.CMPEQ: _equal,
}
_WIDE: dict[Ops, Callable[[UOp, Arithmetic, UOp], UOp]] = {
    Ops.EXP2: _exp2,
    Ops.LOG2: _log2,
    Ops.SIN: _sin,
    Ops.POW: lambda u, a, old: tr.power(u.src[0], u.src[1], a),
}

# The first two serve every target: shifts, masks and logic are never slower than what they stand for.
_OPERATIONS = Rules(
    [
        (Pat((Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD), name="u"), _bit_division),
        (
            Pat(
                (Ops.ADD, Ops.MAX, Ops.MUL, Ops.SUB, Ops.NEG, Ops.TRUNC, Ops.MULACC),
                dtype=dtypes.bool,
                name="u",
            ),
            _bool_operation,
        ),
        (Pat(OpGroup.ALU, name="u"), _lower),
    ],
    name="decompose",
)
