"""Hashes of the bytes of tensors, computed on their device: Keccak as SHA-3 and SHAKE use it. Mixed into Tensor."""

from __future__ import annotations

import math
from typing import Any

from aril.dtype import dtypes
from aril.tensor_memory import working_device

# name -> (bytes absorbed a permutation, suffix bits with the first bit of padding, bytes of the digest): FIPS 202
_KINDS = {
    "sha3_224": (144, 0x06, 28),
    "sha3_256": (136, 0x06, 32),
    "sha3_384": (104, 0x06, 48),
    "sha3_512": (72, 0x06, 64),
    "shake_128": (168, 0x1F, 16),
    "shake_256": (136, 0x1F, 32),
}
_LEAF = 1344  # bytes of a leaf of `hash`: eight absorptions of SHAKE128
_DIGEST = 16


def _constants() -> tuple[list[int], list[int], list[int]]:
    """(round constants, rotations by lane, source of each lane in pi), from the definitions in FIPS 202, 3.2."""
    rounds, register = [], 1
    for _ in range(24):
        value = 0
        for j in range(7):
            value |= (register & 1) << (2**j - 1)
            register = register << 1 ^ (0x171 if register >> 7 else 0)
        rounds.append(value)
    turns, x, y = [0] * 25, 1, 0
    for t in range(24):
        turns[x + 5 * y] = (t + 1) * (t + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    source = [(x + 3 * y) % 5 + 5 * x for y in range(5) for x in range(5)]
    return rounds, turns, source


_ROUNDS, _TURNS, _SOURCE = _constants()


class HashMixin:
    """Digests over the last axis."""

    __slots__ = ()

    def keccak(self: Any, cfg: str = "sha3_256") -> Any:
        """The digest of the bytes along the last axis: (.., n) uint8 gives (.., digest) uint8, as `hashlib` does.

        `cfg`: sha3_224, sha3_256, sha3_384, sha3_512, shake_128 (16 bytes) or shake_256 (32 bytes) (FIPS 202).
        Errors: TypeError for other types than uint8, ValueError for another `cfg` or a scalar.

        >>> Tensor([[97, 98, 99]], dtype=dtypes.uint8).keccak().shape
        (1, 32)
        """
        if not isinstance(cfg, str) or cfg not in _KINDS:
            raise ValueError(f"keccak: cfg is one of {', '.join(_KINDS)}, not {cfg!r}")
        if self.dtype is not dtypes.uint8:
            raise TypeError(f"keccak: bytes are uint8, not {self.dtype.name}; bitcast first")
        if not self.shape:
            raise ValueError("keccak: a 0-d tensor has no axis of bytes; flatten it first")
        rate, suffix, size = _KINDS[cfg]
        *lead, n = self.shape
        rows = math.prod(lead)
        if rows == 0:
            return self.zeros(*lead, size, dtype=dtypes.uint8, device=working_device(self))
        blocks = n // rate + 1
        end = type(self)(_padding(n % rate, rate, suffix), dtype=dtypes.uint8, device=working_device(self))
        x = self.reshape(rows, n).cat(end.reshape(1, -1)._broadcast_to((rows, end.shape[0])), dim=1)
        lanes = x.bitcast(dtypes.uint64).reshape(rows, blocks, rate // 8).contiguous()
        turns, source = _tables(self)
        state = None
        for i in range(blocks):
            block = lanes.shrink([None, (i, i + 1), None]).reshape(rows, rate // 8).pad_to(None, 25)
            state = _permute(block if state is None else state ^ block, turns, source)
        assert state is not None
        return state.bitcast(dtypes.uint8).shrink([None, (0, size)]).reshape(*lead, size)

    def hash(self: Any) -> Any:
        """A digest of 16 bytes (uint8) of the contents: a tree of SHAKE128 with leaves of 1344 bytes.

        It depends on the bytes in row-major order alone, not on shape, dtype or device; the last level also takes the
        number of bytes.

        >>> Tensor([1, 2, 3], dtype=dtypes.uint8).hash().shape
        (16,)
        """
        raw = self.contiguous().flatten()
        raw = (raw.cast(dtypes.uint8) if raw.dtype.kind == "b" else raw) if raw.numel() else raw.cast(dtypes.uint8)
        level = raw.bitcast(dtypes.uint8) if raw.dtype is not dtypes.uint8 else raw
        count = level.shape[0]
        while level.shape[0] > _LEAF:
            n = level.shape[0]
            leaves = -(-n // _LEAF)
            level = level.pad_to(leaves * _LEAF).reshape(leaves, _LEAF).keccak("shake_128").flatten().contiguous()
        length = type(self)(list(count.to_bytes(8, "little")), dtype=dtypes.uint8, device=working_device(self))
        return level.cat(length).keccak("shake_128")


def _padding(used: int, rate: int, suffix: int) -> list[int]:
    out = [0] * (rate - used)
    out[0] ^= suffix
    out[-1] ^= 0x80
    return out


def _tables(x: Any) -> tuple[Any, Any]:
    return (
        type(x)(_TURNS, dtype=dtypes.uint64, device=working_device(x)),
        type(x)(_SOURCE, dtype=dtypes.int32, device=working_device(x)),
    )


def _permute(state: Any, turns: Any, source: Any) -> Any:
    """Keccak-f[1600] of rows of 25 lanes: 24 rounds, the same graph but for a constant."""
    rows = state.shape[0]
    for constant in _ROUNDS:
        a = state.reshape(rows, 5, 5)
        parts = [a.shrink([None, (y, y + 1), None]) for y in range(5)]
        c = (parts[0] ^ parts[1] ^ parts[2] ^ parts[3] ^ parts[4]).contiguous()
        right = c.roll(-1, 2)
        mix = c.roll(1, 2) ^ ((right << 1) | (right >> 63))
        t = (a ^ mix).reshape(rows, 25)
        # A turn by 0 bits shifts right by 64, which gives 0.
        t = ((t << turns) | (t >> (64 - turns))).contiguous()
        b = t.transpose()[source].transpose().reshape(rows, 5, 5).contiguous()
        state = (b ^ (b.roll(-1, 2).bitwise_not() & b.roll(-2, 2))).reshape(rows, 25)
        first = state._iota(25).cast(dtypes.int32).eq(0)
        state = (state ^ first.where(state.const_like(constant), state.const_like(0))).contiguous()
    return state
