"""The order of a kernel's nodes, kept while steps are chosen: as `toposort` says it, and asked for once a nest."""

import aril.uop.node as node_module
from aril.codegen import order
from aril.codegen.steps import Upcast, loops_of
from aril.dtype import dtypes
from aril.uop import KernelInfo, UOp


def _kernel(nests: int) -> UOp:
    effects = []
    for n in range(nests):
        i = UOp.range(4, n)
        effects.append(
            UOp.param(n, dtypes.float32, 4).index(i).store(UOp.param(99, dtypes.float32, 4).index(i).load()).end(i)
        )
    return UOp.sink(*effects, arg=KernelInfo())


def test_the_order_is_that_of_toposort():
    sink = _kernel(3)
    assert list(order.nodes_of(sink)) == list(sink.toposort())
    assert list(loops_of(sink)) == [(0,), (1,), (2,)]
    order.forget()


def test_a_step_leaves_other_nests_alone(monkeypatch):
    """After a step on one nest of twenty, only that nest is walked again."""
    sink = _kernel(20)
    loops_of(sink)
    walked = []
    plain = node_module.toposort
    monkeypatch.setattr(node_module, "toposort", lambda roots, enter=None: walked.append(roots) or plain(roots, enter))
    out = Upcast((7,)).apply(sink)
    loops_of(out)
    assert [a is b for a, b in zip(sink.src, out.src, strict=True)].count(False) == 1
    assert 0 < len(walked) <= 4
    order.forget()
