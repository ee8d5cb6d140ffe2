"""The benchmark's own parts: references against SciPy, comparison, limits, reports, drawn shapes, the command."""

import importlib.util
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import signal, special

from bench import __main__ as command
from bench import harness, limits, peers, reference, report, rows_conv, rows_dense, rows_networks, shapes
from bench.row import Input, Row, round_to_bfloat16

LIMITS = limits.Limits(100.0, 50.0, {"64 MiB": 20.0}, {"64 MiB": 15.0})


@pytest.fixture(scope="module")
def aril():
    peer = peers.Aril()
    peer.start(2)
    return peer


def small_conv(**options):
    return rows_conv.Conv("test", 2, 4, 9, 8, 6, 3, **options)


@pytest.mark.parametrize("conv", [small_conv(pad=1), small_conv(stride=2), small_conv(stride=2, pad=1, groups=2)])
def test_the_convolution_reference_agrees_with_scipy(conv):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((conv.n, conv.cin, conv.h, conv.w))
    w = rng.standard_normal((conv.cout, conv.cin // conv.groups, conv.k, conv.k))
    per_in, per_out = conv.cin // conv.groups, conv.cout // conv.groups
    want = np.zeros(conv.out)
    for n in range(conv.n):
        for o in range(conv.cout):
            for i in range(per_in):
                plane = np.pad(x[n, o // per_out * per_in + i], conv.pad)
                want[n, o] += signal.correlate2d(plane, w[o, i], "valid")[:: conv.stride, :: conv.stride]
    got = reference.conv2d(x, w, conv.stride, conv.pad, conv.groups)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("conv", [small_conv(pad=1), small_conv(stride=2), small_conv(stride=2, pad=1, groups=2)])
def test_the_gradient_references_are_adjoint_to_the_convolution(conv):
    # <conv(x, w), g> = <x, input_grad(g, w)> = <w, weight_grad(x, g)> for any x, w, g: it is linear in both.
    rng = np.random.default_rng(1)
    x = rng.standard_normal((conv.n, conv.cin, conv.h, conv.w))
    w = rng.standard_normal((conv.cout, conv.cin // conv.groups, conv.k, conv.k))
    g = rng.standard_normal(conv.out)
    rest = (conv.stride, conv.pad, conv.groups)
    value = (reference.conv2d(x, w, *rest) * g).sum()
    assert (x * reference.conv2d_input_grad(g, w, (conv.h, conv.w), *rest)).sum() == pytest.approx(value)
    assert (w * reference.conv2d_weight_grad(x, g, (3, 3), *rest)).sum() == pytest.approx(value)


def test_other_references_agree_with_scipy():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((300, 17)), rng.integers(0, 17, 300)
    logs = special.log_softmax(x, -1)
    assert reference.cross_entropy(x, y) == pytest.approx(-logs[np.arange(300), y].mean())
    np.testing.assert_allclose(reference.softmax(x), special.softmax(x, -1), rtol=1e-12)
    np.testing.assert_allclose(reference.gelu_like(x), x * special.expit(1.702 * x) + 1, rtol=1e-12)
    normal = reference.layernorm(x, eps=0)
    np.testing.assert_allclose(normal.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(normal.var(-1), 1)


def test_causal_attention_does_not_see_later_rows():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 5, 4)) for _ in range(3))
    got = reference.attention(q, k, v, causal=True)
    for i in range(5):
        np.testing.assert_allclose(got[:, i], reference.attention(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1])[:, 0])


def test_bfloat16_inputs_are_rounded_to_nearest_even():
    import ml_dtypes

    x = np.random.default_rng(4).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(round_to_bfloat16(x), x.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "offset"])
def test_every_layout_is_a_view_of_the_shape(layout):
    i = Input((3, 7), layout=layout)
    stored = i.make(np.random.default_rng(0))
    view = i.view(stored)
    assert view.shape == (3, 7) and np.shares_memory(view, stored)
    assert (layout == "plain") == view.flags.c_contiguous


def test_difference_is_relative_to_the_largest_and_refuses_nan_and_shapes():
    want = [np.array([1.0, 10.0])]
    assert harness.difference([np.array([1.5, 10.0], np.float32)], want) == pytest.approx(0.05)
    assert harness.difference([np.array([np.nan, 10.0])], want) == math.inf
    assert harness.difference([np.array([1.0])], want) == math.inf
    assert harness.difference([], want) == math.inf
    assert harness.difference([np.array(7)], [np.array(7)]) == 0


def test_limits_choose_what_takes_longest():
    assert LIMITS.of(Row("a", "g", flops=1e11, moved=1e9)) == (1.0, "fma")
    assert LIMITS.of(Row("a", "g", flops=1e11, precision="float64")) == (2.0, "fma")
    assert LIMITS.of(Row("a", "g", moved=20e9, written=10e9)) == (1.0, "copy")
    assert LIMITS.of(Row("a", "g", moved=15e9)) == (1.0, "read")
    assert LIMITS.of(Row("a", "g")) == (0.0, "")


def test_merged_limits_are_the_better_ones():
    other = limits.Limits(90.0, 60.0, {"64 MiB": 30.0}, {"64 MiB": 5.0})
    assert LIMITS.merged(other) == limits.Limits(100.0, 60.0, {"64 MiB": 30.0}, {"64 MiB": 15.0})


def test_limits_are_measured():
    found = limits.measure_limits(rounds=1, sizes=(1 << 20,))
    assert found.float32_gflops > found.float64_gflops > 0.1
    assert found.copy > 1e8 and found.read > 1e8


def test_the_loop_of_multiply_adds_stays_in_registers():
    from aril.runtime.llvm import compile_ir_to_asm
    from aril.runtime.target import host_target

    target = host_target()
    if target.arch != "x86_64" or not target.has_fma:
        pytest.skip("reads x86-64 assembly with fused multiply-adds")
    text = compile_ir_to_asm(limits.fma_ir("float", target.max_vector_bytes // 4, 12, 1000, True), level=0)
    assert text.count("vfmadd") == 12
    assert "rsp" not in text


def test_a_target_holds_for_every_contender(tmp_path):
    """In a process of its own: the libraries read the variables when they are imported."""
    text = f"""
import sys
from bench.__main__ import main
status = main(["--rows", "sgemm 512", "--peers", "numpy", "--rounds", "1", "--budget", "0.1", "--no-overheads",
               "--target", "x86-64-v3", "--json", {str(tmp_path / "found.json")!r}])
from aril.runtime.target import host_target
from numpy._core._multiarray_umath import __cpu_features__
assert host_target().vector_bytes <= 32 and not __cpu_features__["X86_V4"]
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found.json").read_text())["options"]["target"] == "x86-64-v3"


def test_a_row_is_compared_and_timed(aril):
    row = rows_dense.matmul("tiny", 20, 30, 10)
    numpy = peers.Numpy()
    numpy.start(2)
    beside = peers.Preallocated(numpy)
    beside.start(2)
    found = harness.measure(row, [aril, numpy, beside], LIMITS, 3, 1.0)
    assert not found.failures
    assert set(found.times) == {"aril", "numpy", "numpy out="}
    assert found.best_peer in ("numpy", "numpy out=")
    assert found.kernels >= 1 and found.errors["aril"] < 1e-5
    assert found.times["aril"].low <= found.times["aril"].median <= found.times["aril"].high


def test_a_wrong_or_failing_contender_is_reported_and_not_timed(aril):
    def fail(_, x):
        raise ValueError("no such thing\nmore")

    row = Row("bad", "g", (Input((4,)),), {"aril": lambda _, x: x + 1, "numpy": fail}, lambda x: x, moved=16.0)
    numpy = peers.Numpy()
    numpy.start(2)
    found = harness.measure(row, [aril, numpy], LIMITS, 3, 1.0)
    assert found.failures["aril"].startswith("wrong: ")
    assert found.failures["numpy"] == "ValueError: no such thing"
    assert not found.times and not found.ok
    assert "FAILED" in report.line(found)
    assert any("bad" in text for text in report.summary([found]))


SMALL = [
    rows_dense.matmul("a", 9, 7, 5, layouts=("transposed", "strided")),
    rows_dense.matmul("a", 9, 7, 5, batch=3),
    rows_dense.matmul("a", 9, 7, 5, dtype="float64"),
    rows_dense.matmul_bfloat16(32),
    rows_dense.transposed_product("a", 9, 7, 5),
    rows_dense.matvec("a", 9, 7, "offset"),
    rows_dense.vecmat("a", 9, 7, "strided"),
    rows_dense.gelu_like("a", 9, 7, "transposed"),
    rows_dense.multiply_add("a", 9, 7, ("offset", "strided")),
    rows_dense.total("a", 9, 7),
    rows_dense.total("a", 9, 7, 0, "strided"),
    rows_dense.extreme("a", 9, 7),
    rows_dense.argmax("a", 9, 7),
    rows_dense.argmax("a", 9, 7, 1, "transposed"),
    rows_dense.cumsum("a", 9, 7),
    rows_dense.softmax("a", 9, 7),
    rows_dense.layernorm("a", 9, 7),
    rows_dense.transpose("a", 9, 7),
    rows_dense.gather("a", 20, 9, 7),
    rows_dense.cross_entropy("a", 20, 7),
    *rows_conv.conv_rows(small_conv(stride=2, pad=1, groups=2)),
    rows_conv.attention("a", 2, 6, 9, 8),
    rows_conv.attention("a", 2, 6, 6, 8, causal=True),
]


@pytest.mark.parametrize("row", SMALL, ids=[f"{i}-{r.group}" for i, r in enumerate(SMALL)])
def test_every_kind_of_row_gives_the_reference(aril, row):
    arrays = row.arrays()
    got = aril.results(aril.prepare(row, arrays)())
    assert harness.difference(got, row.expected(arrays)) <= row.tolerance


def test_row_names_are_unique_and_costs_known():
    rows = [*rows_dense.ROWS, *rows_conv.ROWS, *rows_networks.ROWS]
    assert len({r.name for r in rows}) == len(rows) == 45
    assert all(r.flops or r.moved for r in rows)


@pytest.mark.parametrize("seed", range(5))
def test_drawn_rows_are_the_same_for_a_seed_and_within_bounds(seed):
    rows = shapes.random_rows(seed)
    assert [r.name for r in rows] == [r.name for r in shapes.random_rows(seed)]
    assert len({r.name for r in rows}) == len(rows) >= 40
    assert any(i.layout != "plain" for r in rows for i in r.inputs)
    for r in rows:
        if r.name.startswith("sgemm ") and " of " not in r.name:
            assert all(shapes.LEAST <= n <= shapes.MOST for i in r.inputs for n in i.shape)


def test_the_command_writes_json_markdown_and_leaves_absent_peers_out(tmp_path, capsys):
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "md", "svg")}
    arguments = ["--rows", "sgemm 512", "--rounds", "3", "--budget", "0.1", "--peers", "numpy,tinygrad"]
    arguments += ["--json", str(paths["json"]), "--md", str(paths["md"]), "--plot", str(paths["svg"])]
    assert command.main(arguments) == 0
    shown = capsys.readouterr().out
    data = json.loads(paths["json"].read_text())
    (row,) = data["rows"]
    assert row["times_s"]["aril"]["rounds"] == 3 and row["ratios"]["numpy"] > 0
    assert "sgemm 512" in paths["md"].read_text() and "sgemm 512" in shown
    if importlib.util.find_spec("tinygrad") is None:
        assert "tinygrad" in data["absent"] and "skipped: tinygrad" in shown
    if importlib.util.find_spec("matplotlib") is None:
        assert "skipped: the plot" in shown
    else:
        assert paths["svg"].stat().st_size > 1000


def test_a_pattern_without_rows_and_an_unknown_peer_are_errors():
    with pytest.raises(SystemExit, match="no row matches"):
        command.main(["--rows", "nothing of this kind"])
    with pytest.raises(SystemExit, match="knows numpy, torch"):
        command.main(["--rows", "sgemm 512", "--peers", "cublas"])


def test_a_contender_that_takes_too_long_is_given_up(aril):
    def forever(_, x):
        while True:
            pass

    row = Row("slow", "g", (Input((4,)),), {"aril": lambda _, x: x * 1, "numpy": forever}, lambda x: x, moved=16.0)
    numpy = peers.Numpy()
    numpy.start(2)
    found = harness.measure(row, [aril, numpy], LIMITS, 3, 1.0, ready_s=2.0)
    assert found.failures == {"numpy": "TooLong: not ready within 2 s"} and found.ok


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell what threads do")
def test_a_turn_waits_for_threads_that_spin():
    end = time.perf_counter() + 0.06

    def spin():
        while time.perf_counter() < end:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    harness._pause()
    assert time.perf_counter() >= end
    thread.join()
