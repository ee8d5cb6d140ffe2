"""The interpreter of kernels in program form (`docs/ir.md`), the reference of every other target.

In come the nodes of a LINEAR, NumPy arrays and variables; what the kernel stores is left in the arrays. All launch
indices run in lock-step as the lanes of one NumPy axis: a value is an array (lanes or 1, elements or 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aril.dtype import DType, dtypes, promote
from aril.ops import OpGroup, Ops
from aril.runtime import python_alu as alu
from aril.runtime.python_alu import Array
from aril.uop.args import AddrSpace
from aril.uop.composed import operand_of
from aril.uop.node import UOp

_LANES = 1 << 15  # launch indices taken at a time
_PRIVATE_BYTES = 64 << 20  # bound on the LOCAL and REG memory of the lanes taken at a time
_ZERO = np.zeros((1, 1), np.int64)


class KernelError(RuntimeError):
    """A kernel that the interpreter cannot run, or that did what a kernel must not do."""


@dataclass(slots=True)
class _Address:
    """Elements `index` of `memory`: flat storage, or (lanes, size) where each lane has its own."""

    memory: Array
    index: Array
    private: bool


class _State:
    """One run over some lanes: the value of every node, and which lanes take part (None: all)."""

    __slots__ = ("buffers", "first", "lanes", "mask", "v", "variables")

    def __init__(self, count: int, buffers: Sequence[Array], variables: Sequence[int]) -> None:
        self.v: list[Any] = [None] * count
        self.buffers, self.variables = buffers, variables
        self.first, self.lanes = 0, 1
        self.mask: Array | None = None


_Step = Callable[[_State], None]


class Interpreter:
    """A kernel made ready to run: each node a closure, loops and IFs nested lists of them.

    Errors: KernelError for a node that is not of the program form, or that only another target can run.
    """

    def __init__(self, uops: Sequence[UOp], name: str = "kernel") -> None:
        if len(uops) == 1 and uops[0].op is Ops.LINEAR:
            uops = uops[0].src
        self.name, self.uops = name, tuple(uops)
        self._slot = {u: i for i, u in enumerate(self.uops)}
        params = [u for u in self.uops if u.op is Ops.PARAM]
        self.params = sorted((u for u in params if not u.is_variable), key=lambda u: u.arg.slot)
        self.variables = sorted((u for u in params if u.is_variable), key=lambda u: u.arg.name)
        self._private = sum(u.arg.size * u.dtype.itemsize for u in self.uops if u.op is Ops.BUFFER)
        self._used = {s for u in self.uops for s in u.src}
        self._body = self._nest()

    # --- running ---

    def run(self, buffers: Sequence[Any], variables: Mapping[str, int] | Sequence[int] = (), chunks: int = 1) -> None:
        """Run all `chunks` launch indices. `buffers[slot]` is an array, or memory of the parameter's size and dtype.

        Errors: KernelError naming kernel, buffer and index for an access out of bounds.
        """
        values = [variables[v.arg.name] for v in self.variables] if isinstance(variables, Mapping) else list(variables)
        if len(values) != len(self.variables):
            raise KernelError(f"{self.name} takes {len(self.variables)} variables, not {len(values)}")
        arrays = [self._array(u, buffers) for u in self.params]
        step = max(1, min(_LANES, _PRIVATE_BYTES // max(1, self._private)))
        state = _State(len(self.uops), arrays, values)
        with np.errstate(all="ignore"):
            for first in range(0, chunks, step):
                state.first, state.lanes, state.mask = first, min(step, chunks - first), None
                self._do(self._body, state)

    def _array(self, u: UOp, buffers: Sequence[Any]) -> Array:
        if u.arg.slot >= len(buffers):
            raise KernelError(f"{self.name} takes a buffer number {u.arg.slot}, but was given {len(buffers)}")
        given = buffers[u.arg.slot]
        kind = np.dtype(alu.storage_type(u.dtype))
        array = given.reshape(-1) if isinstance(given, np.ndarray) else np.frombuffer(given, np.uint8)
        if not np.shares_memory(array, given) and array.size:
            raise KernelError(f"{self.name}: the array given as buffer {u.arg.slot} is not contiguous")
        if array.dtype != kind:
            array = array.view(kind)
        size = 1 if u.arg.size is None else u.arg.size
        if array.size < size:
            raise KernelError(f"{self.name}: buffer {u.arg.slot} has {array.size} elements, the kernel uses {size}")
        return array

    @staticmethod
    def _do(body: list[_Step], s: _State) -> None:
        for step in body:
            step(s)

    # --- structure ---

    def _nest(self) -> list[_Step]:
        open_blocks: list[tuple[UOp | None, list[_Step]]] = [(None, [])]
        for u in self.uops:
            if u.op is Ops.RANGE or u.op is Ops.IF:
                open_blocks.append((u, []))
            elif u.op is Ops.ENDIF:
                opened, body = open_blocks.pop()
                if opened is not u.src[0]:
                    raise KernelError(f"{self.name}: an ENDIF does not close the innermost block")
                open_blocks[-1][1].append(self._if(u.src[0], body))
            elif u.op is Ops.END:
                ranges = [r for r in u.src[1:] if r.op is Ops.RANGE]
                condition = u.src[-1] if u.src[-1].op is not Ops.RANGE and len(u.src) > 1 + len(ranges) else None
                for r in sorted(ranges, key=lambda r: -self._slot[r]):
                    opened, body = open_blocks.pop()
                    if opened is not r:
                        raise KernelError(f"{self.name}: an END closes {r.arg}, which is not the innermost block")
                    open_blocks[-1][1].append(self._loop(r, body, condition))
                    condition = None
            elif u.op not in (Ops.SINK, Ops.GROUP, Ops.NOOP, Ops.BARRIER, Ops.WAIT, Ops.LINEAR):
                step = self._step(u)
                if step is not None:
                    open_blocks[-1][1].append(step)
        if len(open_blocks) != 1:
            raise KernelError(f"{self.name}: {open_blocks[-1][0].op.name} is never closed")  # type: ignore[union-attr]
        return open_blocks[0][1]

    def _loop(self, r: UOp, body: list[_Step], condition: UOp | None) -> _Step:
        k, end, kind = self._slot[r], self._slot[r.src[0]], alu.register_type(r.dtype)
        c = None if condition is None else self._slot[condition]

        def loop(s: _State) -> None:
            outer, ends = s.mask, s.v[end]
            stay = outer
            for i in range(int(ends.max())):
                s.mask = stay if ends.size == 1 else _both(stay, i < ends)
                s.v[k] = np.array([[i]], kind)
                for step in body:
                    step(s)
                if c is not None:
                    stay = _both(s.mask, s.v[c])
                    if not stay.any():
                        break
            s.mask = outer

        return loop

    def _if(self, u: UOp, body: list[_Step]) -> _Step:
        c = self._slot[u.src[0]]

        def branch(s: _State) -> None:
            outer = s.mask
            s.mask = _both(outer, s.v[c])
            if s.mask.any():
                for step in body:
                    step(s)
            s.mask = outer

        return branch

    # --- nodes ---

    def _step(self, u: UOp) -> _Step | None:
        make = _NODES.get(u.op)
        if make is not None:
            return make(self, u)
        if u.op in OpGroup.ALU:
            return self._alu(u)
        if u.op in (Ops.CUSTOM, Ops.CUSTOMI, Ops.INS):
            raise KernelError(f"{self.name} holds inline source ({u.arg!r}) of another target: PYTHON cannot run it")
        raise KernelError(f"{self.name}: {u.op.name} is not of the program form, or not on PYTHON")

    def _source(self, u: UOp, dtype: DType) -> Callable[[_State], Array]:
        """The value of `u` as `dtype` (a weak constant, or a number of the loops' type, meets another type here)."""
        k = self._slot[u]
        if alu.register_type(u.dtype) is alu.register_type(dtype):
            return lambda s: s.v[k]  # type: ignore[no-any-return]
        src = u.dtype
        return lambda s: alu.cast(s.v[k], src, dtype)

    def _alu(self, u: UOp) -> _Step:
        k = self._slot[u]
        if u.op in OpGroup.COMPARISON:
            concrete = [x.dtype for x in u.src if not x.dtype.weak]
            dtype = promote(*(concrete or [x.dtype for x in u.src]))
        else:
            dtype = u.dtype
        operand = operand_of(u)
        if operand is not None:
            get_operand = self._source(operand, dtype)

            def composed(s: _State) -> None:
                s.v[k] = alu.composed(u.op, get_operand(s), dtype)

            return composed
        kinds = [dtypes.bool if u.op is Ops.WHERE and i == 0 else dtype for i in range(len(u.src))]
        get = [self._source(x, t) for x, t in zip(u.src, kinds, strict=True)]
        try:
            fn = alu.function(u.op, dtype)
        except NotImplementedError as error:
            raise KernelError(f"{self.name}: {error}") from None

        def step(s: _State) -> None:
            s.v[k] = fn(*[g(s) for g in get])

        return step

    def _cast(self, u: UOp) -> _Step:
        k, x, src, dst = self._slot[u], self._slot[u.src[0]], u.src[0].dtype, u.dtype

        def step(s: _State) -> None:
            s.v[k] = alu.cast(s.v[x], src, dst)

        return step

    def _bitcast(self, u: UOp) -> _Step:
        k, x, src, dst = self._slot[u], self._slot[u.src[0]], u.src[0].dtype, u.dtype

        def step(s: _State) -> None:
            s.v[k] = alu.bitcast(s.v[x], src, dst)

        return step

    def _pairs(self, u: UOp) -> _Step:
        if u.arg != (dtypes.bfloat16, 2):
            raise KernelError(f"{self.name}: WMMA of {u.arg!r} is not on PYTHON")
        k, x, y, total = self._slot[u], *[self._slot[s] for s in u.src]

        def step(s: _State) -> None:
            s.v[k] = alu.pair_products(s.v[x], s.v[y], s.v[total])

        return step

    def _const(self, u: UOp) -> _Step:
        k, value = self._slot[u], alu.constant(u.arg, u.dtype)

        def step(s: _State) -> None:
            s.v[k] = value

        return step

    def _special(self, u: UOp) -> _Step:
        k, kind = self._slot[u], alu.register_type(u.dtype)

        def step(s: _State) -> None:
            s.v[k] = np.arange(s.first, s.first + s.lanes, dtype=kind)[:, None]

        return step

    def _param(self, u: UOp) -> _Step:
        k, kind = self._slot[u], alu.register_type(u.dtype)
        if u.is_variable:
            at = self.variables.index(u)

            def variable(s: _State) -> None:
                s.v[k] = np.array([[s.variables[at]]], kind)

            return variable
        at = self.params.index(u)

        def buffer(s: _State) -> None:
            s.v[k] = s.buffers[at]

        return buffer

    def _buffer(self, u: UOp) -> _Step:
        if u.arg.addrspace not in (AddrSpace.LOCAL, AddrSpace.REG):
            raise KernelError(f"{self.name}: a BUFFER in {u.arg.addrspace}; kernels have LOCAL and REG ones only")
        k, size, kind = self._slot[u], u.arg.size, np.dtype(alu.storage_type(u.dtype))
        # what nobody has written reads as something that shows: NaN, or 0xA5...
        junk = np.nan if kind.kind == "f" else True if kind.kind == "b" else np.frombuffer(b"\xa5" * 8, kind)[0]

        def step(s: _State) -> None:
            s.v[k] = np.full((s.lanes, size), junk, kind)

        return step

    def _stack(self, u: UOp) -> _Step:
        k, get = self._slot[u], [self._source(x, u.dtype) for x in u.src]

        def step(s: _State) -> None:
            s.v[k] = np.concatenate(np.broadcast_arrays(*[g(s) for g in get]), axis=1)

        return step

    def _index(self, u: UOp) -> _Step:
        k, x, i = self._slot[u], self._slot[u.src[0]], self._slot[u.src[1]]
        if u.src[0].op in OpGroup.STORAGE:
            private = u.src[0].op is Ops.BUFFER

            def address(s: _State) -> None:
                s.v[k] = _Address(s.v[x], s.v[i].astype(np.int64), private)

            return address
        if u.src[1].op is not Ops.CONST:
            raise KernelError(f"{self.name}: a lane of a vector is picked by a value that is no constant")
        at = int(u.src[1].arg)

        def lane(s: _State) -> None:
            s.v[k] = s.v[x][:, at : at + 1]

        return lane

    def _shrink(self, u: UOp) -> _Step:
        k, x, (start, length) = self._slot[u], self._slot[u.src[0]], u.arg
        if u.src[0].op not in OpGroup.STORAGE:

            def part(s: _State) -> None:
                s.v[k] = s.v[x][:, start : start + length]

            return part
        private = u.src[0].op is Ops.BUFFER
        first = None if start is not None else self._slot[u.src[1]]
        steps = np.arange(length)[None, :] + (start or 0)

        def address(s: _State) -> None:
            index = steps if first is None else s.v[first].astype(np.int64) + steps
            s.v[k] = _Address(s.v[x], index, private)

        return address

    def _load(self, u: UOp) -> _Step:
        k, at, dtype = self._slot[u], self._slot[u.src[0]], u.dtype
        alt = self._source(u.src[1], dtype) if len(u.src) > 1 else None
        gate = self._slot[u.src[2]] if len(u.src) > 2 else None

        def step(s: _State) -> None:
            a: _Address = s.v[at]
            allowed = s.mask if gate is None else _both(s.mask, s.v[gate])
            index = self._checked(u, a, allowed, s)
            if not a.memory.size:
                value = np.zeros(index.shape, alu.register_type(dtype))
            elif a.private:
                value = alu.to_register(a.memory[np.arange(s.lanes)[:, None], index], dtype)
            else:
                value = alu.to_register(a.memory[index], dtype)
            s.v[k] = value if alt is None or allowed is None else np.where(allowed, value, alt(s))

        return step

    def _store(self, u: UOp) -> _Step:
        at, value = self._slot[u.src[0]], self._source(u.src[1], u.src[0].dtype)
        gate = self._slot[u.src[2]] if len(u.src) > 2 else None
        dtype = u.src[0].dtype

        def step(s: _State) -> None:
            a: _Address = s.v[at]
            allowed = s.mask if gate is None else _both(s.mask, s.v[gate])
            index, x = self._checked(u, a, allowed, s), alu.to_storage(value(s), dtype)
            if not a.memory.size:
                return
            rows = np.arange(s.lanes)[:, None] if a.private else _ZERO
            if allowed is None:
                if not a.private and len(index) < len(x):  # the lanes write one element: the last stays
                    index, x = np.broadcast_arrays(index, x)
            else:
                rows, index, x, allowed = np.broadcast_arrays(rows, index, x, allowed)
                rows, index, x = rows[allowed], index[allowed], x[allowed]
            if a.private:
                a.memory[rows, index] = x
            else:
                a.memory[index] = x

        return step

    def _atomic(self, u: UOp) -> _Step:
        arg = u.arg if isinstance(u.arg, tuple) else (u.arg,)
        operation = next((x for x in arg if isinstance(x, Ops)), None)
        if operation is None:
            raise KernelError(f"{self.name}: ATOMIC names no operation in {u.arg!r}")
        k, at, dtype = self._slot[u], self._slot[u.src[0]], u.src[0].dtype
        value = self._source(u.src[1], dtype)
        gate = self._slot[u.src[2]] if len(u.src) > 2 else None

        def step(s: _State) -> None:
            a: _Address = s.v[at]
            allowed = s.mask if gate is None else _both(s.mask, s.v[gate])
            index = self._checked(u, a, allowed, s)
            everyone = np.ones((1, 1), np.bool_) if allowed is None else allowed
            lanes = np.arange(s.lanes)[:, None]
            index, x, everyone, lanes = np.broadcast_arrays(index, value(s), everyone, lanes)
            old = np.zeros(index.shape, alu.register_type(dtype))
            for place in zip(*np.nonzero(everyone), strict=True):  # one after the other, in the order of the lanes
                where = (lanes[place], index[place]) if a.private else (index[place],)
                before = alu.to_register(a.memory[where].reshape(1, 1), dtype)
                old[place] = before[0, 0]
                after = x[place].reshape(1, 1)
                if operation is not Ops.STORE:
                    after = alu.evaluate(operation, dtype, before, after)
                a.memory[where] = alu.to_storage(after, dtype)[0, 0]
            s.v[k] = old

        return step

    def _checked(self, u: UOp, a: _Address, allowed: Array | None, s: _State) -> Array:
        """The indices of an access, 0 where the lane takes no part. KernelError where one lies outside the storage."""
        size = a.memory.shape[-1]
        outside = a.index.view(np.uint64) >= size  # negative ones are large then
        if not outside.any():
            return a.index
        if allowed is not None:
            outside, allowed = np.broadcast_arrays(outside & allowed, allowed)
        if outside.any():
            lane, element = (int(x[0]) for x in np.nonzero(outside))
            index = int(np.broadcast_to(a.index, outside.shape)[lane, element])
            storage = u.src[0].src[0]
            what = (
                f"buffer {storage.arg.slot}"
                if storage.op is Ops.PARAM
                else f"{storage.arg.addrspace.name} {storage.arg.slot}"
            )
            loops = [
                f"{r.arg.id}={int(s.v[self._slot[r]][0, 0])}" for r in self._open(u) if s.v[self._slot[r]] is not None
            ]
            raise KernelError(
                f"{self.name}: a {u.op.name} at index {index} is outside {what} of {size} {storage.dtype.name} "
                f"(launch index {s.first + lane if s.lanes > 1 else s.first}"
                + (f", element {element}" if outside.shape[1] > 1 else "")
                + (f", loops {', '.join(loops)})" if loops else ")")
            )
        return np.where(allowed, a.index, 0) if allowed is not None else a.index

    def _open(self, u: UOp) -> list[UOp]:
        """The loops around `u`."""
        out: list[UOp] = []
        for v in self.uops[: self._slot[u]]:
            if v.op is Ops.RANGE:
                out.append(v)
            elif v.op is Ops.END:
                out = [r for r in out if r not in v.src]
        return out


_NODES: dict[Ops, Callable[[Interpreter, UOp], _Step]] = {
    Ops.CONST: Interpreter._const, Ops.PARAM: Interpreter._param, Ops.BUFFER: Interpreter._buffer,
    Ops.SPECIAL: Interpreter._special, Ops.CAST: Interpreter._cast, Ops.BITCAST: Interpreter._bitcast,
    Ops.STACK: Interpreter._stack, Ops.INDEX: Interpreter._index, Ops.SHRINK: Interpreter._shrink,
    Ops.LOAD: Interpreter._load, Ops.STORE: Interpreter._store, Ops.ATOMIC: Interpreter._atomic,
    Ops.WMMA: Interpreter._pairs,
}  # fmt: skip


def _both(a: Array | None, b: Array) -> Array:
    return b if a is None else a & b


def interpret(
    uops: Sequence[UOp],
    buffers: Sequence[Any],
    variables: Mapping[str, int] | Sequence[int] = (),
    chunks: int = 1,
    name: str = "kernel",
) -> None:
    """Interpret a program over `chunks` launch indices.

    `uops` are the nodes of a LINEAR, or it alone; `buffers` arrays or writable memory, by slot; `variables` by name, or
    in the order of their names.

    Errors: KernelError; see `Interpreter`.
    """
    Interpreter(uops, name).run(buffers, variables, chunks)
