"""Passes one after another, and what DEBUG=5 shows of them."""

from aril.config import Context
from aril.dtype import dtypes
from aril.uop import UOp
from aril.uop.passes import run_passes


def test_a_pass_that_changes_nothing_is_one_line(capsys):
    x = UOp.variable("n", 1, 4)
    with Context(DEBUG=5):
        out = run_passes(x, [("idle", lambda u: u), ("widen", lambda u: u.cast(dtypes.int64))], "a test", "kernel")
    assert out is x.cast(dtypes.int64)
    idle, widen, graph = capsys.readouterr().err.splitlines()
    assert (idle, widen) == ("--- idle: no change", "--- widen")
    assert "int64" in graph
