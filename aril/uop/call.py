"""Calls of hand-written kernels in the tensor graph: CALL(arguments..., arg=CallArg), the kernel part of the argument.

A kernel changes memory: what it wrote is AFTER(storage, CALL), one for each argument that it writes. Those come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop.node import UOp

Gradient = Callable[[tuple[UOp | None, ...], tuple[UOp, ...]], Sequence[UOp | None]]


class CallArg(NamedTuple):
    """`kernel`: a SINK in kernel form, its parameters numbered as the sources; the first `written` of them are written.

    `grad`: (gradients of what is written, sources) -> a gradient or None for each source. `parts`: where the sources
    lie on several devices, the kernel of each, over its own parts of them.
    """

    kernel: UOp
    written: int
    grad: Gradient | None = None
    parts: tuple[UOp, ...] = ()

    def __repr__(self) -> str:
        kernels = ", ".join([k.digest.hex() for k in (self.kernel, *self.parts)])
        return f"CallArg({kernels}, {self.written})"


def call_kernel(arg: CallArg, sources: Sequence[UOp]) -> UOp:
    """The CALL. Sources are whole storage in its own order, or values (CONTIGUOUS) that are stored first; bound
    variables come last."""
    return UOp(Ops.CALL, tuple(sources), arg, dtypes.void)


def written_views(call: UOp) -> tuple[UOp, ...]:
    """The sources of a CALL whose storage it writes."""
    return call.src[: call.arg.written]


def targets(effect: UOp) -> tuple[UOp, ...]:
    """The views that an effect (a STORE or a CALL) writes."""
    return effect.src[:1] if effect.op is Ops.STORE else written_views(effect)


def result_number(after: UOp) -> int:
    """Which of its call's written arguments AFTER(storage, CALL) is the new state of."""
    for n, view in enumerate(written_views(after.src[1])):
        while view is not after.src[0] and view.op in OpGroup.MOVEMENT:
            view = view.src[0]
        if view is after.src[0]:
            return n
    raise ValueError("this AFTER waits for a kernel that does not write its storage")
