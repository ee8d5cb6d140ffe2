"""Nests that hand values on through scratch within a chunk (attention): each is given the steps of a kernel of its own.

In comes kernel form with shared GLOBAL loops and LOCAL storage, as the scheduler chains kernels; a plan gets one step
that holds the steps of every nest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aril.codegen.accumulate import fresh_id
from aril.codegen.plan import Plan
from aril.codegen.steps import Step, flatten_effects, loops_of
from aril.ops import Ops
from aril.uop.args import AddrSpace, AxisType, RangeArg
from aril.uop.node import UOp
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite


def is_chain(sink: UOp) -> bool:
    """Whether the kernel has several nests that share GLOBAL loops and LOCAL storage before any step."""
    return len(sink.src) > 1 and any(_is_scratch(u) for u in sink.toposort()) and bool(_shared(sink))


def plan_chain(plan: Plan, choose: Callable[[Plan], None]) -> None:
    """Take for every nest the steps that `choose` takes for it alone."""
    steps = []
    for nest in nests_alone(plan.sink):
        part = Plan(nest, plan.renderer)
        part.shares = False
        choose(part)
        steps.append(tuple(part.steps))
        plan.stopped = plan.stopped or part.stopped
    plan.do(EachNest(tuple(steps)), "nests of one chunk")


def nests_alone(sink: UOp) -> list[UOp]:
    """Every nest of a chain as a kernel of its own, for which steps can be chosen."""
    return [_alone(sink, nest) for nest in sink.src]


@dataclass(frozen=True)
class EachNest(Step):
    """`steps[i]` on nest i as if it were a kernel of its own: its GLOBAL loops stand still and scratch is memory.

    Needed: as many lists of steps as nests.
    """

    steps: tuple[tuple[Step, ...], ...]

    def apply(self, sink: UOp) -> UOp:
        self.need(len(self.steps) == len(sink.src), f"the kernel has {len(sink.src)} nests")
        scratch = {_as_memory(u): u for u in sink.toposort() if _is_scratch(u)}
        shared = _shared(sink)
        slot = 1 + max([u.arg.slot for u in scratch.values()], default=-1)
        first = 1 + max([r.arg.id[0] for r in shared])
        effects: list[UOp] = []
        for nest, steps in zip(sink.src, self.steps, strict=True):
            part = _alone(sink, nest)
            for step in steps:
                part = step.apply(part)
            chunks = [r for r in loops_of(part).values() if r.arg.kind is AxisType.GLOBAL and r not in shared]
            self.need(not chunks, "the nests of a chain share their chunks; a nest cannot have some of its own")
            # panels and loops of the nest have numbers of their own
            nodes = part.toposort()
            own = {u: u.replace(arg=u.arg._replace(slot=slot + u.arg.slot)) for u in nodes if _is_scratch(u)}
            slot = 1 + max([u.arg.slot for u in own.values()], default=slot - 1)
            part = _renumbered(part.substitute({**own, **scratch}), shared, first)
            first = max(first, fresh_id(part))
            for effect in flatten_effects(part).src:
                body, loops = (effect.src[0], effect.src[1:]) if effect.op is Ops.END else (effect, ())
                effects.append(body.end(*shared, *loops))
        return sink.with_src(tuple(effects))


def _renumbered(sink: UOp, shared: tuple[UOp, ...], first: int) -> UOp:
    """Loops but the shared ones with ids from `first` on, in the same order."""
    return rewrite(sink, _RENUMBERED, (shared, first), once=True)


def _renumbered_loop(ctx: tuple[tuple[UOp, ...], int], u: UOp, old: UOp) -> UOp | None:
    shared, first = ctx
    return None if old in shared else u.replace(arg=RangeArg((first + u.arg.id[0], *u.arg.id[1:]), u.arg.kind))


_RENUMBERED = Rules([(Pat(Ops.RANGE, name="u"), _renumbered_loop)], name="renumber loops")


def _is_scratch(u: UOp) -> bool:
    return u.op is Ops.BUFFER and u.arg.addrspace is AddrSpace.LOCAL


def _as_memory(u: UOp) -> UOp:
    return UOp(Ops.PARAM, (), u.arg._replace(slot=_FIRST + u.arg.slot, addrspace=AddrSpace.GLOBAL), u.dtype)


_FIRST = 1 << 20  # above the numbers of a kernel's arguments


def _shared(sink: UOp) -> tuple[UOp, ...]:
    """The GLOBAL loops of the first nest, if all have the same."""
    found = [tuple([r for r in s.src[1:] if r.op is Ops.RANGE and r.arg.kind is AxisType.GLOBAL]) for s in sink.src]
    return found[0] if all(f == found[0] for f in found) else ()


def _alone(sink: UOp, nest: UOp) -> UOp:
    """A nest as a kernel: without its GLOBAL loops, scratch as arguments."""
    rest = tuple([s for s in nest.src[1:] if s.op is not Ops.RANGE or s.arg.kind is not AxisType.GLOBAL])
    out = UOp.sink(nest.src[0].end(*rest), arg=sink.arg)
    return out.substitute({u: _as_memory(u) for u in out.toposort() if _is_scratch(u)})
