"""The node: an immutable, hash-consed UOp, and what is derived from it once and cached: shape, bounds, loops, digest.

Equal nodes are one object, so `is` compares graphs. Nothing here recurses over the depth of a graph.
"""

from __future__ import annotations

import itertools
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any, Union

from aril.dtype import DType, PyScalar, dtypes, strong, to_dtype, wrap
from aril.forks import renewed_in_child
from aril.mixin import OpMixin
from aril.mixin.base import as_int
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace, AxisType, KernelInfo, ParamArg, RangeArg
from aril.uop.derive import derive_digest, derive_dtype, derive_ranges, device_of
from aril.uop.order import pending, toposort

sint = Union[int, "UOp"]
Shape = tuple[sint, ...]


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that remembers the key under which its node is interned."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


# The intern table. Values are weak; the key holds the sources, so a node's sources outlive it until its entry is swept.
# A dead entry is only noted in the callback and swept later in a loop: dropping a chain of any depth never recurses.
_nodes: dict[tuple[Any, ...], _Ref] = {}
_dead: list[_Ref] = []
_lock = renewed_in_child(sys.modules[__name__], "_lock")
_note_dead = _dead.append
# "origin": hook that names the user's line for new nodes, set while something asks for it; "sorted": the kernel whose
# nodes were put in order last, and the nodes
_state: dict[str, Any] = {"origin": None, "sorted": (None, {})}


def _sweep() -> None:
    with _lock:
        while _dead:
            try:
                ref = _dead.pop()
            except IndexError:  # another thread's garbage collection took it
                return
            key = ref.key
            if _nodes.get(key) is ref:
                del _nodes[key]
            del key
            del ref  # its key holds the sources: let go before asking whether more has died


def live_nodes() -> int:
    """How many nodes are alive, after sweeping those that have died."""
    _sweep()
    return len(_nodes)


def track_origin(hook: Callable[[], str | None] | None) -> None:
    """Record `hook()` (the user's line) on every node made from now on; None stops recording."""
    _state["origin"] = hook


_NAN = float("nan")


def _const_key(value: PyScalar) -> object:
    # 0.0 == -0.0 and nan != nan, yet as constants the first two differ and nan is one value
    return ("0", math.copysign(1.0, value)) if value.__class__ is float and value == 0 else value


class SymbolicShape(tuple[Any, ...]):
    """A shape with expressions among its dimensions: a tuple whose text is for people."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"({', '.join(map(str, self))}{',' if len(self) == 1 else ''})"


class UOp(OpMixin):
    """One node: `(op, dtype, src, arg, tag)`. Construct with the helpers below or `UOp(op, src, arg, dtype)`.

    `dtype` is derived from op, sources and argument unless it is a choice (CAST, BITCAST, CONST, CUSTOM).
    """

    __slots__ = (
        "op", "dtype", "src", "arg", "tag", "_shape", "_bounds", "_live", "_digest", "_device", "_simplified",
        "storage", "origin", "came_from", "__weakref__",
    )  # fmt: skip

    op: Ops
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    tag: Any
    storage: Any  # the device buffer behind a BUFFER node, put there by the rooms that know devices
    origin: str | None
    came_from: list[weakref.ref[UOp]]  # only on storage that graphs were realized into: their nodes, whose value it is
    # known once they have been asked for
    _shape: Any
    _bounds: Any
    _live: Any
    _digest: Any
    _device: Any  # False where it is not known
    _simplified: Any  # the simplified node; True where it is this one

    def __new__(
        cls, op: Ops, src: tuple[UOp, ...] = (), arg: Any = None, dtype: DType | None = None, tag: Any = None
    ) -> UOp:
        if dtype is None:
            dtype = derive_dtype(op, src, arg)
        if op is Ops.CONST:
            if dtype.kind == "f" and arg.__class__ is not float:
                arg = float(arg)  # 1 == 1.0, yet a constant of a float type is a float
            key: tuple[Any, ...] = (op, dtype, src, _const_key(arg), tag)
        else:
            key = (op, dtype, src, arg, tag)
        ref = _nodes.get(key)
        if ref is not None:
            found = ref()
            if found is not None:
                return found  # type: ignore[no-any-return]
        self = object.__new__(cls)
        self.op = op
        self.dtype = dtype
        self.src = src
        self.arg = arg
        self.tag = tag
        self._shape = self._bounds = self._live = self._digest = self._simplified = self.storage = None
        self._device = False
        self.origin = _state["origin"]() if _state["origin"] is not None else None
        own = _Ref(self, _note_dead)
        own.key = key
        if _dead:
            _sweep()
        if _nodes.setdefault(key, own) is not own:  # one step for any number of threads
            with _lock:  # an entry that has died, or another thread was faster
                found = _nodes[key]() if key in _nodes else None
                if found is not None:
                    return found  # type: ignore[no-any-return]
                _nodes[key] = own
        return self

    # --- identity ---

    def __reduce__(self) -> tuple[Any, ...]:
        order = list(self.toposort())
        index = {u: i for i, u in enumerate(order)}
        return (_rebuild, ([(u.op, tuple(index[s] for s in u.src), u.arg, u.dtype, u.tag) for u in order],))

    def __copy__(self) -> UOp:
        return self

    def __deepcopy__(self, memo: object) -> UOp:
        return self

    def __repr__(self) -> str:
        from aril.uop.render import to_source

        return to_source(self)

    def __str__(self) -> str:
        from aril.uop.render import to_dim

        return to_dim(self) or repr(self)

    def replace(self, **changes: Any) -> UOp:
        """The node with some of `op, src, arg, dtype, tag` changed. A derived dtype is derived again."""
        op, src, arg = changes.get("op", self.op), changes.get("src", self.src), changes.get("arg", self.arg)
        dtype = changes.get("dtype", self.dtype if op in _CHOSEN_DTYPE or op is not self.op else None)
        return UOp(op, src, arg, dtype, changes.get("tag", self.tag))

    def with_src(self, src: tuple[UOp, ...]) -> UOp:
        """The same node over other sources."""
        if src == self.src:
            return self
        out = UOp(self.op, src, self.arg, self.dtype if self.op in _CHOSEN_DTYPE else None, self.tag)
        if self.origin is not None:
            out.origin = self.origin
        return out

    # --- walks ---

    def toposort(self, enter: Callable[[UOp], bool] | None = None) -> dict[UOp, None]:
        """Every node reachable from this one, sources first (a dict used as an ordered set). Where `enter(node)` is
        false the node is listed but its sources are not walked."""
        if enter is not None or self.arg.__class__ is not KernelInfo:
            return toposort((self,), enter)
        kernel, order = _state["sorted"]  # the passes over a kernel ask for it one after another
        if kernel is not self:
            order = toposort((self,))
            _state["sorted"] = self, order
        return order  # type: ignore[no-any-return]

    def substitute(self, mapping: dict[UOp, UOp], within: Callable[[UOp], bool] | None = None) -> UOp:
        """The graph with each key replaced by its value. Values are not searched again; where `within(node)` is false,
        a node stays with all that is below it."""
        if not mapping:
            return self
        done: dict[UOp, UOp] = dict(mapping)
        for u in self.toposort(lambda n: n not in mapping and (within is None or within(n))):
            if u not in done:
                stays = within is not None and not within(u)
                done[u] = u if stays else u.with_src(tuple([done[s] for s in u.src]))
        return done[self]

    @property
    def digest(self) -> bytes:
        """16 bytes naming the graph's structure, the same in every process. Storage is named by its argument."""
        if self._digest is None:
            _derive(self, "_digest", derive_digest)
        return self._digest  # type: ignore[no-any-return]

    # --- derived ---

    @property
    def shape(self) -> Shape:
        """The logical shape: ints, or expressions where a dimension is symbolic."""
        if self._shape is None:
            from aril.uop.shape import derive_shape

            _derive(self, "_shape", derive_shape)
        return self._shape  # type: ignore[no-any-return]

    @property
    def bounds(self) -> tuple[Any, Any]:
        """(least, greatest) value an integer or bool expression can take; (-inf, inf) for floats."""
        if self._bounds is None:
            from aril.uop.bounds import derive_bounds

            _derive(self, "_bounds", derive_bounds)
        return self._bounds  # type: ignore[no-any-return]

    @property
    def vmin(self) -> Any:
        return self.bounds[0]

    @property
    def vmax(self) -> Any:
        return self.bounds[1]

    @property
    def ranges(self) -> frozenset[UOp]:
        """The loops this value lies in: RANGE nodes it depends on that no REDUCE or END on the way has closed."""
        if self._live is None:
            _derive(self, "_live", derive_ranges)
        return self._live  # type: ignore[no-any-return]

    @property
    def device(self) -> str | tuple[str, ...] | None:
        """The device the value lies on; None for constants and expressions of nothing else."""
        if self._device is False:
            stack = [self]
            while stack:
                u = stack[-1]
                waits_for, found = device_of(u)
                if waits_for is not None:
                    stack.append(waits_for)
                else:
                    u._device = found
                    stack.pop()
        return self._device  # type: ignore[no-any-return]

    @property
    def base(self) -> UOp:
        """The storage or computation below views (movement operations, DETACH and AFTER)."""
        u = self
        while u.op in OpGroup.MOVEMENT or u.op is Ops.AFTER or u.op is Ops.DETACH:
            u = u.src[0]
        return u

    # --- primitives of the mixins ---

    @classmethod
    def const(cls, dtype: DType, value: PyScalar | UOp) -> UOp:
        """A scalar constant of `dtype`; the value is wrapped or rounded to it."""
        if isinstance(value, UOp):
            return value.cast(dtype)
        if value.__class__ is float and value != value:
            value = _NAN
        return UOp(Ops.CONST, (), wrap(value, dtype), dtype)

    @staticmethod
    def lift(value: PyScalar | UOp) -> UOp:
        """A Python scalar as a weak constant; a UOp as it is."""
        if isinstance(value, UOp):
            return value
        return UOp(Ops.CONST, (), _NAN if value != value else value, dtypes.from_py(value))

    def const_like(self, value: PyScalar) -> UOp:
        """A scalar constant of this node's dtype (it broadcasts against anything)."""
        return UOp.const(self.dtype, value)

    def alu(self, op: Ops, *src: UOp) -> UOp:
        """The elementwise node `op(self, *src)`; no promotion, no broadcasting but of scalars."""
        return UOp(op, (self, *src))

    def cast(self, dtype: Any) -> UOp:
        dtype = to_dtype(dtype)
        if self.dtype is dtype:
            return self
        if self.op is Ops.CONST:
            return UOp.const(dtype, self.arg)
        return UOp(Ops.CAST, (self,), None, dtype)

    def bitcast(self, dtype: Any) -> UOp:
        dtype = to_dtype(dtype)
        return self if self.dtype is dtype else UOp(Ops.BITCAST, (self,), None, dtype)

    def valid(self, gate: UOp) -> UOp:
        """This index where `gate` holds, Invalid elsewhere."""
        return (
            self if gate.op is Ops.CONST and gate.arg is True else UOp(Ops.WHERE, (gate, self, UOp.invalid(self.dtype)))
        )

    def lesser(self, other: UOp) -> UOp:
        """The lesser of two integer expressions: there is no MIN among the operations."""
        return UOp(Ops.WHERE, (UOp(Ops.CMPLT, (self, other)), self, other))

    @staticmethod
    def invalid(dtype: DType = dtypes.weakint) -> UOp:
        """The value that marks "no element here"."""
        return UOp(Ops.Invalid, (), None, dtype)

    # --- primitives of the mixins (aril/mixin/base.py): arguments are complete and checked ---

    def _alu(self, op: Ops, *others: UOp) -> UOp:
        return UOp(op, (self, *others))

    def _reshape(self, shape: Shape) -> UOp:
        return _shapes.reshape(self, shape)

    def _expand(self, shape: Shape) -> UOp:
        return _shapes.expand(self, shape)

    def _permute(self, order: tuple[int, ...]) -> UOp:
        return _shapes.permute(self, order)

    def _pad(self, pairs: tuple[tuple[sint, sint], ...], fill: PyScalar = 0) -> UOp:
        return _shapes.pad(self, pairs, wrap(fill, self.dtype))

    def _shrink(self, pairs: tuple[tuple[sint, sint], ...]) -> UOp:
        return _shapes.shrink(self, pairs)

    def _flip(self, axes: tuple[int, ...]) -> UOp:
        return _shapes.flip(self, axes)

    def _shear(self, axis: int, by: int, step: int, offset: int, length: int) -> UOp:
        return _shapes.shear(self, axis, by, step, offset, length)

    def _reduce(self, op: Ops, axes: tuple[int, ...]) -> UOp:
        return _shapes.reduce(self, op, axes)

    def _take(self, index: UOp) -> UOp:
        return UOp(Ops.INDEX, (self, index))

    def _scatter(self, values: UOp, positions: UOp, op: Ops) -> UOp:
        return _shapes.scatter(self, values, positions, op)

    def _const(self, dtype: DType, value: PyScalar) -> UOp:
        return UOp.const(dtype, value)

    def _iota(self, n: sint) -> UOp:
        return UOp.iota(n)

    def _lift(self, value: PyScalar | UOp) -> UOp:
        return UOp.lift(value)

    def _invalid(self, dtype: DType) -> UOp:
        return UOp.invalid(dtype)

    def _as_dim(self) -> sint:
        """This expression as a dimension: simplified, an int where it is one."""
        from aril.uop.symbolic import simplify

        out = simplify(self)
        return int(out.arg) if out.op is Ops.CONST else out

    def _bound_dim(self) -> sint:
        """This dimension with the values that its variables are bound to; an int where all of them have one."""
        return self.substitute({u: u.src[1] for u in self.toposort() if u.op is Ops.BIND})._as_dim()

    @staticmethod
    def integer(n: sint) -> UOp:
        """A dimension, position or offset as a node."""
        return n if isinstance(n, UOp) else UOp.const(dtypes.weakint, n)

    @staticmethod
    def iota(n: sint) -> UOp:
        """The vector 0, 1, .., n - 1 of weak integers (tensor form): its element is its index."""
        return UOp(Ops.SPECIAL, (UOp.integer(n),), "iota")

    def detach(self) -> UOp:
        """This value, through which no gradient flows."""
        return UOp(Ops.DETACH, (self,))

    def contiguous(self) -> UOp:
        """This value, stored in its own order."""
        return UOp(Ops.CONTIGUOUS, (self,))

    def contiguous_backward(self) -> UOp:
        """This value; its gradient is stored."""
        return UOp(Ops.CONTIGUOUS_BACKWARD, (self,))

    # --- storage ---

    @staticmethod
    def param(slot: int, dtype: Any, size: int | None = None, **more: Any) -> UOp:
        """The flat parameter number `slot`: shape (size,), or () where size is None. `more`: fields of ParamArg."""
        dtype = to_dtype(dtype)
        _need_storable(dtype, more.get("addrspace"))
        return UOp(Ops.PARAM, (), ParamArg(slot, dtype, size, **more), dtype)

    @staticmethod
    def param_from_shape(slot: int, shape: Shape, dtype: Any, device: Any = None, **more: Any) -> UOp:
        """Parameter `slot` seen at `shape`: a view on the flat one, with room for the largest dimensions."""
        size = math.prod(d if isinstance(d, int) else int(d.vmax) for d in shape)
        flat = UOp.param(slot, dtype, size, device=device, **more)
        return view_flat(flat, shape)

    def param_like(self, slot: int) -> UOp:
        """A parameter that stands for this value: same shape, dtype and device."""
        return UOp.param_from_shape(slot, self.shape, strong(self.dtype), self.device)

    @staticmethod
    def placeholder(shape: Shape | int, dtype: Any, slot: int, addrspace: AddrSpace = AddrSpace.GLOBAL) -> UOp:
        """Storage of a hand-written kernel: a parameter (GLOBAL), or memory of the kernel's own (LOCAL, REG)."""
        shape = (shape,) if isinstance(shape, int) else shape
        if addrspace is AddrSpace.GLOBAL:
            return UOp.param_from_shape(slot, shape, dtype)
        size = math.prod([int(d) for d in shape])  # type: ignore[arg-type,misc]
        return view_flat(UOp.buffer(slot, dtype, size, addrspace), shape)

    def volatile(self) -> UOp:
        """This parameter of a hand-written kernel as memory that others change or watch: its loads and stores happen
        as they are written, each of them, in order."""
        base = self.base
        return self.substitute({base: base.replace(arg=base.arg._replace(volatile=True))})

    @staticmethod
    def buffer(slot: int, dtype: Any, size: int, addrspace: AddrSpace = AddrSpace.GLOBAL, **more: Any) -> UOp:
        """A BUFFER node with a slot of the caller's choice (kernels number their own LOCAL and REG memory)."""
        dtype = to_dtype(dtype)
        _need_storable(dtype, addrspace)
        return UOp(Ops.BUFFER, (), ParamArg(slot, dtype, size, addrspace=addrspace, **more), dtype)

    @staticmethod
    def new_buffer(device: str | tuple[str, ...], size: int, dtype: Any) -> UOp:
        """Fresh device storage, unlike any other. Nothing is allocated until it is written."""
        dtype = to_dtype(dtype)
        _need_storable(dtype, None)
        arg = ParamArg(next(_buffer_number), dtype, size, None, 1, None, AddrSpace.GLOBAL, None, device)
        return UOp(Ops.BUFFER, (), arg, dtype)

    @staticmethod
    def variable(name: str, vmin: int, vmax: int, dtype: DType = dtypes.weakint) -> UOp:
        """A named integer within [vmin, vmax], unknown until it is bound."""
        if not isinstance(name, str):
            raise TypeError(f"Variable: the name is text, not {name!r}")
        vmin = as_int(f"Variable {name!r}: the least value", vmin)
        vmax = as_int(f"Variable {name!r}: the greatest value", vmax)
        if vmin > vmax:
            raise ValueError(f"Variable {name!r}: the least value {vmin} is above the greatest {vmax}")
        return UOp(Ops.PARAM, (), ParamArg(-1, dtype, None, (vmin, vmax), name=name, addrspace=AddrSpace.ALU), dtype)

    def bind(self, value: int) -> UOp:
        """The variable carrying a value. Errors: ValueError outside its bounds."""
        low, high = self.arg.vmin_vmax
        value = as_int(f"Variable {self.arg.name!r}: a value", value)
        if not low <= value <= high:
            raise ValueError(f"Variable {self.arg.name!r} takes {low} to {high}, not {value}")
        return UOp(Ops.BIND, (self, UOp.const(self.dtype, value)))

    def unbind(self) -> tuple[UOp, int]:
        """(variable, value) of a bound variable."""
        if self.op is not Ops.BIND:
            raise ValueError(f"{self.op} is not a bound variable")
        return self.src[0], int(self.src[1].arg)

    @property
    def is_variable(self) -> bool:
        return self.op is Ops.PARAM and self.arg.addrspace is AddrSpace.ALU

    # --- loops and effects ---

    @staticmethod
    def range(end: sint, id: int | tuple[int, ...], kind: AxisType = AxisType.LOOP) -> UOp:
        """The loop variable over 0..end-1."""
        end = UOp.integer(end)
        return UOp(Ops.RANGE, (end,), RangeArg(id if isinstance(id, tuple) else (id,), kind))

    @staticmethod
    def special(n: sint, name: str) -> UOp:
        """A hardware index in 0..n-1."""
        return UOp(Ops.SPECIAL, (UOp.integer(n),), name)

    @staticmethod
    def loop(id: int | tuple[int, ...], kind: AxisType = AxisType.LOOP) -> UOp:
        """The counter of a loop without an end of its own: END closes it with a condition to go on."""
        return UOp.range((1 << 31) - 1, id, kind)

    @staticmethod
    def barrier(*src: UOp) -> UOp:
        """All lanes of a work group have done the effects in `src`: wait for it with `after`."""
        return UOp(Ops.BARRIER, src)

    def atomic(self, op: Ops, value: UOp | PyScalar, gate: UOp | None = None, order: str = "relaxed") -> UOp:
        """The old value at this address, which becomes `op(old, value)` (Ops.STORE: `value`) in one step."""
        value = value if isinstance(value, UOp) else UOp.const(self.dtype, value)
        return UOp(Ops.ATOMIC, (self, value) if gate is None else (self, value, gate), (op, order))

    def __getitem__(self, idx: sint | tuple[sint, ...]) -> UOp:
        """`index` as hand-written kernels write it: one integer or expression for each of the first axes."""
        return self.index(*(idx if isinstance(idx, tuple) else (idx,)))

    __iter__ = None  # a node is no sequence, though it has elements

    def __bool__(self) -> bool:
        """The truth of an expression that its bounds settle. Errors: TypeError where they do not, and for all else."""
        if self.dtype is not dtypes.void and self.shape == ():
            from aril.uop.symbolic import simplify

            known = simplify(self)
            low, high = known.bounds
            if known.op is Ops.CONST:
                return bool(known.arg)
            if low > 0 or high < 0:
                return True
        from aril.uop.render import to_line

        raise TypeError(
            f"the truth of {to_line(self)} is not known while a graph is made, so Python's if, and, not, min and the "
            "like cannot use it: choose with condition.where(a, b), join conditions by & and |, turn one round by "
            "logical_not(); of what may be missing ask whether it `is None`"
        )

    def end(self, *ranges: UOp, condition: UOp | None = None) -> UOp:
        """This effect done for every turn of `ranges` (and, with a condition, while it holds)."""
        return UOp(Ops.END, (self, *ranges) if condition is None else (self, *ranges, condition)) if ranges else self

    def after(self, *deps: UOp) -> UOp:
        """This value, once `deps` have happened."""
        return UOp(Ops.AFTER, (self, *deps)) if deps else self

    def store(self, value: UOp | PyScalar, gate: UOp | None = None) -> UOp:
        """The effect of writing `value` at this address, where the gate holds."""
        value = value if isinstance(value, UOp) else UOp.const(self.dtype, value)
        return UOp(Ops.STORE, (self, value) if gate is None else (self, value, gate))

    def load(self, *alt_gate: UOp, hint: str | None = None) -> UOp:
        """The value at this address; with (alternative, gate), the alternative where the gate is false."""
        return UOp(Ops.LOAD, (self, *alt_gate), hint)

    def index(self, *idx: sint) -> UOp:
        """Elements of this value, or the address of elements of this storage."""
        return UOp(Ops.INDEX, (self, *[UOp.integer(i) for i in idx]))

    @staticmethod
    def vector(*src: UOp) -> UOp:
        """A leading axis of `src`: in kernels, a vector of scalars."""
        return UOp(Ops.STACK, src)

    # these two also end a chain of calls: `x.store(y).end(i).sink()`
    def sink(*src: UOp, arg: Any = None) -> UOp:
        """The kernel of these effects; `arg` is its KernelInfo."""
        return UOp(Ops.SINK, src, arg)

    def group(*src: UOp) -> UOp:
        """These effects, as one."""
        return src[0] if len(src) == 1 else UOp(Ops.GROUP, src)


Variable = UOp.variable
_buffer_number = itertools.count(1)  # its `next` is one step for any number of threads
_CHOSEN_DTYPE = frozenset({
    Ops.CAST, Ops.BITCAST, Ops.CONST, Ops.Invalid, Ops.CUSTOM, Ops.CUSTOMI, Ops.INS, Ops.PARAM, Ops.BUFFER, Ops.WMMA,
    Ops.CALL, Ops.CUSTOM_FUNCTION,
})  # fmt: skip


def _need_storable(dtype: DType, addrspace: AddrSpace | None) -> None:
    if dtype.weak and addrspace is not AddrSpace.ALU:
        raise TypeError(
            f"storage of {dtype.name} cannot exist: a weak type has no size; cast to {strong(dtype).name} first"
        )


def _derive(u: UOp, slot: str, rule: Callable[[UOp], Any]) -> None:
    """Fill the cached `slot` of a node that lacks it, and of what lacks it below."""
    for s in u.src:
        if getattr(s, slot) is None:
            for n in pending(u, slot):
                setattr(n, slot, rule(n))
            return
    setattr(u, slot, rule(u))


def _rebuild(rows: list[tuple[Any, ...]]) -> UOp:
    built: list[UOp] = []
    for op, src, arg, dtype, tag in rows:
        built.append(UOp(op, tuple([built[i] for i in src]), arg, dtype, tag))
    return built[-1]


def view_flat(flat: UOp, shape: Shape) -> UOp:
    """Flat storage seen at `shape`: RESHAPE, then SHRINK where a dimension is symbolic."""
    largest = tuple(d if isinstance(d, int) else int(d.vmax) for d in shape)
    from aril.uop.shape import reshape, shrink

    out = reshape(flat, largest)
    return out if largest == shape else shrink(out, tuple((0, d) for d in shape))


from aril.uop import shape as _shapes  # noqa: E402  (it builds nodes, nodes move by it)
