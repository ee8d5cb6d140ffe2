"""The primitives on which the vocabulary is written: what Tensor and UOp each implement, and matching of two operands.

In come values with `shape` and `dtype`; everything in the other files of this room is composed of what is declared
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from aril.dtype import DType, DTypeLike, dtypes, promote, strong
from aril.ops import Ops

Dim = Any  # an int, or an expression where a dimension is symbolic
Shape = tuple[Dim, ...]


# With a multiple of 2**bits more the result is the same: integers that do not fit are taken as they wrap.
_MODULAR = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.POW, Ops.AND, Ops.OR, Ops.XOR})


class BaseMixin:
    """What a value must offer. Movement primitives take complete, checked arguments; the public methods check."""

    __slots__ = ()

    # Tensors of a weak type cannot exist, index expressions are made of them.
    _always_concrete = False

    if TYPE_CHECKING:

        @property
        def shape(self) -> Shape: ...

        dtype: DType

        def _alu(self, op: Ops, *others: Self) -> Self: ...
        def _reshape(self, shape: Shape) -> Self: ...
        def _expand(self, shape: Shape) -> Self: ...
        def _permute(self, order: tuple[int, ...]) -> Self: ...
        def _pad(self, pairs: tuple[tuple[Dim, Dim], ...], fill: Any = 0) -> Self: ...
        def _shrink(self, pairs: tuple[tuple[Dim, Dim], ...]) -> Self: ...
        def _flip(self, axes: tuple[int, ...]) -> Self: ...
        def _shear(self, axis: int, by: int, step: int, offset: int, length: int) -> Self: ...
        def _reduce(self, op: Ops, axes: tuple[int, ...]) -> Self: ...
        def _take(self, index: Self) -> Self: ...
        def _scatter(self, values: Self, positions: Self, op: Ops) -> Self: ...
        def _const(self, dtype: DType, value: Any) -> Self: ...
        def _iota(self, n: Dim) -> Self: ...
        def _lift(self, value: Any) -> Self: ...
        def _invalid(self, dtype: DType) -> Self: ...
        def cast(self, dtype: DTypeLike) -> Self: ...
        def bitcast(self, dtype: DTypeLike) -> Self: ...
        def detach(self) -> Self: ...
        def contiguous(self) -> Self: ...
        def __add__(self, x: Any) -> Self: ...
        def __sub__(self, x: Any) -> Self: ...
        def __mul__(self, x: Any) -> Self: ...
        def __and__(self, x: Any) -> Self: ...
        def __neg__(self) -> Self: ...
        def logical_not(self) -> Self: ...
        def exp(self) -> Self: ...
        def log(self) -> Self: ...
        def sqrt(self) -> Self: ...

    def _yields_to(self, other: Any) -> bool:
        """Whether `other` is a value that wraps this kind of value."""
        return hasattr(other, "uop") and not hasattr(self, "uop")

    # --- shape ---

    @property
    def ndim(self) -> int:
        """The number of axes.

        >>> Tensor.zeros(2, 3).ndim
        2
        """
        return len(self.shape)

    def numel(self) -> Dim:
        """The number of elements.

        >>> Tensor.zeros(2, 3).numel()
        6
        """
        return dim_prod(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or its entry `dim`.

        >>> Tensor.zeros(2, 3).size(1)
        3
        """
        return self.shape if dim is None else self.shape[self._axis(dim, "size")]

    def element_size(self) -> int:
        """Bytes of one element.

        >>> Tensor([1.0]).element_size()
        4
        """
        return self.dtype.itemsize

    def nbytes(self) -> Dim:
        """Bytes of all elements.

        >>> Tensor.zeros(2, 3).nbytes()
        24
        """
        return dim_prod((self.numel(), self.dtype.itemsize))

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape with each symbolic dimension at its greatest value.

        >>> Tensor.zeros(2, 3).max_shape
        (2, 3)
        """
        return tuple([d if isinstance(d, int) else int(d.vmax) for d in self.shape])

    def max_numel(self) -> int:
        """The number of elements at the greatest values of symbolic dimensions.

        >>> Tensor.zeros(2, 3).max_numel()
        6
        """
        return math.prod(self.max_shape)

    def is_floating_point(self) -> bool:
        """True for float types.

        >>> Tensor([1]).is_floating_point()
        False
        """
        return self.dtype.kind == "f"

    def _axis(self, dim: Any, what: str, extra: int = 0) -> int:
        """`dim` counted from the front. IndexError names the operation. `extra`: positions beyond the axes allowed."""
        n = len(self.shape) + extra
        if dim.__class__ is not int:
            dim = as_int(f"{what}: an axis", dim)
        if not -max(n, 1) <= dim < max(n, 1):
            raise IndexError(
                f"{what}: axis {dim} does not exist in shape {self.shape}; axes are {-max(n, 1)} to {max(n, 1) - 1}"
            )
        return dim + n if dim < 0 and n else max(dim, 0)

    def _known_length(self, axis: int, what: str) -> int:
        """The length of an axis that has to be known. ValueError for a variable one."""
        n = self.shape[axis]
        if isinstance(n, int):
            return n
        raise ValueError(
            f"{what}: axis {axis} of shape {self.shape} has a variable length, which it cannot take; fill the axis up "
            "with pad_to, or take a part of known length"
        )

    def _to_greatest(self, axis: int, fill: Any = 0) -> Self:
        """An axis of variable length filled up to its greatest with `fill`: operations that look around reach into
        memory of known size, and what they give is cut off where the axis ends."""
        n = self.shape[axis]
        if isinstance(n, int):
            return self
        rest = dim_sub(int(n.vmax), n)
        return self._pad(tuple([(0, rest) if i == axis else (0, 0) for i in range(len(self.shape))]), fill)

    def _first(self, axis: int, n: Dim) -> Self:
        """The first n elements of an axis."""
        return self._shrink(tuple([(0, n) if i == axis else (0, d) for i, d in enumerate(self.shape)]))

    def _axes(self, dims: Any, what: str) -> tuple[int, ...]:
        """One axis, several, or all (None), counted from the front, sorted. ValueError where one comes twice."""
        if dims is None:
            return tuple(range(len(self.shape)))
        if isinstance(dims, (tuple, list)):
            out = tuple(sorted([self._axis(d, what) for d in dims]))
            if len(set(out)) != len(out):
                raise ValueError(f"{what}: an axis comes twice in {tuple(dims)} (shape {self.shape})")
            return out if self.shape else ()
        axis = self._axis(dims, what)
        return (axis,) if self.shape else ()

    def _as_value(self) -> Self:
        """What an operation gives that changes nothing, unless it is documented as a view: as good as computed, so
        what is assigned to the original later does not show in it."""
        return self

    # --- operands ---

    def ufix(self, x: Any) -> Self:
        """`x` as an operand of this value: a Python scalar becomes a constant of the type it takes beside `self`.

        >>> Tensor([1.0]).ufix(2).dtype
        dtypes.float32
        """
        cls = x.__class__
        if cls is self.__class__:
            return x  # type: ignore[no-any-return]
        d = self.dtype
        if cls is float:
            return self._const(d if d.kind == "f" else promote(d, dtypes.weakfloat), x)
        if cls is int:
            if d.kind == "b":
                d = dtypes.weakint if not self._always_concrete else dtypes.default_int()
            return self._const(d, x)
        if cls is bool:
            return self._const(d, x)
        return self._lift(x)

    def _holds(self, x: int) -> bool:
        """Whether the constant that `ufix` makes of an integer is that integer: a float is as near as it gets."""
        d = self.dtype if self.dtype.kind != "b" else dtypes.default_int()
        return d.kind == "f" or d.weak or d.min <= x <= d.max

    def _unchanged(self, x: Any, what: Any) -> Self:
        """`ufix` of a number that is not to wrap. Errors: ValueError for an integer that the type does not hold."""
        if x.__class__ is int and not self._holds(x):
            name = what.name.lower() if isinstance(what, Ops) else what
            raise ValueError(f"{name}: {x} does not fit {self.dtype.name}; cast the tensor to a wider type first")
        return self.ufix(x)

    def _matched(self, other: Any, op: Any = "operation") -> tuple[Self, Self]:
        """`self` and `other` in one dtype and (scalars aside) one shape. Errors: ValueError for an integer that does
        not fit, unless `op` gives the same with what it wraps to."""
        a, b = self, self.ufix(other) if op in _MODULAR else self._unchanged(other, op)
        if a.dtype is not b.dtype:
            a, b = a._promoted(b)
        sa, sb = a.shape, b.shape
        if sa != sb and sa and sb:
            shape = broadcast_shape(sa, sb, what=op)
            a, b = a._broadcast_to(shape), b._broadcast_to(shape)
        return a, b

    def _promoted(self, b: Self) -> tuple[Self, Self]:
        common = promote(self.dtype, b.dtype)
        if common.weak and self._always_concrete:
            common = strong(common)
        return self.cast(common), b.cast(common)

    def _broadcast_to(self, shape: Shape) -> Self:
        """`self` at `shape`, known to be reachable by broadcasting."""
        mine = self.shape
        if mine == shape:
            return self
        missing = len(shape) - len(mine)
        x = self._reshape((1,) * missing + mine) if missing else self
        return x._expand(shape)

    def _binary(self, op: Ops, other: Any, reverse: bool = False) -> Self:
        """The elementwise node of two operands, matched."""
        a, b = self._matched(other, op)
        return b._alu(op, a) if reverse else a._alu(op, b)

    def _wide(self) -> Self:
        """Low-precision floats as float32, in which composite functions are computed; others as they are."""
        d = self.dtype
        return self.cast(dtypes.float32) if d.kind == "f" and d.itemsize < 4 else self

    def _floating(self) -> Self:
        """Integers and bool as the default float; floats as they are."""
        d = self.dtype
        return self if d.kind == "f" else self.cast(dtypes.default_float())


def broadcast_shape(*shapes: Shape, what: Any = "broadcast") -> Shape:
    """The shape that all `shapes` broadcast to, as in NumPy. Errors: ValueError naming the axis that does not fit."""
    rank = max(len(s) for s in shapes)
    out: list[Dim] = []
    for k in range(rank):
        size: Dim = 1
        for s in shapes:
            i = k - rank + len(s)
            if i < 0:
                continue
            d = s[i]
            if same(d, 1) or same(d, size):
                continue
            if not same(size, 1):
                name = what.name.lower() if isinstance(what, Ops) else what
                raise ValueError(
                    f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast: "
                    f"axis {k - rank} has {size} and {d}; sizes must be equal or 1"
                )
            size = d
        out.append(size)
    return tuple(out)


def same(a: Dim, b: Dim) -> bool:
    """True where two dimensions are equal: ints by value, expressions by identity."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def bound(n: Dim) -> Dim:
    """A dimension as a number, as far as its variables are bound to values."""
    return n if isinstance(n, int) else n._bound_dim()


def check_part(what: str, start: Dim, end: Dim, d: Dim, shape: Shape) -> None:
    """Errors: IndexError where elements `start` to `end` (excluded) of an axis of length d do not exist, as far as
    variables in them are bound to values."""
    first, last, n = [bound(x) if hasattr(x, "_bound_dim") else x for x in (start, end, d)]
    if isinstance(first, int) and isinstance(last, int) and isinstance(n, int) and not 0 <= first <= last <= n:
        raise IndexError(f"{what}: {first} to {last} lies outside an axis of {n} (shape {shape})")


def dim_prod(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions, simplified where symbolic."""
    out = math.prod(dims)
    return out if isinstance(out, int) else out._as_dim()


def dim_sum(*dims: Dim) -> Dim:
    """The sum of dimensions, simplified where symbolic."""
    out = sum(dims)
    return out if isinstance(out, int) else out._as_dim()


def dim_sub(a: Dim, b: Dim) -> Dim:
    """a - b of dimensions, simplified where symbolic."""
    out = a - b
    return out if isinstance(out, int) else out._as_dim()


def dim_mod(a: int, b: Dim) -> Dim:
    """a modulo b; where b is symbolic and large enough for it, without a quotient."""
    if isinstance(b, int):
        return a % b
    if 0 <= a < b.vmin:
        return a
    return dim_sum(b, a) if 0 > a >= -b.vmin else (a % b)._as_dim()


def as_int(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """An integer of Python or another library as an int. Errors: TypeError, ValueError outside of `least` to `most`."""
    if value.__class__ is not int:
        if isinstance(value, (bool, type)) or not hasattr(value, "__index__"):
            raise TypeError(f"{what} is an int, not {shown(value)}")
        value = value.__index__()
    if least is not None and value < least:
        raise ValueError(f"{what} is at least {least}, not {value}")
    if most is not None and value > most:
        raise ValueError(f"{what} is at most {most}, not {value}")
    return value  # type: ignore[no-any-return]


def as_number(what: str, value: Any, least: float | None = None, most: float | None = None) -> int | float:
    """A real number of Python or another library as an int or a float. Errors: TypeError, ValueError for an infinity,
    for NaN, and outside of `least` to `most`."""
    if value.__class__ is not float and value.__class__ is not int:
        try:
            if isinstance(value, (bool, str, bytes)):
                raise TypeError
            value = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{what} is a number, not {shown(value)}") from None
    if not -math.inf < value < math.inf:
        raise ValueError(f"{what} is a finite number, not {value}")
    if (least is not None and value < least) or (most is not None and value > most):
        limits = f"is at least {least}" if most is None else f"lies within {least} and {most}"
        raise ValueError(f"{what} {limits}, not {value}")
    return value  # type: ignore[no-any-return]


def as_tuple(what: str, value: Any) -> tuple[Any, ...]:
    """The items of a list, a tuple or another sequence. Errors: TypeError for what has none."""
    if isinstance(value, (str, bytes, dict, type)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} is a list or a tuple, not {shown(value)}")
    return tuple(value)


def need_tensors(what: str, *, optional: tuple[str, ...] = (), **given: Any) -> None:
    """TypeError, with its name, for one of `given` that is no tensor. Those that are `optional` may be None."""
    for name, value in given.items():
        if not isinstance(value, BaseMixin) and (value is not None or name not in optional):
            raise TypeError(f"{what}: {name} is a tensor, not {shown(value)}; Tensor(..) makes one of numbers")


def shown(value: Any) -> str:
    """`value` in a message: its text, or the name of its type where that is long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def length(what: str, value: Any) -> Dim:
    """A dimension or a position: an integer, or an expression in variables. TypeError for anything else."""
    return value if value.__class__ is int or hasattr(value, "_as_dim") else as_int(f"{what}: a dimension", value)


def shape_arg(what: str, args: Iterable[Any], none: bool = False) -> tuple[Any, ...]:
    """Dimensions given one by one or as one tuple or list; `none`: None means something and stays."""
    args = tuple(args)
    if len(args) == 1 and not hasattr(args[0], "_as_dim") and isinstance(args[0], Iterable):
        args = tuple(args[0])
    return tuple([d if d is None and none else length(what, d) for d in args])


def to_pair(what: str, x: Any, n: int = 2, least: int = 0) -> tuple[int, ...]:
    """An int of at least `least` for each of `n` spatial axes, from one int or from `n` of them."""
    if not isinstance(x, Iterable):
        return (as_int(what, x, least),) * n
    out = tuple([as_int(what, v, least) for v in x])
    if len(out) != n:
        raise ValueError(f"{what} is one int or {n} of them, one a spatial axis, not {x!r}")
    return out
