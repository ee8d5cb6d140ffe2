"""VALIDATE_WITH_CPU runs every kernel by a reference too: right kernels pass, a wrong one is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aril import Context, Tensor, dtypes
from aril.engine import validate
from aril.ops import Ops
from aril.uop import UOp


def test_right_kernels_pass() -> None:
    """Elementwise, reducing and integer kernels agree with the interpreter."""
    x = Tensor(np.random.default_rng(0).standard_normal((33, 17)).astype(np.float32)).realize()
    with Context(VALIDATE_WITH_CPU=1):
        (x.exp() * 2 + 1).realize(x.softmax(1), x.argmax(0), (x @ x.T).sum(), x.cast("bfloat16"), x.mean(0))


def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that differs stops the run and says which kernel, which element and what was expected."""
    numbers = validate._numbers

    def spoiled(b: Any) -> Any:
        out = numbers(b)
        return out + (np.arange(out.size) == 3) if b.device == "CPU" else out

    monkeypatch.setattr(validate, "_numbers", spoiled)
    with Context(VALIDATE_WITH_CPU=1), pytest.raises(validate.KernelMismatch, match=r"wrote .* as element 3 of 8"):
        (Tensor(np.ones(8, np.float32)).realize() * 3).realize()


def test_bits_of_numbers_that_are_rounded_otherwise_pass_and_others_do_not() -> None:
    """A key of a sort is a float's bits above a position; the float may differ in its last places."""
    x = Tensor(np.random.default_rng(0).uniform(0.1, 9, 3000)).realize()
    key = (x.log().cast("float32").bitcast("int32").cast("int64") << 32) + Tensor.arange(3000)
    with Context(VALIDATE_WITH_CPU=1):
        key.realize(Tensor.ones(2, 3).multinomial(2))
    key = np.array([5 << 32, -(5 << 32), 7, 7], np.int64)
    other = key + np.array([1 << 32, -(2 << 32), 0, 5])
    assert validate._far(other, key, dtypes.int64, 0.0, True).tolist() == [False, False, False, True]
    assert validate._far(other, key, dtypes.int64, 0.0, False).tolist() == [True, True, False, True]


def test_kernels_with_source_for_one_target_are_left_out() -> None:
    """The interpreter cannot run LLVM's text; the kernel runs without being compared."""

    def square(out: UOp, x: UOp) -> UOp:
        i = UOp.range(4, 0)
        value = UOp(Ops.CUSTOMI, (x[i],), ("fmul {t0} {0}, {0}", dtypes.float32, "llvm"), dtypes.float32)
        return out[i].store(value).end(i).sink()

    with Context(VALIDATE_WITH_CPU=1):
        out = Tensor.custom_kernel(Tensor.empty(4), Tensor([1.0, 2.0, 3.0, 4.0]), fxn=square)[0]
        assert out.tolist() == [1.0, 4.0, 9.0, 16.0]


def test_rounding_noise_that_a_kernel_magnifies_passes_and_faults_beside_it_do_not(monkeypatch) -> None:
    """Sums that cancel, divided by their own size: what is left is the order of adding. Row 0 does not cancel."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((6, 400)).astype(np.float32)
    a = np.concatenate([half, -half], 1)[:, rng.permutation(800)]
    a[0] = np.abs(a[0])
    x = Tensor(a).realize()

    def normalised() -> None:
        total = x.sum(1)
        (total / ((total * total).sqrt() + 1e-8)).realize()

    numbers = validate._numbers
    noisy = np.array([0, 1e-6, -1e-6, 1e-6, 1e-6, -1e-6]) * 0.3

    def disturbed(b: Any) -> Any:
        out = numbers(b)
        return out + noisy * 1e6 * (out < 0.99) if b.device == "CPU" and b.size == 6 else out

    with Context(VALIDATE_WITH_CPU=1):
        normalised()
        monkeypatch.setattr(validate, "_numbers", disturbed)
        normalised()
        monkeypatch.setattr(validate, "_numbers", lambda b: numbers(b) * (1.01 if b.device == "CPU" else 1))
        with pytest.raises(validate.KernelMismatch, match="element 0 of 6"):
            normalised()
