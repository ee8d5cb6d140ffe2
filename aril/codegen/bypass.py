"""Stores that go past the caches: whole lines of a result larger than the last of them. Kernel form to kernel form.

A store to memory that is in no cache first reads the line. Of a result that no cache will hold when it is read again,
that is a third of the traffic of a copy.
"""

from __future__ import annotations

from aril.codegen.affine import Linear, linear
from aril.codegen.coalesce import lanes_of
from aril.ops import Ops
from aril.renderer.base import Renderer
from aril.uop.args import AddrSpace
from aril.uop.node import UOp

LINE = 64
HINT = "nontemporal"

Form = tuple[UOp, frozenset[tuple[UOp, int]]]


def bypass_caches(sink: UOp, renderer: Renderer) -> UOp:
    """Large results that the kernel does not read are stored with the hint "nontemporal".

    before: STORE(SHRINK(param, 16*i), value)
    after:  the same with the argument "nontemporal"

    Only whole aligned lines are: parts of a line would each go to memory. The parameter must say its alignment.
    """
    large = {
        u
        for u in sink.toposort()
        if u.op is Ops.PARAM
        and u.arg.addrspace is AddrSpace.GLOBAL
        and u.arg.align % LINE == 0
        and (u.arg.size or 0) * u.dtype.itemsize > renderer.l3
    }
    if not large:
        return sink
    memo: dict[UOp, Linear] = {}
    stores: dict[Form, dict[int, UOp]] = {}
    for u in sink.toposort():
        if u.op in (Ops.LOAD, Ops.ATOMIC):
            large.discard(u.src[0].src[0].base)
        if u.op is Ops.STORE and u.src[0].src[0].base in large:
            address = u.src[0]
            if address.op is not Ops.SHRINK or len(address.src) < 2 or len(u.src) > 2 or u.arg is not None:
                continue
            form = linear(address.src[1], memo)
            stores.setdefault((address.src[0], frozenset(form.terms.items())), {})[form.const] = u
    new: dict[UOp, UOp] = {}
    for (memory, terms), found in stores.items():
        line = LINE // memory.dtype.itemsize
        if memory.base in large and all(scale % line == 0 for _, scale in terms):
            new.update({u: u.replace(arg=HINT) for u in _whole_lines(found, line)})
    return sink.substitute(new) if new else sink


def _whole_lines(stores: dict[int, UOp], line: int) -> list[UOp]:
    """Those of `stores` (by place) that fill lines together with their neighbours."""
    out: list[UOp] = []
    run: list[UOp] = []
    start = end = 0
    for place in sorted(stores):
        if not run or place != end:
            start, end, run = place, place, []
        run.append(stores[place])
        end += lanes_of(stores[place].src[0])
        if start % line == 0 and (end - start) % line == 0:
            out.extend(run)
            run = []
    return out
