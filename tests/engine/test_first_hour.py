"""What helps in the first hour: which kernel made a NaN, and why something was compiled again."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from aril import Context, Tensor, jit
from aril.engine.launch import NotFinite


def test_nan_check_names_the_first_kernel() -> None:
    x = Tensor(np.array([1.0, -1.0], np.float32)).realize()
    with Context(NAN_CHECK=1), pytest.raises(NotFinite, match="nan as element 1 of 2 .*all it read was finite"):
        (x.log().contiguous() + 1).realize()
    assert np.isnan(x.log().numpy()[1])


def test_nan_check_in_a_replay() -> None:
    f = jit(lambda x: (x.log().contiguous().sum() + x).exp())
    for _ in range(3):
        f(Tensor(np.array([1.0, 2.0], np.float32)))
    with Context(NAN_CHECK=1), pytest.raises(NotFinite, match="element 0 of"):
        f(Tensor(np.array([-1.0, 2.0], np.float32)))


def run(code: str, **env: str) -> str:
    """What a new process with these settings writes to stderr."""
    import os

    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    return out.stderr


def test_nan_check_names_the_line() -> None:
    code = (
        "from aril import Tensor\nx = Tensor([1.0, -1.0])\na = (x + 1).contiguous()\n"
        "b = x.log()\nc = b * a\nc.realize()\n"
    )
    assert "<string>:4" in run(code, NAN_CHECK="1") or "<string>:5" in run(code, NAN_CHECK="1")


def test_debug_says_why_something_was_compiled_again(capfd: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=1):
        (Tensor(np.ones(1234567 % 1001, np.float32)) * 3.125 + 77).realize()
        (Tensor(np.ones(1234567 % 999, np.float32)) * 3.125 + 77).realize()
        with Context(NOOPT=1):
            (Tensor(np.ones(1234567 % 999, np.float32)) * 3.125 + 77).realize()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("*** compile")]
    assert len(lines) == 3
    assert "with other sizes" in lines[1]
    assert "settings changed: NOOPT 0 -> 1" in lines[2]
