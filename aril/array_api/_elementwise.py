"""Elementwise functions and the operators made of them; special values as the standard lists them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aril.array_api import _dtypes as dt
from aril.array_api._array import Array, _binary, _unary, accepted, operands, tensor_of
from aril.dtype import dtypes
from aril.tensor import Tensor

_INTEGERS = {4: dtypes.int32, 8: dtypes.int64, 2: dtypes.int16, 1: dtypes.int8}

# --- formulas ---


def _pow(a: Tensor, b: Tensor) -> Tensor:
    return a.pow(b)


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of the point (x, y): atan of the quotient in the first quadrant, turned by the signs."""
    up, right = y.abs(), x.abs()
    quotient = (up.isinf() & right.isinf()).where(1.0, (up.eq(0) & right.eq(0)).where(0.0, up / right))
    angle = quotient.atan()
    return x.signbit().where(math.pi - angle, angle).copysign(y)


def _hypot(a: Tensor, b: Tensor) -> Tensor:
    """The root of the sum of squares, scaled by the greater so that nothing overflows; infinite beside NaN too."""
    a, b = a.abs(), b.abs()
    top, low = a.maximum(b), a.minimum(b)
    ratio = top.eq(0).where(0.0, low / top)
    return (a.isinf() | b.isinf()).where(math.inf, top * (ratio * ratio + 1.0).sqrt())


def _nextafter(a: Tensor, b: Tensor) -> Tensor:
    """The next number from a towards b: the next bit pattern, as those of one sign are in order of magnitude."""
    whole = _INTEGERS[a.dtype.itemsize]
    a, b = a._matched(b)[0], a._matched(b)[1]
    bits = a.bitcast(whole)
    away = (a < b).eq(a > 0)
    moved = (bits + away.where(1, -1).cast(whole)).bitcast(a.dtype)
    least = Tensor.full((), 1, dtype=whole).bitcast(a.dtype).copysign(b)
    out = a.eq(b).where(b, a.eq(0).where(least, moved))
    return (a.isnan() | b.isnan()).where(math.nan, out)


def _clipped(x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    if low is not None:
        x = x.maximum(low)
    return x if high is None else x.minimum(high)


def _logaddexp(a: Tensor, b: Tensor) -> Tensor:
    return a.logaddexp(b)


def _shift(f: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: f(a, b)


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    """The exact remainder of float64 numbers with the sign of x: on the integers m, n of x = m 2^a, y = n 2^b it is
    m (2^(a-b) mod n) mod n, the power by squaring (11 squares reach every exponent)."""
    bits, below = [t.abs().bitcast(dtypes.int64) for t in (x, y)], (1 << 52) - 1
    exponents = [(b >> 52).maximum(1) for b in bits]
    m, n = [(b >> 52 > 0).where((b & below) | (1 << 52), b & below) for b in bits]
    apart = (exponents[0] - exponents[1]).maximum(0)
    n = n.maximum(1)
    real = n.double()

    def times(a: Tensor, b: Tensor) -> Tensor:
        # The quotient in floats is off by 2 at most, and what wraps in the products cancels.
        return (a * b - (a.double() * b.double() / real).cast(dtypes.int64) * n) % n

    power = n.const_like(1) % n
    for k in range(10, -1, -1):
        power = times(power, power)
        power = ((apart >> k) & 1).eq(1).where((power + power) % n, power)
    rest = times(m % n, power).double()
    scale = exponents[1] - 1075
    half = scale >> 1
    for part in (half, scale - half):
        rest = rest * ((part + 1023) << 52).bitcast(dtypes.float64)
    out = (x.abs() < y.abs()).where(x, rest.copysign(x))
    bad = x.isinf() | y.eq(0) | x.isnan() | y.isnan()
    return bad.where(math.nan, y.isinf().where(x, out))


def _wide(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = a._matched(b)
    return a.double(), b.double()


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.kind != "f":
        return a.mod(b)
    x, y = _wide(a, b)
    r = _fmod(x, y)
    r = (r.ne(0) & (r < 0).ne(y < 0)).where(r + y, r.eq(0).where(r.const_like(0).copysign(y), r))
    return r.cast(a.dtype)


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.kind != "f":
        return a.floordiv(b)
    x, y = _wide(a, b)
    r = _fmod(x, y)
    q = (x - r) / y
    q = (r.ne(0) & (r < 0).ne(y < 0)).where(q - 1.0, q).round()
    q = q.eq(0).where(q.const_like(0).copysign(x / y), q)
    return y.eq(0).where(x / y, q).cast(a.dtype)


def _sign(x: Tensor) -> Tensor:
    return x.sign() + 0 if x.dtype.kind == "f" else x.sign()  # the sign of -0.0 is 0.0


# --- one argument ---


def _one(name: str, accepts: str, f: Callable[[Tensor], Tensor], about: str) -> Callable[[Any], Array]:
    def function(x: Any, /) -> Array:
        return _unary(x, name, accepts, f)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{about} Takes {accepts} arrays; TypeError for others."
    return function


abs = _one("abs", "numeric", Tensor.abs, "The absolute value.")
acos = _one("acos", "floating-point", Tensor.acos, "The inverse cosine.")
acosh = _one("acosh", "floating-point", Tensor.acosh, "The inverse hyperbolic cosine.")
asin = _one("asin", "floating-point", Tensor.asin, "The inverse sine.")
asinh = _one("asinh", "floating-point", Tensor.asinh, "The inverse hyperbolic sine.")
atan = _one("atan", "floating-point", Tensor.atan, "The inverse tangent.")
atanh = _one("atanh", "floating-point", Tensor.atanh, "The inverse hyperbolic tangent.")
bitwise_invert = _one("bitwise_invert", "integral or bool", Tensor.bitwise_not, "Every bit inverted.")
ceil = _one("ceil", "numeric", Tensor.ceil, "Rounded up.")
conj = _one("conj", "numeric", lambda x: x, "The complex conjugate: for real numbers the numbers themselves.")
cos = _one("cos", "floating-point", Tensor.cos, "The cosine.")
cosh = _one("cosh", "floating-point", Tensor.cosh, "The hyperbolic cosine.")
exp = _one("exp", "floating-point", Tensor.exp, "e to the power x.")
expm1 = _one("expm1", "floating-point", Tensor.expm1, "e to the power x, less 1, without cancellation.")
floor = _one("floor", "numeric", Tensor.floor, "Rounded down.")
isfinite = _one("isfinite", "numeric", Tensor.isfinite, "Whether a number is neither infinite nor NaN.")
isinf = _one("isinf", "numeric", Tensor.isinf, "Whether a number is infinite.")
isnan = _one("isnan", "numeric", Tensor.isnan, "Whether a number is NaN.")
log = _one("log", "floating-point", Tensor.log, "The natural logarithm.")
log10 = _one("log10", "floating-point", Tensor.log10, "The logarithm to base 10.")
log1p = _one("log1p", "floating-point", Tensor.log1p, "The logarithm of 1 + x, without cancellation.")
log2 = _one("log2", "floating-point", Tensor.log2, "The logarithm to base 2.")
logical_not = _one("logical_not", "bool", Tensor.logical_not, "Not x.")
negative = _one("negative", "numeric", Tensor.neg, "-x.")
positive = _one("positive", "numeric", lambda x: x, "x.")
real = _one("real", "numeric", lambda x: x, "The real part: for real numbers the numbers themselves.")
reciprocal = _one("reciprocal", "floating-point", Tensor.reciprocal, "1 / x.")
round = _one("round", "numeric", Tensor.round, "Rounded to the nearest integer, halves to the even one.")
sign = _one("sign", "numeric", _sign, "-1, 0 or 1 by the sign; NaN stays.")
signbit = _one("signbit", "floating-point", Tensor.signbit, "Whether the sign is set, that of zeros and NaN too.")
sin = _one("sin", "floating-point", Tensor.sin, "The sine.")
sinh = _one("sinh", "floating-point", Tensor.sinh, "The hyperbolic sine.")
sqrt = _one("sqrt", "floating-point", Tensor.sqrt, "The square root.")
square = _one("square", "numeric", Tensor.square, "x * x.")
tan = _one("tan", "floating-point", Tensor.tan, "The tangent.")
tanh = _one("tanh", "floating-point", Tensor.tanh, "The hyperbolic tangent.")
trunc = _one("trunc", "numeric", Tensor.trunc, "Rounded towards 0.")


def imag(x: Any, /) -> Array:
    """The imaginary part. TypeError: complex types are left out here."""
    raise TypeError(f"imag: takes complex arrays, not {tensor_of(x, 'imag').dtype.name}; there are none here")


# --- two arguments ---

_TABLE: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor], str]] = {
    "add": ("numeric", Tensor.add, "x1 + x2."),
    "atan2": ("floating-point", _atan2, "The angle of the point (x2, x1) from the first axis, -pi to pi."),
    "bitwise_and": ("integral or bool", Tensor.bitwise_and, "x1 & x2."),
    "bitwise_left_shift": ("integral", _shift(Tensor.lshift), "x1 << x2."),
    "bitwise_or": ("integral or bool", Tensor.bitwise_or, "x1 | x2."),
    "bitwise_right_shift": ("integral", _shift(Tensor.rshift), "x1 >> x2, the sign kept."),
    "bitwise_xor": ("integral or bool", Tensor.bitwise_xor, "x1 ^ x2."),
    "copysign": ("floating-point", Tensor.copysign, "The magnitude of x1 with the sign of x2."),
    "divide": ("floating-point", Tensor.div, "x1 / x2."),
    "equal": ("any", Tensor.eq, "x1 == x2."),
    "floor_divide": ("numeric", _floor_divide, "x1 / x2 rounded down."),
    "greater": ("numeric", Tensor.__gt__, "x1 > x2."),
    "greater_equal": ("numeric", Tensor.__ge__, "x1 >= x2."),
    "hypot": ("floating-point", _hypot, "The square root of x1*x1 + x2*x2."),
    "less": ("numeric", Tensor.__lt__, "x1 < x2."),
    "less_equal": ("numeric", Tensor.__le__, "x1 <= x2."),
    "logaddexp": ("floating-point", _logaddexp, "log(exp(x1) + exp(x2)), without overflow."),
    "logical_and": ("bool", Tensor.bitwise_and, "x1 and x2."),
    "logical_or": ("bool", Tensor.bitwise_or, "x1 or x2."),
    "logical_xor": ("bool", Tensor.bitwise_xor, "x1 != x2."),
    "maximum": ("numeric", Tensor.maximum, "The greater; NaN where either is."),
    "minimum": ("numeric", Tensor.minimum, "The lesser; NaN where either is."),
    "multiply": ("numeric", Tensor.mul, "x1 * x2."),
    "nextafter": ("floating-point", _nextafter, "The next number from x1 towards x2."),
    "not_equal": ("any", Tensor.ne, "x1 != x2."),
    "pow": ("numeric", _pow, "x1 to the power x2."),
    "remainder": ("numeric", _remainder, "The remainder of x1 / x2, with the sign of x2."),
    "subtract": ("numeric", Tensor.sub, "x1 - x2."),
}


def _two(name: str) -> Callable[[Any, Any], Array]:
    accepts, f, about = _TABLE[name]

    def function(x1: Any, x2: Any, /) -> Array:
        a, b = operands(name, x1, x2)
        return _binary(a, b, name, accepts, f)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{about} Shapes broadcast. Takes {accepts} arrays (one may be a number); TypeError for others."
    return function


add, atan2, bitwise_and, bitwise_left_shift = (
    _two("add"),
    _two("atan2"),
    _two("bitwise_and"),
    _two("bitwise_left_shift"),
)
bitwise_or, bitwise_right_shift, bitwise_xor = _two("bitwise_or"), _two("bitwise_right_shift"), _two("bitwise_xor")
copysign, divide, equal, floor_divide = _two("copysign"), _two("divide"), _two("equal"), _two("floor_divide")
greater, greater_equal, hypot, less = _two("greater"), _two("greater_equal"), _two("hypot"), _two("less")
less_equal, logaddexp, logical_and = _two("less_equal"), _two("logaddexp"), _two("logical_and")
logical_or, logical_xor, maximum, minimum = _two("logical_or"), _two("logical_xor"), _two("maximum"), _two("minimum")
multiply, nextafter, not_equal, pow = _two("multiply"), _two("nextafter"), _two("not_equal"), _two("pow")
remainder, subtract = _two("remainder"), _two("subtract")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """x, not below `min` and not above `max` (arrays or numbers; None: no bound). The type stays that of x."""
    t = accepted(tensor_of(x, "clip"), "clip", "numeric")
    bounds = [None if v is None else operands("clip", t, v)[1] for v in (min, max)]
    for b in bounds:
        if b is not None and dt.promoted(t.dtype, b.dtype) is not t.dtype:
            raise TypeError(f"clip: a bound of {b.dtype.name} for an array of {t.dtype.name}; convert one with astype")
    low, high = [None if b is None else b.cast(t.dtype) for b in bounds]
    return Array(_clipped(t, low, high))


# --- operators ---

_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip


def _add_operators() -> None:
    def method(name: str, swap: bool) -> Callable[[Array, Any], Any]:
        accepts, f, _ = _TABLE[name]
        return lambda self, other: self._op(other, name, accepts, f, swap)

    def in_place(name: str) -> Callable[[Array, Any], Any]:
        accepts, f, _ = _TABLE[name]
        return lambda self, other: self._in_place(self._op(other, name, accepts, f), name)

    for short, name in (_OPERATORS | _COMPARISONS).items():
        setattr(Array, f"__{short}__", method(name, False))
        if short in _OPERATORS:
            setattr(Array, f"__r{short}__", method(name, True))
            setattr(Array, f"__i{short}__", in_place(name))


_add_operators()


def _small_power(self: Array, other: Any) -> Any:
    # A small whole number multiplies: exact where products are, and much less to compute than a general power.
    if type(other) is int and 0 <= other <= 16 and self.dtype.kind in "iuf":
        return Array(self.tensor.pow(other))
    accepts, f, _ = _TABLE["pow"]
    return self._op(other, "pow", accepts, f)


setattr(Array, "__pow__", _small_power)  # noqa: B010
