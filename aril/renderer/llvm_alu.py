"""Arithmetic of the LLVM renderer: types, constants, elementwise nodes and casts as LLVM IR.

In come nodes and the names of their operands, all of one lane count; out go instructions, through the `Emit` of the
kernel. Floats keep IEEE 754 semantics (NaN, infinities, signed zero); nothing here is undefined: divisions, shifts and
conversions have a result for every operand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from aril.dtype import DType, PyScalar, dtypes
from aril.ops import Ops
from aril.renderer.base import RenderError
from aril.uop.node import UOp

_FLOAT_TYPES = {dtypes.float16: "half", dtypes.bfloat16: "bfloat", dtypes.float32: "float", dtypes.float64: "double"}


class Emit(Protocol):
    """What arithmetic needs of the kernel being written."""

    def value(self, text: str) -> str:
        """Write `name = text`; returns the name."""
        ...

    def call(self, intrinsic: str, result: str, args: list[tuple[str, str]], flags: str = "") -> str:
        """Write a call of `llvm.<intrinsic>` with (type, operand) pairs; returns the result's name."""
        ...


def scalar_type(dtype: DType) -> str:
    """The type in registers: i1 for bool, iN, float names. Errors: RenderError for types LLVM does not compute with."""
    if dtype.weak or dtype.kind == "v":
        raise RenderError(
            f"a value of {dtype.name} reached the renderer: types must be concrete (see codegen/typing.py)"
        )
    found = _FLOAT_TYPES.get(dtype)
    if found is not None:
        return found
    if dtype.kind == "f":
        raise RenderError(f"LLVM has no {dtype.name}: it must be emulated before rendering")
    return f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """The type in memory: a bool is a byte."""
    return "i8" if dtype.kind == "b" else scalar_type(dtype)


def vectorized(scalar: str, lanes: int) -> str:
    """`scalar`, or a vector of `lanes` of it (0: a scalar)."""
    return f"<{lanes} x {scalar}>" if lanes else scalar


def suffix(type_: str) -> str:
    """A type as overloaded intrinsics spell it: f32, v8f32, i64, p0."""
    if type_.startswith("<"):
        lanes, _, scalar = type_[1:-1].partition(" x ")
        return f"v{lanes}{suffix(scalar)}"
    return {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}.get(type_, type_)


def literal(value: PyScalar, dtype: DType) -> str:
    """A scalar constant as text. Floats are written by their bits, so every value arrives exactly."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind != "f":
        return str(int(value))
    if dtype is dtypes.float16:
        return "0xH" + struct.pack(">e", value).hex().upper()
    if dtype is dtypes.bfloat16:
        return "0xR" + struct.pack(">f", value)[:2].hex().upper()
    if dtype is dtypes.float32 and value == value:  # a double that float32 holds exactly
        value = struct.unpack("f", struct.pack("f", value))[0]
    return "0x" + struct.pack(">d", value).hex().upper()


def splat(value: PyScalar, dtype: DType, lanes: int) -> str:
    """A constant in every lane."""
    text = literal(value, dtype)
    return f"splat ({scalar_type(dtype)} {text})" if lanes else text


_FLOAT_BINARY = {Ops.ADD: "fadd", Ops.SUB: "fsub", Ops.MUL: "fmul", Ops.FDIV: "fdiv"}
_INT_BINARY = {Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", Ops.AND: "and", Ops.OR: "or", Ops.XOR: "xor"}
_BOOL_BINARY = {
    Ops.ADD: "or", Ops.MAX: "or", Ops.OR: "or", Ops.MUL: "and", Ops.AND: "and", Ops.SUB: "xor", Ops.XOR: "xor",
}  # fmt: skip
_COMPARE = {
    "f": {Ops.CMPLT: "fcmp olt", Ops.CMPNE: "fcmp une", Ops.CMPEQ: "fcmp oeq"},
    "i": {Ops.CMPLT: "icmp slt", Ops.CMPNE: "icmp ne", Ops.CMPEQ: "icmp eq"},
    "u": {Ops.CMPLT: "icmp ult", Ops.CMPNE: "icmp ne", Ops.CMPEQ: "icmp eq"},
    "b": {Ops.CMPLT: "icmp ult", Ops.CMPNE: "icmp ne", Ops.CMPEQ: "icmp eq"},
}


def render_alu(e: Emit, u: UOp, src: list[str], lanes: int) -> str:
    """One elementwise node. `src` are its operands with `lanes` lanes each (a scalar condition of WHERE may stay one).

    Errors: RenderError for operations that must be decomposed first.
    """
    op, dtype = u.op, u.dtype
    if op in _COMPARE["f"]:
        kind = u.src[0].dtype
        return e.value(f"{_COMPARE[kind.kind][op]} {vectorized(scalar_type(kind), lanes)} {src[0]}, {src[1]}")
    t = vectorized(scalar_type(dtype), lanes)
    if op is Ops.WHERE:
        cond = vectorized("i1", lanes if u.src[0].shape else 0)
        return e.value(f"select {cond} {src[0]}, {t} {src[1]}, {t} {src[2]}")
    if dtype.kind == "f":
        text = _FLOAT_BINARY.get(op)
        if text is not None:
            if op is Ops.FDIV and lanes and not any(s.op is Ops.CONST for s in u.src):
                # LLVM 22 takes lanes that are known to be 0 / 0 for 0 where a select follows; they are NaN
                src = [src[0], e.call("arithmetic.fence", t, [(t, src[1])])]
            return e.value(f"{text} {t} {src[0]}, {src[1]}")
        found = _FLOAT_OTHER.get(op)
        if found is not None:
            return found(e, dtype, t, src, lanes)
    else:
        text = (_BOOL_BINARY if dtype.kind == "b" else _INT_BINARY).get(op)
        if text is not None:
            return e.value(f"{text} {t} {src[0]}, {src[1]}")
        if op is Ops.MAX:
            return e.call("umax" if dtype.kind == "u" else "smax", t, [(t, src[0]), (t, src[1])])
        if op in (Ops.CDIV, Ops.CMOD):
            return _divide(e, u, t, src, lanes)
        if op in (Ops.SHL, Ops.SHR):
            return _shift(e, u, t, src, lanes)
        if op is Ops.NEG:
            return e.value(
                f"xor {t} {src[0]}, {splat(True, dtype, lanes)}"
                if dtype.kind == "b"
                else f"sub {t} {splat(0, dtype, lanes)}, {src[0]}"
            )
        if op is Ops.MULACC:
            product = e.value(f"mul {t} {src[0]}, {src[1]}")
            return e.value(f"add {t} {product}, {src[2]}")
        if op is Ops.TRUNC:
            return src[0]
    raise RenderError(f"LLVM has no {op} on {dtype.name}: decompose it before rendering (see codegen/decompose.py)")


def _float_call(name: str, flags: str = "") -> Callable[[Emit, DType, str, list[str], int], str]:
    return lambda e, dtype, t, src, lanes: e.call(name, t, [(t, s) for s in src], flags)


_FLOAT_OTHER: dict[Ops, Callable[[Emit, DType, str, list[str], int], str]] = {
    # NumPy leaves the sign of max(0., -0.) open; nsz spares x86 the instructions that order them
    Ops.MAX: _float_call("maximum", "nsz"),
    Ops.MULACC: _float_call("fma"),
    Ops.SQRT: _float_call("sqrt"),
    Ops.TRUNC: _float_call("trunc"),
    Ops.NEG: lambda e, dtype, t, src, lanes: e.value(f"fneg {t} {src[0]}"),
    Ops.RECIPROCAL: lambda e, dtype, t, src, lanes: e.value(f"fdiv {t} {splat(1.0, dtype, lanes)}, {src[0]}"),
}


def _divide(e: Emit, u: UOp, t: str, src: list[str], lanes: int) -> str:
    """Truncating division and remainder. x/0 is 0 as in NumPy, x%0 is 0; the least integer over -1 wraps to itself."""
    dtype, quotient = u.dtype, u.op is Ops.CDIV
    if dtype.kind == "b":
        raise RenderError(f"{u.op} of bools: cast to an integer first")
    (low, high), (least, _) = u.src[1].bounds, u.src[0].bounds
    signed = dtype.kind == "i" and not (low >= 0 and least >= 0)
    name = ("s" if signed else "u") + ("div" if quotient else "rem")
    zero, one = splat(0, dtype, lanes), splat(1, dtype, lanes)
    may_be_zero = low <= 0 <= high
    may_overflow = signed and low <= -1 <= high and least <= dtype.min
    if not (may_be_zero or may_overflow):
        return e.value(f"{name} {t} {src[0]}, {src[1]}")
    mask = vectorized("i1", lanes)
    bad = is_zero = e.value(f"icmp eq {t} {src[1]}, {zero}")
    if may_overflow:
        minus = e.value(f"icmp eq {t} {src[1]}, {splat(-1, dtype, lanes)}")
        lowest = e.value(f"icmp eq {t} {src[0]}, {splat(dtype.min, dtype, lanes)}")
        overflow = e.value(f"and {mask} {minus}, {lowest}")
        bad = e.value(f"or {mask} {is_zero}, {overflow}")
    safe = e.value(f"select {mask} {bad}, {t} {one}, {t} {src[1]}")
    out = e.value(f"{name} {t} {src[0]}, {safe}")
    return e.value(f"select {mask} {is_zero}, {t} {zero}, {t} {out}") if quotient else out


def _shift(e: Emit, u: UOp, t: str, src: list[str], lanes: int) -> str:
    """Shifts by the width or more shift everything out: 0, or copies of the sign."""
    dtype = u.dtype
    if dtype.kind == "b":
        raise RenderError(f"{u.op} of bools: cast to an integer first")
    bits, count = dtype.bits, src[1]
    low, high = u.src[1].bounds
    inside = low >= 0 and high < bits
    if u.op is Ops.SHR and dtype.kind == "i":
        if not inside:
            count = e.call("umin", t, [(t, count), (t, splat(bits - 1, dtype, lanes))])
        return e.value(f"ashr {t} {src[0]}, {count}")
    name = "shl" if u.op is Ops.SHL else "lshr"
    if inside:
        return e.value(f"{name} {t} {src[0]}, {count}")
    fits = e.value(f"icmp ult {t} {count}, {splat(bits, dtype, lanes)}")
    # a freeze is not needed: select does not look at the operand it does not take
    out = e.value(f"{name} {t} {src[0]}, {count}")
    return e.value(f"select {vectorized('i1', lanes)} {fits}, {t} {out}, {t} {splat(0, dtype, lanes)}")


def render_cast(e: Emit, to: DType, frm: DType, x: str, lanes: int) -> str:
    """`x` converted: integers wrap, floats round to nearest even; floats become integers toward 0, saturated, NaN 0."""
    a, b = vectorized(scalar_type(frm), lanes), vectorized(scalar_type(to), lanes)
    if to is frm:
        return x
    if to.kind == "b":
        if frm.kind == "f":
            return e.value(f"fcmp une {a} {x}, {splat(0.0, frm, lanes)}")
        return e.value(f"icmp ne {a} {x}, {splat(0, frm, lanes)}")
    if frm.kind == "f" and to.kind == "f":
        return _float_to_float(e, to, frm, x, lanes)
    if frm.kind == "f":
        if frm.itemsize < 4:
            x, frm = render_cast(e, dtypes.float32, frm, x, lanes), dtypes.float32
        return _float_to_int(e, to, frm, x, lanes)
    if to.kind == "f":
        if to.itemsize < 4:  # float32 holds every integer below float16's overflow
            return render_cast(e, to, dtypes.float32, render_cast(e, dtypes.float32, frm, x, lanes), lanes)
        return e.value(f"{'sitofp' if frm.kind == 'i' else 'uitofp'} {a} {x} to {b}")
    if to.bits == frm.bits:
        return x
    if to.bits < frm.bits:
        return e.value(f"trunc {a} {x} to {b}")
    return e.value(f"{'sext' if frm.kind == 'i' else 'zext'} {a} {x} to {b}")


def _float_to_float(e: Emit, to: DType, frm: DType, x: str, lanes: int) -> str:
    a, b = vectorized(scalar_type(frm), lanes), vectorized(scalar_type(to), lanes)
    if to.itemsize > frm.itemsize:
        if (frm.itemsize, to.itemsize) == (2, 8):  # in two steps: a direct one may become a library call
            x = render_cast(e, dtypes.float32, frm, x, lanes)
            return render_cast(e, to, dtypes.float32, x, lanes)
        return e.value(f"fpext {a} {x} to {b}")
    if to.itemsize == 2 and frm.itemsize == 8:
        return e.value(f"fptrunc {vectorized('float', lanes)} {_round_to_odd(e, x, lanes)} to {b}")
    if to.itemsize == frm.itemsize:  # float16 and bfloat16
        return render_cast(e, to, dtypes.float32, render_cast(e, dtypes.float32, frm, x, lanes), lanes)
    return e.value(f"fptrunc {a} {x} to {b}")


def _round_to_odd(e: Emit, x: str, lanes: int) -> str:
    """A double as a float whose last bit is set when it is inexact: rounding that to half rounds only once (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008)."""
    double, single, i32, i1 = (vectorized(t, lanes) for t in ("double", "float", "i32", "i1"))
    near = e.value(f"fptrunc {double} {x} to {single}")
    back = e.value(f"fpext {single} {near} to {double}")
    size, back_size = e.call("fabs", double, [(double, x)]), e.call("fabs", double, [(double, back)])
    inexact = e.value(f"fcmp one {double} {back}, {x}")
    above = e.value(f"fcmp ogt {double} {back_size}, {size}")
    bits = e.value(f"bitcast {single} {near} to {i32}")
    last = e.value(f"trunc {i32} {bits} to {i1}")
    even = e.value(f"xor {i1} {last}, {splat(True, dtypes.bool, lanes)}")
    adjust = e.value(f"and {i1} {inexact}, {even}")
    step = e.value(
        f"select {i1} {above}, {i32} {splat(-1, dtypes.int32, lanes)}, {i32} {splat(1, dtypes.int32, lanes)}"
    )
    moved = e.value(f"add {i32} {bits}, {step}")
    chosen = e.value(f"select {i1} {adjust}, {i32} {moved}, {i32} {bits}")
    return e.value(f"bitcast {i32} {chosen} to {single}")


def _float_to_int(e: Emit, to: DType, frm: DType, x: str, lanes: int) -> str:
    a, b = vectorized(scalar_type(frm), lanes), vectorized(scalar_type(to), lanes)
    signed = to.kind == "i"
    if not lanes:
        return e.call(f"fpto{'s' if signed else 'u'}i.sat", b, [(a, x)])
    # LLVM takes the saturating conversion of a vector apart, lane by lane; comparing first keeps it whole
    i1 = vectorized("i1", lanes)
    low, high = splat(float(to.min), frm, lanes), splat(float(to.max + 1), frm, lanes)
    fits = e.value(f"fcmp oge {a} {x}, {low}")
    large = e.value(f"fcmp oge {a} {x}, {high}")
    clamped = e.value(f"select {i1} {fits}, {a} {x}, {a} {low}")
    inner = e.value(f"select {i1} {large}, {a} {splat(0.0, frm, lanes)}, {a} {clamped}")
    wide = b if to.bits >= 32 else vectorized("i32", lanes)
    out = e.value(f"fpto{'s' if signed or to.bits < 32 else 'u'}i {a} {inner} to {wide}")
    if wide != b:
        out = e.value(f"trunc {wide} {out} to {b}")
    out = e.value(f"select {i1} {large}, {b} {splat(int(to.max), to, lanes)}, {b} {out}")
    if not signed:
        return out  # a NaN was clamped to 0
    nan = e.value(f"fcmp uno {a} {x}, {splat(0.0, frm, lanes)}")
    return e.value(f"select {i1} {nan}, {b} {splat(0, to, lanes)}, {b} {out}")
