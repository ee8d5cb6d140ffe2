"""Random tensors. Mixed into Tensor.

Counter-based: element i of the n-th draw is Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", 2011) of the counter `start of the draw + i` under the seed as key, so the numbers are the same on every device
and in any order of computation.

A draw's start and key lie in a small buffer, so that all draws of one shape share a kernel. Inside a captured
function the start comes from a tensor on the device that each run moves on, so that every replay draws other numbers;
these counters are the upper half of all, apart from those given out by the host.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any

from aril.config import SEED, TRAINING
from aril.dtype import DTypeLike, dtypes, to_dtype
from aril.forks import renewed_in_child
from aril.mixin.base import BaseMixin, as_int, as_number, need_tensors, shape_arg
from aril.ops import Ops
from aril.tensor_memory import working_device
from aril.tensor_places import canonical_place
from aril.uop import UOp

_CAPTURED = 1 << 63


class _Stream:
    """The state: key, counters given out, and the counters on devices that captured functions use."""

    def __init__(self) -> None:
        self.lock = renewed_in_child(self, "lock")
        self.key: int | None = None
        self.next = 0
        self.captured: dict[Any, Any] = {}

    def seed(self, value: int) -> None:
        with self.lock:
            self.key, self.next = value & (1 << 64) - 1, 0
            for state in self.captured.values():
                state.assign(_state(state.device, _CAPTURED, self.key)).realize()

    def current_key(self) -> int:
        if self.key is None:
            self.seed(SEED.value if SEED.value >= 0 else int.from_bytes(os.urandom(8), "little"))
        assert self.key is not None
        return self.key

    def draw(self, n: int, device: Any) -> Any:
        """(start, key) of a draw of `n` numbers: a uint64 tensor of shape (2,)."""
        from aril.engine.capture import local

        with self.lock:
            key = self.current_key()
            if local.capture is None:
                start, self.next = self.next, self.next + n
                return _state(device, start, key)
            state = self.captured.get(device)
            if state is None:
                state = self.captured[device] = _state(device, _CAPTURED, key)
            # Read after the move, so that whoever computes the numbers also moves the counter.
            moved = state.cat(dim=0) + _pair(n, device)
            state.assign(moved)
            return state._like(state.uop) - _pair(n, device)


def _state(device: Any, start: int, key: int) -> Any:
    from aril.tensor import Tensor

    return Tensor([start, key], dtype=dtypes.uint64, device=device)


def _pair(n: int, device: Any) -> Any:
    from aril.tensor import Tensor

    first = Tensor.arange(2, dtype=dtypes.uint64, device=device).eq(0)
    return first.where(Tensor.full((), n, dtypes.uint64, device), Tensor.full((), 0, dtypes.uint64, device))


_stream = _Stream()


class Mapped:
    """A `vmap` whose function is being traced: what its random draws do, and which were made (node -> elements)."""

    def __init__(self, size: int, randomness: str) -> None:
        self.size, self.randomness = size, randomness
        self.draws: dict[UOp, int] = {}

    def __enter__(self) -> Mapped:
        _maps.open.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _maps.open.pop()

    def record(self, draw: UOp, n: int) -> None:
        """Note a node of `n` random words. ValueError where the function must not draw."""
        if self.randomness == "error":
            raise ValueError("vmap: the function draws random numbers; say randomness='different' or 'same'")
        if self.randomness == "different":
            self.draws[draw] = n

    def batched(self) -> dict[UOp, UOp]:
        """Each draw with one more axis of `size` in front: the words of example i follow those of example i - 1."""
        out = {}
        for draw, n in self.draws.items():
            counter, key = draw.src
            first = (UOp.iota(self.size).cast(counter.dtype) * n)._reshape((self.size, *(1,) * len(counter.shape)))
            every = (self.size, *counter.shape)
            moved = counter._reshape((1, *counter.shape))._expand(every) + first._expand(every)
            new = UOp(Ops.THREEFRY, (moved, key._reshape((1, *key.shape))._expand(every) if key.shape else key))
            out[draw] = new
            if _maps.open:
                _maps.open[-1].record(new, n * self.size)
        return out


class _Maps(threading.local):
    def __init__(self) -> None:
        self.open: list[Mapped] = []


_maps = _Maps()


class RandomMixin:
    """Class methods take the shape one by one or as a tuple, `dtype` (default: the default float) and `device`."""

    __slots__ = ()

    @classmethod
    def manual_seed(cls, seed: int = 0) -> None:
        """Start the random numbers again from `seed`: the same draws follow.

        >>> Tensor.manual_seed(7)
        >>> first = Tensor.rand(2).tolist()
        >>> Tensor.manual_seed(7)
        >>> Tensor.rand(2).tolist() == first
        True
        """
        _stream.seed(int(seed))

    @classmethod
    def random_state(cls) -> dict[str, int]:
        """Where the random numbers stand: give it to `load_random_state` to draw the same ones again."""
        with _stream.lock:
            return {"key": _stream.current_key(), "next": _stream.next}

    @classmethod
    def load_random_state(cls, state: dict[str, int]) -> None:
        """Continue the random numbers where `state` was taken. (Captured functions count their own from the seed.)"""
        with _stream.lock:
            _stream.seed(int(state["key"]))
            _stream.next = int(state["next"])

    @classmethod
    def _words(cls, shape: tuple[int, ...], device: Any) -> Any:
        """64 random bits for each element."""
        from aril.device import Device
        from aril.tensor import Tensor

        for d in shape:
            if not isinstance(d, int) or d < 0:
                raise ValueError(f"random: a dimension is an integer of at least 0, not {d}; draw the greatest and cut")
        place = canonical_place(device) or Device.DEFAULT
        n = math.prod(shape)
        examples = math.prod([m.size for m in _maps.open if m.randomness == "different"])
        state = _stream.draw(n * examples, place)
        start, key = state.shrink(((0, 1),)), state.shrink(((1, 2),))
        counter = Tensor.arange(n, dtype=dtypes.uint64, device=place) + start
        words = counter.threefry(key)
        if _maps.open:
            _maps.open[-1].record(words.uop, n)
        return words.reshape(shape)

    def threefry(self: Any, seed: Any) -> Any:
        """Threefry-2x32, 20 rounds, of uint64 counters under uint64 keys (low word first in both).

        >>> Tensor([0], dtype=dtypes.uint64).threefry(Tensor([0], dtype=dtypes.uint64)).tolist()
        [11077253088097075545]
        """
        need_tensors("threefry", seed=seed)
        a, b = self._matched(seed, "threefry")
        if a.dtype is not dtypes.uint64:
            raise TypeError(f"threefry: counters and keys are uint64, not {self.dtype.name} and {seed.dtype.name}")
        return a._alu(Ops.THREEFRY, b)

    @classmethod
    def random_bits(cls, *shape: Any, device: Any = None) -> Any:
        """32 random bits an element, as uint32.

        >>> Tensor.random_bits(4).dtype
        dtypes.uint32
        """
        return cls._words(shape_arg("random_bits", shape), device).cast(dtypes.uint32)

    @classmethod
    def rand(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Uniform in [0, 1): every multiple of 2**-(mantissa + 1) is equally likely.

        >>> Tensor.rand(2, 3).shape
        (2, 3)
        """
        kind = to_dtype(dtype or dtypes.default_float())
        if kind.kind != "f":
            raise TypeError(f"rand: {kind.name} is no float type; use randint")
        return _unit(cls._words(shape_arg("rand", shape), device), kind)

    def rand_like(self: Any, dtype: DTypeLike | None = None) -> Any:
        """`rand` with this shape, dtype and device.

        >>> Tensor.zeros(2, 3).rand_like().shape
        (2, 3)
        """
        return self.rand(*self.shape, dtype=dtype or self.dtype, device=working_device(self))

    @classmethod
    def randn(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Standard normal, by the transform of Box and Muller (1958) of two uniform numbers a value.

        >>> Tensor.randn(2, 3).shape
        (2, 3)
        """
        kind = to_dtype(dtype or dtypes.default_float())
        if kind.kind != "f":
            raise TypeError(f"randn: {kind.name} is no float type; use randint")
        words = cls._words(shape_arg("randn", shape), device)
        wide = dtypes.float64 if kind is dtypes.float64 else dtypes.float32
        # (0, 1]: the logarithm of 0 never comes up
        u = ((words & 0xFFFFFFFF) + 1).cast(wide) * 2.0**-32
        angle = ((words >> 40).cast(dtypes.int32).cast(wide) * 2.0**-24) * (2 * math.pi)
        return ((u.log() * -2.0).maximum(0.0).sqrt() * angle.sin()).cast(kind)

    def randn_like(self: Any, dtype: DTypeLike | None = None) -> Any:
        """`randn` with this shape, dtype and device.

        >>> Tensor.zeros(2, 3).randn_like().shape
        (2, 3)
        """
        return self.randn(*self.shape, dtype=dtype or self.dtype, device=working_device(self))

    @classmethod
    def randint(
        cls, *shape: Any, low: int = 0, high: int = 10, dtype: DTypeLike | None = None, device: Any = None
    ) -> Any:
        """Whole numbers from low to high - 1, equally likely up to 2**-32 (high - low).

        >>> Tensor.randint(2, 3, low=0, high=10).shape
        (2, 3)
        """
        kind = to_dtype(dtype or dtypes.default_int())
        if kind.kind not in "iu":
            raise TypeError(f"randint: {kind.name} is no integer type")
        low, high = as_int("randint: low", low), as_int("randint: high", high)
        if not (kind.min <= low < high <= kind.max + 1) or high - low > 1 << 32:
            raise ValueError(
                f"randint: low={low}, high={high} must be in order, fit {kind.name}, and differ by at most 2**32"
            )
        words = cls._words(shape_arg("randint", shape), device)
        return ((((words >> 32) * (high - low)) >> 32).cast(dtypes.int64) + low).cast(kind)

    @classmethod
    def uniform(
        cls, *shape: Any, low: float = 0.0, high: float = 1.0, dtype: DTypeLike | None = None, device: Any = None
    ) -> Any:
        """Uniform in [low, high).

        >>> Tensor.uniform(2, 3, low=-1.0, high=1.0).shape
        (2, 3)
        """
        low, high = _number_or_tensor("uniform: low", low), _number_or_tensor("uniform: high", high)
        kind = to_dtype(dtype or dtypes.default_float())
        if kind.kind in "iu":
            return cls.randint(
                *shape_arg("uniform", shape), low=math.ceil(low), high=math.ceil(high), dtype=kind, device=device
            )
        return cls.rand(*shape_arg("uniform", shape), dtype=kind, device=device) * (high - low) + low

    @classmethod
    def normal(
        cls, *shape: Any, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike | None = None, device: Any = None
    ) -> Any:
        """Normal with the mean and standard deviation given.

        >>> Tensor.normal(2, 3, mean=1.0, std=0.5).shape
        (2, 3)
        """
        mean, std = _number_or_tensor("normal: mean", mean), _number_or_tensor("normal: std", std)
        return cls.randn(*shape_arg("normal", shape), dtype=dtype, device=device) * std + mean

    @classmethod
    def scaled_uniform(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Uniform in [-1, 1) over the square root of the number of elements.

        >>> Tensor.scaled_uniform(3, 4).shape
        (3, 4)
        """
        dims = shape_arg("scaled_uniform", shape)
        return cls.uniform(*dims, low=-1.0, high=1.0, dtype=dtype, device=device) * max(math.prod(dims), 1) ** -0.5

    @classmethod
    def glorot_uniform(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Uniform in +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio 2010) for weights (out, in, *kernel).

        >>> Tensor.glorot_uniform(3, 4).shape
        (3, 4)
        """
        dims = shape_arg("glorot_uniform", shape)
        bound = math.sqrt(6 / max(dims[0] + math.prod(dims[1:]), 1)) if dims else 1.0
        return cls.uniform(*dims, low=-bound, high=bound, dtype=dtype, device=device)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Uniform in +-sqrt(6 / ((1 + a*a) fan in)) (He et al. 2015) for weights (out, in, *kernel).

        >>> Tensor.kaiming_uniform(3, 4).shape
        (3, 4)
        """
        dims = shape_arg("kaiming_uniform", shape)
        bound = math.sqrt(6 / ((1 + as_number("kaiming_uniform: a", a) ** 2) * max(math.prod(dims[1:]), 1)))
        return cls.uniform(*dims, low=-bound, high=bound, dtype=dtype, device=device)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Normal of deviation sqrt(2 / ((1 + a*a) fan in)) (He et al. 2015) for weights (out, in, *kernel).

        >>> Tensor.kaiming_normal(3, 4).shape
        (3, 4)
        """
        dims = shape_arg("kaiming_normal", shape)
        std = math.sqrt(2 / ((1 + as_number("kaiming_normal: a", a) ** 2) * max(math.prod(dims[1:]), 1)))
        return cls.normal(*dims, std=std, dtype=dtype, device=device)

    @classmethod
    def randperm(cls, n: int, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """The numbers 0..n-1 in random order, each equally likely: the order of n random keys of 64 bits.

        >>> sorted(Tensor.randperm(4).tolist())
        [0, 1, 2, 3]
        """
        order = cls._words(shape_arg("randperm", (n,)), device).argsort()
        return order.cast(dtype) if dtype is not None else order

    def multinomial(self: Any, num_samples: int = 1, replacement: bool = False) -> Any:
        """Class numbers drawn by weights (.., classes) of at least 0: (.., num_samples).

        Without replacement the classes are those of the greatest u ** (1 / weight) (Efraimidis and Spirakis 2006).

        >>> Tensor([0.0, 1.0]).multinomial(2, replacement=True).tolist()
        [1, 1]
        """
        num_samples = as_int("multinomial: num_samples", num_samples)
        if not 1 <= self.ndim <= 2 or num_samples < 1:
            raise ValueError(
                f"multinomial: weights are (classes) or (rows, classes), not {self.shape}; samples: {num_samples}"
            )
        if num_samples > self._known_length(self.ndim - 1, "multinomial") and not replacement:
            raise ValueError(f"multinomial: {num_samples} different classes of {self.shape[-1]}; use replacement=True")
        weights = self.float()
        if not replacement and num_samples > 1:
            keys = (
                self.rand(*self.shape, dtype=dtypes.float32, device=working_device(self)) + 2.0**-25
            ).log() / weights
            return keys.topk(num_samples)[1]
        total = weights.cumsum(-1)
        u = self.rand(*self.shape[:-1], num_samples, dtype=dtypes.float32, device=working_device(self))
        limit = u * total.shrink([*[None] * (self.ndim - 1), (self.shape[-1] - 1, self.shape[-1])])
        return (total.unsqueeze(-2) <= limit.unsqueeze(-1)).sum(-1).cast(dtypes.default_int())

    def dropout(self: Any, p: float = 0.5) -> Any:
        """While training (`Context(TRAINING=1)`): each element 0 with probability p, else divided by 1 - p.

        >>> Tensor([1.0, 2.0]).dropout(0.5).tolist()
        [1.0, 2.0]
        """
        p = as_number("dropout: the probability", p, 0, 1)
        if not TRAINING.value or p == 0:
            return self._as_value()
        if p == 1:
            return self.zeros_like()
        keep = self.rand(*self.shape, dtype=dtypes.float32, device=working_device(self)) >= p
        return keep.where(self, self.const_like(0)) * (1 / (1 - p))


def _number_or_tensor(what: str, value: Any) -> Any:
    return value if isinstance(value, BaseMixin) else as_number(what, value)


def _unit(words: Any, kind: Any) -> Any:
    """Uniform floats of `kind` in [0, 1) from 64 random bits."""
    bits = min(kind.mantissa + 1, 53)
    whole = words >> (64 - bits)
    return (whole.cast(dtypes.int64 if bits > 31 else dtypes.int32)).cast(kind) * 2.0**-bits
