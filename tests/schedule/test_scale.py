"""Scheduling takes time in proportion to the graph: many small values, long chains."""

import sys

import numpy as np
import pytest

import aril.engine.realize as engine
from aril import Tensor


def work(graph):
    """How many Python functions scheduling `graph()` enters (the plans are not in the cache)."""
    count, plain = 0, engine.schedule

    def see(frame, event, arg):
        nonlocal count
        count += event == "call"

    def counted(*args):
        sys.setprofile(see)
        try:
            return plain(*args)
        finally:
            sys.setprofile(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "schedule", counted)
        patch.setattr(engine, "run", lambda exe, buffers, values: _Stop.now())
        patch.setattr(engine, "executable", lambda *_: None)
        with pytest.raises(_Stop):
            graph()
    return count


class _Stop(Exception):
    @staticmethod
    def now():
        raise _Stop


def wide(n):
    out = [Tensor(np.full(3 + n % 2, i, np.float32)) + 1 for i in range(n)]
    return lambda: out[0].realize(*out[1:])


def chain(n):
    y = x = Tensor(np.ones(5 + n % 2, np.float32)).realize()
    for _ in range(n):
        y = y + x
    return y.realize


def test_every_value_of_a_long_chain_knows_its_device():
    x = Tensor(np.ones(4, np.float32), device="PYTHON").realize()
    y = Tensor(2.0) * Tensor(3.0)
    assert y.uop.device is None
    for _ in range(20_000):
        y = y + x
    assert y.uop.device == "PYTHON" == y.uop.src[0].src[0].device
    assert y.to("CPU").uop.device == "CPU"


@pytest.mark.parametrize("graph", [wide, chain])
def test_work_grows_with_the_graph_and_no_faster(graph):
    work(graph(40))  # what happens once
    small, large = work(graph(60)), work(graph(240))
    assert large < 4 * 1.5 * small
