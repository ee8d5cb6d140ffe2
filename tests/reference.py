"""An evaluator of tensor-form graphs with NumPy: what a graph means, independent of the compiler.

In come UOps and, optionally, arrays for their storage; out come arrays. `wide=True` computes every float in float64.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from aril.device import host_memory
from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.uop import UOp
from aril.uop.composed import operand_of
from aril.uop.function import inline
from aril.uop.order import toposort
from aril.uop.shape import movement_arg

NUMPY: dict[DType, Any] = {
    dtypes.bool: np.bool_, dtypes.weakint: np.int64, dtypes.weakfloat: np.float64, dtypes.int8: np.int8,
    dtypes.uint8: np.uint8, dtypes.int16: np.int16, dtypes.uint16: np.uint16, dtypes.int32: np.int32,
    dtypes.uint32: np.uint32, dtypes.int64: np.int64, dtypes.uint64: np.uint64, dtypes.float16: np.float16,
    dtypes.bfloat16: ml_dtypes.bfloat16, dtypes.float32: np.float32, dtypes.float64: np.float64,
    dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn, dtypes.fp8e5m2: ml_dtypes.float8_e5m2,
    dtypes.fp8e4m3fnuz: ml_dtypes.float8_e4m3fnuz, dtypes.fp8e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


class _Invalid:
    """Stands for Invalid until it meets a shape."""


INVALID = _Invalid()


def evaluate(root: UOp, buffers: dict[UOp, np.ndarray] | None = None, wide: bool = False) -> np.ndarray:
    """The value of one tensor-form graph. `buffers` maps PARAM, BUFFER or variable nodes to arrays (any shape, right
    number of elements); other BUFFERs are read from their storage. Arrays are not written to."""
    return evaluate_all([root], buffers, wide)[0]


def evaluate_all(
    roots: list[UOp], buffers: dict[UOp, np.ndarray] | None = None, wide: bool = False
) -> list[np.ndarray]:
    """As `evaluate`, for several graphs that share nodes."""
    machine = _Evaluator(buffers or {}, wide)
    roots = [inline(r) for r in roots]
    for u in toposort(roots):
        machine.values[u] = machine.step(u)
    out = []
    for r in roots:
        value = machine.values[r]
        kind = np.float64 if wide and r.dtype.kind == "f" else NUMPY[r.dtype]
        exact = np.asarray(value, dtype=kind)
        fixed = all(isinstance(d, int) for d in r.shape)
        out.append(np.broadcast_to(exact, r.shape) if fixed else exact)
    return out


class _Evaluator:
    def __init__(self, buffers: dict[UOp, np.ndarray], wide: bool) -> None:
        self.buffers, self.wide = buffers, wide
        self.values: dict[UOp, Any] = {}

    def kind(self, dtype: DType) -> Any:
        return np.float64 if self.wide and dtype.kind == "f" else NUMPY[dtype]

    def dim(self, d: Any) -> int:
        """A dimension as a number: symbolic ones are evaluated with the bound values."""
        if isinstance(d, int):
            return d
        for u in d.toposort():
            if u not in self.values:
                self.values[u] = self.step(u)
        return int(self.values[d])

    def step(self, u: UOp) -> Any:
        src = [self.values[s] for s in u.src]
        op = u.op
        if op in OpGroup.VOID or op is Ops.SINK:
            return None
        with np.errstate(all="ignore"):
            if op in OpGroup.STORAGE:
                return self.storage(u)
            if op is Ops.CONST:
                return np.asarray(u.arg, dtype=self.kind(u.dtype))
            if op is Ops.Invalid:
                return INVALID
            if op is Ops.BIND:
                return src[1]
            if op is Ops.SPECIAL and u.arg == "iota":
                return np.arange(int(src[0]))
            if op in OpGroup.MOVEMENT:
                return INVALID if src[0] is INVALID else self.move(u, src[0])
            if op is Ops.REDUCE:
                return self.reduce(u, src[0])
            if op is Ops.STACK:
                shape = tuple(self.dim(d) for d in u.src[0].shape)
                return np.stack([np.broadcast_to(s, shape) for s in src])
            if op is Ops.INDEX:
                x, index = src[0], src[1:]
                if len(index) == 1 and index[0] is not INVALID and u.src[0].shape:
                    i = np.asarray(index[0])
                    if i.size and (i.min() < 0 or i.max() >= x.shape[0]):
                        raise IndexError(f"INDEX reads {i.min()} to {i.max()} of an axis of {x.shape[0]}")
                return x[tuple(index)]
            if op is Ops.SCATTER:
                x, values, positions = src
                out, index = np.array(x), np.asarray(positions)
                combine = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum}.get(u.arg)
                for at in np.ndindex(index.shape):
                    if 0 <= index[at] < len(out):
                        row = values[at]
                        out[index[at]] = row if combine is None else combine(out[index[at]], row)
                return out
            if op is Ops.AFTER:
                return self.after(u, src[0])
            if op is Ops.GETTUPLE:
                return self.values[u.src[0].src[u.arg]]
            if op in (Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.COPY, Ops.NOOP):
                return src[0]
            if op is Ops.CAST:
                return self.cast(src[0], u.src[0].dtype, u.dtype)
            if op is Ops.BITCAST:
                exact = np.ascontiguousarray(np.asarray(src[0], dtype=NUMPY[u.src[0].dtype]))
                return exact.view(NUMPY[u.dtype]).astype(self.kind(u.dtype))
            if op in OpGroup.ALU:
                return self.alu(u, src)
        raise NotImplementedError(f"the reference knows no {op} in tensor form")

    def storage(self, u: UOp) -> Any:
        shape = () if u.arg.size is None else (u.arg.size,)
        if u in self.buffers:
            return np.array(self.buffers[u], dtype=self.kind(u.dtype)).reshape(shape)
        buffer = u.storage
        if buffer is None or not buffer.is_allocated:
            if u.op is Ops.BUFFER:  # never written: its values must not matter
                return np.full(shape, 113, dtype=self.kind(u.dtype))
            raise ValueError(f"no value for {u.op} {u.arg}")
        exact = np.frombuffer(bytes(host_memory(buffer.address, buffer.nbytes)), dtype=NUMPY[u.dtype])
        return exact.astype(self.kind(u.dtype)).reshape(shape)

    def move(self, u: UOp, x: Any) -> Any:
        arg = movement_arg(u)
        d = self.dim
        x = np.broadcast_to(x, tuple(d(n) for n in u.src[0].shape))
        if u.op is Ops.RESHAPE:
            return x.reshape(tuple(d(n) for n in arg))
        if u.op is Ops.EXPAND:
            return np.broadcast_to(x, tuple(d(n) for n in arg))
        if u.op is Ops.PERMUTE:
            return x.transpose(arg)
        if u.op is Ops.PAD:
            return np.pad(x, [(d(b), d(a)) for b, a in arg], constant_values=np.asarray(u.arg[1], dtype=x.dtype))
        if u.op is Ops.SHRINK:
            cuts = [(d(start), d(start) + d(n)) for start, n in arg]
            assert all(0 <= a <= b <= n for (a, b), n in zip(cuts, x.shape, strict=True)), (cuts, x.shape)
            return x[tuple(slice(a, b) for a, b in cuts)]
        if u.op is Ops.FLIP:
            return np.flip(x, arg)
        axis, by, step, offset, length = arg
        out = [
            np.take(np.take(x, [k], axis=by), np.arange(length) + offset + step * k, axis=axis)
            for k in range(x.shape[by])
        ]
        return np.concatenate(out, axis=by) if out else np.take(x, np.arange(length), axis=axis)

    def reduce(self, u: UOp, x: Any) -> Any:
        op, axes = u.arg
        function = {
            Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or,
            Ops.XOR: np.bitwise_xor,
        }[op]  # fmt: skip
        x = np.broadcast_to(x, tuple(self.dim(n) for n in u.src[0].shape))
        if op is Ops.ADD and x.dtype == np.bool_:
            function = np.logical_or
        if op is Ops.ADD:  # pairwise summation wants the summed axes last and one pass
            return (
                np.add.reduce(x, axis=axes, keepdims=True, dtype=x.dtype)
                if x.dtype != np.bool_
                else x.any(axes, keepdims=True)
            )
        return function.reduce(x, axis=axes, keepdims=True, dtype=x.dtype)

    def after(self, u: UOp, target: Any) -> Any:
        out = np.array(np.broadcast_to(target, tuple(self.dim(d) for d in u.src[0].shape)))
        stack = list(u.src[1:])
        for dep in stack:
            if dep.op in (Ops.GROUP, Ops.END):
                stack.extend(dep.src)
        for dep in stack:
            if dep.op is not Ops.STORE:
                continue
            view, value = dep.src[0], self.values[dep.src[1]]
            if value is INVALID:
                continue
            # Where each element of the view lies in the whole: the same movements on the numbers of its elements.
            root = u.src[0]
            walker = _Evaluator({}, False)
            walker.values = {k: v for k, v in self.values.items() if k.shape == () and k.op not in OpGroup.MOVEMENT}
            walker.values[root] = np.arange(out.size).reshape(out.shape)
            for n in view.toposort(lambda n: n is not root):  # noqa: B023
                if n not in walker.values:
                    walker.values[n] = walker.step(n)
            place = walker.values[view]
            kept = np.broadcast_to(~np.ma.getmaskarray(value), place.shape)
            out.reshape(-1)[place[kept]] = np.broadcast_to(np.ma.getdata(value), place.shape)[kept]
        return out

    def cast(self, x: Any, old: DType, new: DType) -> Any:
        kind = self.kind(new)
        if old.kind == "f" and new.kind in "iu":  # out of range saturates, NaN is 0
            wide = np.asarray(x, dtype=np.float64)
            wide = np.nan_to_num(np.trunc(wide), nan=0.0, posinf=np.inf, neginf=-np.inf)
            info = np.iinfo(kind)
            out = np.clip(wide, float(info.min), float(info.max))
            exact = np.where(out >= float(info.max), info.max, 0).astype(kind)
            return np.where(out >= float(info.max), exact, np.where(out >= float(info.max), 0, out).astype(kind))
        if new.kind == "b":
            return np.asarray(x) != 0
        return np.asarray(x).astype(kind)

    def alu(self, u: UOp, src: list[Any]) -> Any:
        op, kind = u.op, self.kind(u.dtype)
        if op is Ops.WHERE:
            if src[1] is INVALID or src[2] is INVALID:
                other = src[2] if src[1] is INVALID else src[1]
                gate = np.logical_not(src[0]) if src[1] is INVALID else src[0]
                # masked elements are no elements: a store leaves their places as they were
                return np.ma.MaskedArray(np.where(gate, other, np.zeros((), dtype=kind)), np.logical_not(gate))
            return np.where(src[0], *[np.asarray(s, dtype=kind) for s in src[1:]])
        if op in OpGroup.COMPARISON:
            # a weak constant beside a concrete value has its type
            common = (
                np.result_type(*[np.asarray(s).dtype for s in src]) if src[0].dtype != src[1].dtype else src[0].dtype
            )
            a, b = [np.asarray(s, dtype=common) for s in src]
            return {Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal}[op](a, b)
        if op is Ops.THREEFRY:
            return threefry(src[0], src[1])
        whole = operand_of(u)
        if whole is not None:
            return _COMPOSED[op](np.asarray(self.values[whole], dtype=kind).astype(np.float64)).astype(kind)
        a = np.asarray(src[0], dtype=kind)
        if op in _UNARY:
            if op in (Ops.EXP2, Ops.LOG2, Ops.SIN):
                return _UNARY[op](np.asarray(a, dtype=np.float64)).astype(kind)
            return np.asarray(_UNARY[op](a)).astype(kind)
        b = np.asarray(src[1], dtype=kind)
        if op in (Ops.SHL, Ops.SHR):
            return (np.left_shift if op is Ops.SHL else np.right_shift)(a, b)
        if op in (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD):
            safe = np.where(b == 0, np.ones_like(b), b)
            rest = np.fmod(a, safe)
            out = {
                Ops.FLOORDIV: lambda: np.floor_divide(a, safe),
                Ops.FLOORMOD: lambda: np.mod(a, safe),
                Ops.CMOD: lambda: rest,
                Ops.CDIV: lambda: np.floor_divide(a - rest, safe),
            }[op]()
            return np.where(b == 0, np.zeros_like(out), out)
        if op is Ops.MULACC:
            return (a * b + np.asarray(src[2], dtype=kind)).astype(kind)
        if op is Ops.MUL and kind is np.bool_:
            return a & b
        function = {
            Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.FDIV: np.divide, Ops.MAX: np.maximum,
            Ops.POW: np.power, Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor,
        }[op]  # fmt: skip
        return np.asarray(function(a, b)).astype(kind)


_COMPOSED = {Ops.EXP2: np.exp, Ops.SIN: np.cos, Ops.LOG2: lambda x: np.log1p(x) / np.log(2)}
_UNARY: dict[Ops, Any] = {
    Ops.EXP2: np.exp2,
    Ops.LOG2: np.log2,
    Ops.SIN: np.sin,
    Ops.SQRT: np.sqrt,
    Ops.RECIPROCAL: lambda x: np.divide(x.dtype.type(1), x),
    Ops.NEG: np.negative,
    Ops.TRUNC: np.trunc,
}


def threefry(counter: Any, key: Any) -> np.ndarray:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) on 64-bit words, low half first."""
    counter, key = np.asarray(counter, dtype=np.uint64), np.asarray(key, dtype=np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1 = (counter & low).astype(np.uint32), (counter >> shift).astype(np.uint32)
    k = [(key & low).astype(np.uint32), (key >> shift).astype(np.uint32)]
    k.append(np.uint32(0x1BD11BDA) ^ k[0] ^ k[1])
    x0, x1 = x0 + k[0], x1 + k[1]
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    for block in range(5):
        for r in rotations[block % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))
            x1 = x1 ^ x0
        x0 = x0 + k[(block + 1) % 3]
        x1 = x1 + k[(block + 2) % 3] + np.uint32(block + 1)
    return x0.astype(np.uint64) | (x1.astype(np.uint64) << shift)
