"""Code generation: a kernel goes in, a program of one target comes out. The passes stand in `passes`, in order.

`compile_kernel` runs them; each pass is a function from kernel form to kernel form and works alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from aril.codegen.accumulate import accumulate, separate
from aril.codegen.bypass import bypass_caches
from aril.codegen.cascade import cascade
from aril.codegen.expand import expand
from aril.codegen.heuristics import optimise
from aril.codegen.launch import launch
from aril.codegen.pairs import pair_lanes
from aril.codegen.steps import Step, StepError, copy_single_turns
from aril.codegen.whole import whole_vectors
from aril.config import CHECK_OOB, DEBUG, SPEC
from aril.ops import Ops
from aril.renderer.base import Renderer
from aril.uop.args import Estimates, KernelInfo
from aril.uop.node import UOp
from aril.uop.passes import Pass, run_passes

__all__ = ["Program", "Step", "StepError", "compile_kernel", "lower_kernel"]


def passes(renderer: Renderer) -> tuple[tuple[str, Pass], ...]:
    """The passes in order, with the names they have in traces.

    Loops are told apart before steps name them, and again after, as peeling copies nests. A loop of one turn is a copy:
    conditions would be simplified with its number and what they share with values computed twice. Copies and lanes come
    before accumulators, which are one for each copy. Decompositions come after both (they see vectors), types after
    everything that makes index arithmetic, multiply-add after types (a cast between the two would hide it).
    """
    from aril.codegen.decompose import decompose
    from aril.codegen.typing import assign_types, fuse_mulacc

    return (
        ("separate loops", separate),
        ("optimise", lambda sink: optimise(sink, renderer)),
        ("separate copies", separate),
        ("single turns", copy_single_turns),
        ("cascade", cascade),
        ("launch index", launch),
        ("whole vectors", whole_vectors),
        ("expand", lambda sink: expand(sink, pair_lanes(renderer))),
        ("accumulate", accumulate),
        ("bypass caches", lambda sink: bypass_caches(sink, renderer)),
        ("decompose", lambda sink: decompose(sink, renderer)),
        ("types", assign_types),
        ("multiply-add", lambda sink: fuse_mulacc(sink, renderer)),
    )


@dataclass(frozen=True)
class Program:
    """A kernel for one target. `chunks` is the launch count: an int, or an expression in the kernel's variables.

    `linear` is the program form, `applied` the optimisation steps taken, `scratch_bytes` what each worker needs.
    """

    name: str
    source: str
    scratch_bytes: int
    chunks: Any
    estimates: Estimates
    applied: tuple[Any, ...]
    linear: UOp = field(repr=False)
    nbufs: int = 0
    variables: tuple[UOp, ...] = ()


def lower_kernel(sink: UOp, renderer: Renderer) -> UOp:
    """The kernel after all passes, still a graph (see `passes`)."""
    return run_passes(sink, passes(renderer), "code generation", "kernel")


def compile_kernel(sink: UOp, renderer: Renderer, nbufs: int = 0) -> Program:
    """Optimise, lower and render the kernel-form SINK `sink` for a target. `nbufs`: buffers it is given, used or not.

    Errors: StepError where `opts_to_apply` do not fit the kernel; RenderError where the target cannot do something;
    with CHECK_OOB=1 OutOfBounds where an access is not proved to lie inside of its buffer.
    """
    from aril.codegen.estimate import estimate
    from aril.codegen.linearize import linearize
    from aril.uop.verify import check

    if SPEC.value:
        check(sink, "kernel")
    info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
    name = info.name or f"kernel_{sink.digest.hex()[:12]}"
    used = 1 + max([u.arg.slot for u in sink.toposort() if u.op is Ops.PARAM and not u.is_variable], default=-1)
    nbufs = max(nbufs, used)
    estimates = info.estimates or estimate(sink)
    low = lower_kernel(sink, renderer)
    linear = linearize(low)
    if SPEC.value:
        check(linear, "program")
    if CHECK_OOB.value:
        from aril.codegen.in_bounds import prove_accesses

        prove_accesses(linear, name, CHECK_OOB.value)
    source = renderer.render(name, linear.src, nbufs)
    applied = low.arg.applied if isinstance(low.arg, KernelInfo) else ()
    if DEBUG.value >= 6:
        from aril.uop.render import to_listing

        print(to_listing(linear.src), file=sys.stderr)
    if DEBUG.value >= 4:
        print(source, file=sys.stderr)
    variables = {u for u in linear.src if u.is_variable}
    return Program(
        name, source, renderer.scratch_bytes(linear.src), chunk_count(linear), estimates, applied, linear, nbufs,
        tuple(sorted(variables, key=lambda u: str(u.arg.name))),
    )  # fmt: skip


def chunk_count(linear: UOp) -> Any:
    """The launch count of a program: the bound of its launch index, 1 where it has none."""
    for u in linear.src:
        if u.op is Ops.SPECIAL:
            return int(u.src[0].arg) if u.src[0].op is Ops.CONST else u.src[0]
    return 1
