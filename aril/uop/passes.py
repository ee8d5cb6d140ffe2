"""Passes one after another. Each can be looked at: checked (SPEC=2), kept (TRACK_REWRITES=2), printed (DEBUG=5)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from aril.config import DEBUG, SPEC, TRACK_REWRITES
from aril.uop import tracking
from aril.uop.node import UOp

Pass = Callable[[UOp], UOp]


def run_passes(graph: UOp, passes: Iterable[tuple[str, Pass]], where: str, form: str) -> UOp:
    """What the passes, each with its name, make of `graph`; all of them leave the form `form`.

    Errors: with SPEC=2 SpecError, which names the pass and `where` it belongs.
    """
    for name, run in passes:
        out = run(graph)
        if SPEC.value >= 2:
            from aril.uop.verify import check_after

            check_after(f"{name!r} of {where}", out, form)
        if TRACK_REWRITES.value >= 2:
            tracking.keep(name, graph, out)
        if DEBUG.value >= 5:
            from aril.uop.render import to_source

            print(f"--- {name}" + (": no change" if out is graph else f"\n{to_source(out)}"), file=sys.stderr)
        graph = out
    return graph
