"""The table of operations: what each takes and gives, NumPy's or SciPy's form of it, and where it is tested.

`takes`: kinds of types (b bool, u unsigned, i signed, f float); others are a TypeError. `gives`: "same"; "bool";
"float" (integers and bool become the default float); "int" (the default integer type); "number" (bool becomes the
default integer type); "sum" (bool and small integers become what `accumulator` names). The reference gets float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from aril.dtype import DType, accumulator, dtypes
from tests.operations_layers import LAYERS
from tests.row import Row


def result(row: Row, d: DType) -> DType:
    """The type that the table says comes of inputs of type d."""
    if row.gives == "bool":
        return dtypes.bool
    if row.gives == "int":
        return dtypes.default_int()
    if row.gives == "float":
        return d if d.kind == "f" else dtypes.default_float()
    if row.gives == "number":
        return dtypes.default_int() if d.kind == "b" else d
    if row.gives == "sum":
        return d if d.kind == "f" else accumulator(d)
    return d


def method(name: str) -> Callable[..., Any]:
    """The method of that name."""
    return lambda x, *more: getattr(x, name)(*more)


def _unary(name: str, ref: Callable[..., Any], low: float = -2.0, high: float = 2.0, **more: Any) -> Row:
    return Row(name, method(name), ref, **{"gives": "float", "low": low, "high": high, **more})


def _binary(name: str, ref: Callable[..., Any], **more: Any) -> Row:
    return Row(name, method(name), ref, count=2, **more)


def _softmax(x: Any) -> Any:
    return special.softmax(x, -1) if x.ndim else np.ones(())


FUNCTIONS = [
    _unary("exp", np.exp),
    _unary("exp2", np.exp2),
    _unary("expm1", np.expm1),
    _unary("log", np.log, 0.1),
    _unary("log2", np.log2, 0.1),
    _unary("log10", np.log10, 0.1),
    _unary("log1p", np.log1p, -0.9),
    _unary("sqrt", np.sqrt, 0.1),
    _unary("rsqrt", lambda x: 1 / np.sqrt(x), 0.1),
    _unary("sin", np.sin),
    _unary("cos", np.cos),
    _unary("tan", np.tan, -1.2, 1.2),
    _unary("asin", np.arcsin, -0.9, 0.9),
    _unary("acos", np.arccos, -0.9, 0.9),
    _unary("atan", np.arctan),
    _unary("sinh", np.sinh),
    _unary("cosh", np.cosh),
    _unary("tanh", np.tanh),
    _unary("asinh", np.arcsinh),
    _unary("acosh", np.arccosh, 1.1, 4),
    _unary("atanh", np.arctanh, -0.9, 0.9),
    _unary("erf", special.erf),
    _unary("reciprocal", np.reciprocal, 0.3),
    _unary("sigmoid", special.expit),
    _unary("logsigmoid", special.log_expit),
    _unary("softplus", lambda x: np.logaddexp(0, x)),
    _unary("silu", lambda x: x * special.expit(x)),
    _unary("swish", lambda x: x * special.expit(x)),
    _unary("gelu", lambda x: x * special.ndtr(x)),
    _unary("quick_gelu", lambda x: x * special.expit(1.702 * x)),
    _unary("mish", lambda x: x * np.tanh(np.logaddexp(0, x))),
    _unary("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
    _unary("celu", lambda x: np.where(x > 0, x, np.expm1(x))),
    _unary("selu", lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
]
PLAIN = [
    _unary("abs", np.abs, gives="same"),
    _unary("neg", np.negative, gives="same", takes="uif"),
    _unary("square", np.square, gives="same"),
    _unary("sign", np.sign, gives="same"),
    _unary("trunc", np.trunc, gives="same"),
    _unary("floor", np.floor, gives="same"),
    _unary("ceil", np.ceil, gives="same"),
    _unary("round", np.round, gives="same"),
    _unary("relu", lambda x: np.maximum(x, 0), gives="same"),
    _unary("isnan", np.isnan, gives="bool", grad=False),
    _unary("isfinite", np.isfinite, gives="bool", grad=False),
    _unary("isinf", np.isinf, gives="bool", grad=False),
    _unary("signbit", np.signbit, gives="bool", grad=False),
    _unary("logical_not", np.logical_not, gives="bool", grad=False),
    _unary("bitwise_not", np.invert, gives="same", takes="bui", grad=False),
]
BINARY = [
    _binary("add", np.add),
    _binary("sub", np.subtract, takes="uif"),
    _binary("mul", np.multiply),
    _binary("div", np.true_divide, gives="float", low=0.3),
    _binary("maximum", np.maximum),
    _binary("minimum", np.minimum),
    _binary("pow", np.power, low=0.3, gives="number"),
    _binary("mod", np.mod, low=0.3, gives="number", grad=False),
    _binary("fmod", np.fmod, low=0.3, gives="number", grad=False),
    _binary("floordiv", np.floor_divide, low=0.3, gives="number", grad=False),
    _binary("copysign", np.copysign, gives="float"),
    _binary("logaddexp", np.logaddexp, gives="float"),
    _binary("eq", np.equal, gives="bool", grad=False),
    _binary("ne", np.not_equal, gives="bool", grad=False),
    Row("lt", lambda a, b: a < b, np.less, gives="bool", grad=False, count=2),
    Row("le", lambda a, b: a <= b, np.less_equal, gives="bool", grad=False, count=2),
    Row("gt", lambda a, b: a > b, np.greater, gives="bool", grad=False, count=2),
    Row("ge", lambda a, b: a >= b, np.greater_equal, gives="bool", grad=False, count=2),
    _binary("bitwise_and", np.bitwise_and, takes="bui", grad=False),
    _binary("bitwise_or", np.bitwise_or, takes="bui", grad=False),
    _binary("bitwise_xor", np.bitwise_xor, takes="bui", grad=False),
    Row("where", lambda a, b: (a > 0).where(a, b), lambda a, b: np.where(a > 0, a, b), count=2),
]
REDUCTIONS = [
    Row("sum", lambda x: x.sum(-1), lambda x: x.sum(-1) if x.ndim else x, gives="sum"),
    Row("prod", lambda x: x.prod(-1), lambda x: x.prod(-1) if x.ndim else x, gives="sum"),
    Row("mean", lambda x: x.mean(-1), lambda x: x.mean(-1), gives="float", least=1),
    Row("var", lambda x: x.var(-1), lambda x: x.var(-1, ddof=1), gives="float", least=1),
    Row("std", lambda x: x.std(-1), lambda x: x.std(-1, ddof=1), gives="float", least=1),
    Row("max", lambda x: x.max(-1), lambda x: x.max(-1), least=1),
    Row("min", lambda x: x.min(-1), lambda x: x.min(-1), least=1),
    Row("any", lambda x: x.any(-1), lambda x: x.any(-1), gives="bool", grad=False, least=1),
    Row("all", lambda x: x.all(-1), lambda x: x.all(-1), gives="bool", grad=False, least=1),
    Row("argmax", lambda x: x.argmax(-1), lambda x: x.argmax(-1), gives="int", grad=False, least=1),
    Row("argmin", lambda x: x.argmin(-1), lambda x: x.argmin(-1), gives="int", grad=False, least=1),
    Row("cumsum", lambda x: x.cumsum(-1), lambda x: x.cumsum(-1), gives="sum", least=1),
    Row("cumprod", lambda x: x.cumprod(-1), lambda x: x.cumprod(-1), gives="sum", least=1),
    Row("cummax", lambda x: x.cummax(-1), lambda x: np.maximum.accumulate(x, -1), least=1),
    Row("cummin", lambda x: x.cummin(-1), lambda x: np.minimum.accumulate(x, -1), least=1),
    Row("logsumexp", lambda x: x.logsumexp(-1), lambda x: special.logsumexp(x, -1), gives="float", least=1),
    Row(
        "logcumsumexp", lambda x: x.logcumsumexp(-1), lambda x: np.log(np.cumsum(np.exp(x), -1)), gives="float", least=1
    ),
    Row("softmax", method("softmax"), _softmax, gives="float"),
    Row("softmin", method("softmin"), lambda x: _softmax(-x), gives="float"),
    Row("log_softmax", method("log_softmax"), lambda x: np.log(_softmax(x)), gives="float"),
    Row("sort", lambda x: x.sort(-1)[0], lambda x: np.sort(x, -1), least=1),
    Row(
        "argsort", lambda x: x.argsort(-1), lambda x: np.argsort(x, -1, kind="stable"), gives="int", grad=False, least=1
    ),
]
MOVEMENT = [
    Row("flatten", method("flatten"), np.ravel, view=True),
    Row("unsqueeze", lambda x: x.unsqueeze(0), lambda x: x[None], view=True),
    Row("transpose", lambda x: x.transpose(-1, -2), lambda x: np.swapaxes(x, -1, -2), least=2, view=True),
    Row("flip", lambda x: x.flip(-1), lambda x: np.flip(x, -1), least=1, view=True),
    Row("roll", lambda x: x.roll(1, -1), lambda x: np.roll(x, 1, -1), least=1),
    Row("repeat", lambda x: x.repeat(2, *[1] * x.ndim), lambda x: np.tile(x, (2, *[1] * x.ndim))),
    Row("cat", lambda a, b: a.cat(b, dim=-1), lambda a, b: np.concatenate([a, b], -1), count=2, least=1),
    Row("stack", lambda a, b: a.stack(b), lambda a, b: np.stack([a, b]), count=2),
    Row("tril", method("tril"), np.tril, least=2),
    Row("triu", method("triu"), np.triu, least=2),
    Row("diagonal", method("diagonal"), np.diagonal, least=2, view=True),
    Row("step", lambda x: x[..., ::2], lambda x: x[..., ::2], least=1, view=True),
    Row(
        "dot",
        lambda a, b: a @ b.transpose(-1, -2),
        lambda a, b: a @ np.swapaxes(b, -1, -2),
        gives="sum",
        count=2,
        least=2,
    ),
]

TABLE = [*FUNCTIONS, *PLAIN, *BINARY, *REDUCTIONS, *MOVEMENT, *LAYERS]
