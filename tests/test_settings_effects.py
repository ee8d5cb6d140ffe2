"""What each setting says it does, it does: as a user meets it, mostly in a new process."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from aril import config
from aril import schedule as scheduling
from aril.config import Context
from aril.dtype import dtypes
from aril.engine import program
from aril.jit import jit
from aril.schedule import schedule
from aril.tensor import Tensor
from aril.uop import UOp
from aril.uop.verify import SpecError

ROOT = pathlib.Path(__file__).parent.parent
WITHOUT = "Without effect"
PRODUCT = "from aril import Tensor\n(Tensor([[1.0, 2.0]] * 3).exp() @ Tensor([[1.0], [2.0]])).realize()\n"


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def used_in(folder: str) -> set[str]:
    files = [p for p in (ROOT / folder).rglob("*.py") if p != ROOT / "aril" / "config.py"]
    return set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", "\n".join([p.read_text() for p in files])))


def test_settings_are_read_unless_they_say_that_they_have_no_effect():
    used = used_in("aril") | {"ARIL_CACHE"}  # read in config.py itself, by cache_dir
    for one in config.settings():
        assert (one.name in used) != (WITHOUT in one.meaning), one.name


def test_settings_with_an_effect_have_a_test():
    tested = used_in("tests")
    assert [one.name for one in config.settings() if WITHOUT not in one.meaning and one.name not in tested] == []


MARKS = {  # what appears at a level of DEBUG, and at every level above
    1: r"opened CPU",
    2: r"\*\*\* CPU +\w+ .*GFLOPS",
    3: r": steps:",
    4: r"define .*void @\w+",
    5: r"^--- accumulate\b",
    6: r"^ *v\d+: float32",
    7: r"^\s+retq?$",
}


@pytest.mark.parametrize("level", range(8))
def test_each_level_of_debug_shows_more_also_of_kernels_compiled_before(level):
    for _ in range(2):
        shown = run(PRODUCT, DEBUG=str(level)).stderr
        found = {k for k, mark in MARKS.items() if re.search(mark, shown, re.MULTILINE)}
        assert found == set(range(1, level + 1))


def test_seed_gives_the_same_numbers_in_every_process():
    code = "from aril import Tensor; print(Tensor.rand(4).tolist())"
    first, second = (run(code, SEED="7").stdout for _ in range(2))
    assert first == second
    assert run(code, SEED="8").stdout != first


def test_default_int_and_float_are_the_types_of_python_numbers():
    code = "from aril import Tensor; print(*[t.dtype.name for t in (Tensor([1]), Tensor.arange(2), Tensor([0.5]))])"
    assert run(code, DEFAULT_INT="int16", DEFAULT_FLOAT="float64").stdout.split() == ["int16", "int16", "float64"]


def test_no_color_is_for_terminals(monkeypatch):
    from aril.engine import launch

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert launch.bold("x") == "\x1b[1mx\x1b[0m"
    with Context(NO_COLOR="1"):
        assert launch.bold("x") == "x"


def test_track_rewrites_ends_with_a_table(tmp_path):
    for _ in ("cold", "warm"):  # kernels in the disk cache are compiled again: they would leave nothing to count
        shown = run(PRODUCT, TRACK_REWRITES="1", ARIL_CACHE=str(tmp_path)).stderr
        assert "simplify LOAD" in shown and re.search(r"ms  decompose\[\d\]", shown)
    assert re.fullmatch(r"rewrites: \d+ rules tried, 0 passes kept\n( +\d+ / +\d+ +[\d.]+ ms  .+\n)+", shown)
    assert re.search(r", [1-9]\d* passes kept$", run(PRODUCT, TRACK_REWRITES="2", NOCACHE="1").stderr, re.MULTILINE)
    assert run(PRODUCT, NOCACHE="1").stderr == ""


def test_spec_verifies_the_tensor_form_before_scheduling():
    target, value = UOp.param(0, dtypes.float32, 4), UOp.param(1, dtypes.float32, 3)
    with Context(SPEC=1), pytest.raises(SpecError, match="tensor form: STORE stores a value of the target's shape"):
        schedule(UOp.sink(target.store(value)), 2)


def test_spec_2_verifies_it_after_every_pass_and_names_the_pass(monkeypatch):
    def spoil(sink: UOp) -> UOp:
        return UOp.sink(UOp.param(0, dtypes.float32, 4).store(UOp.param(1, dtypes.float32, 3)))

    monkeypatch.setattr(scheduling, "PASSES", (scheduling.PASSES[0], spoil))
    monkeypatch.setattr(scheduling, "_CACHE", {})
    good = UOp.sink(UOp.param(0, dtypes.float32, 4).store(UOp.param(1, dtypes.float32, 4)))
    with Context(SPEC=2), pytest.raises(SpecError, match="tensor form") as found:
        schedule(good, 2)
    assert found.value.__notes__ == ["after the pass 'spoil' of scheduling"]


def test_jit_2_replays_kernel_by_kernel(monkeypatch):
    batches = []
    monkeypatch.setattr(program.Submission, "run", lambda self, *_: batches.append(self))
    x = Tensor(np.arange(4, dtype=np.float32)).realize()
    with Context(JIT=2):
        f = jit(lambda t: ((t * 2).realize() + 1).realize())
        for _ in range(4):
            np.testing.assert_array_equal(f(x).numpy(), np.arange(4) * 2 + 1)
    assert not batches
    f(x)
    assert len(batches) == 1


def test_jit_0_runs_the_function_each_time():
    calls = []
    f = jit(lambda t: (calls.append(1), (t + 1).realize())[1])
    x = Tensor([1.0]).realize()
    with Context(JIT=0):
        for _ in range(4):
            f(x)
    assert len(calls) == 4
