"""Compilation: errors name the kernel and the line, and a cached object needs no LLVM."""

import os
import re
import subprocess
import sys
import time

import pytest

from aril.runtime import cache, llvm
from aril.runtime.target import HostTarget, generic_target, host_target
from tests.runtime.kernels import ADD

PRODUCT = """
import numpy as np
from aril import Tensor
a, b = (np.random.default_rng(i).standard_normal((70, 70), np.float32) for i in range(2))
found = Tensor(a).matmul(Tensor(b)).softmax(1).cast("float16").numpy()
e = np.exp(a.astype(np.float64) @ b)
print("right" if abs(found - e / e.sum(1, keepdims=True)).max() < 1e-3 else "wrong")
"""


def test_an_error_names_the_kernel_and_the_line():
    with pytest.raises(llvm.CompileError, match=r"(?s)'add'.*:8:.*addd") as caught:
        llvm.compile_ir(ADD.replace("%new = add i64", "%new = addd i64"))
    assert "is not valid LLVM IR" in str(caught.value)


def test_an_unknown_target_is_an_error():
    with pytest.raises(llvm.CompileError, match="no target"):
        llvm.compile_ir(ADD, HostTarget(arch="z80"))


def test_both_architectures_compile_on_any_machine():
    assert "ldr" in llvm.compile_ir_to_asm(ADD, generic_target("aarch64"))
    assert "addq" in llvm.compile_ir_to_asm(ADD, generic_target("x86_64"))


def test_wide_vectors_stay_wide():
    text = """define void @k(ptr %a, i64 %c, ptr %s) {
      %v = load <16 x float>, ptr %a, align 4
      %w = fadd <16 x float> %v, %v
      store <16 x float> %w, ptr %a, align 4
      ret void
    }"""
    target = HostTarget(cpu="sapphirerapids", vector_bytes=64, vector_registers=32)
    assert "zmm" in llvm.compile_ir_to_asm(text, target)


@pytest.mark.parametrize("level", [1, 2])
def test_the_passes_remove_stack_slots_and_do_not_unroll(level):
    text = """define void @k(ptr %a, i64 %n, ptr %s) {
    entry:
      %slot = alloca float
      store float 0.0, ptr %slot
      br label %loop
    loop:
      %i = phi i64 [0, %entry], [%i1, %loop]
      %p = getelementptr float, ptr %a, i64 %i
      %v = load float, ptr %p
      %old = load float, ptr %slot
      %new = fadd float %old, %v
      store float %new, ptr %slot
      %i1 = add i64 %i, 1
      %more = icmp ult i64 %i1, 1024
      br i1 %more, label %loop, label %done
    done:
      %r = load float, ptr %slot
      store float %r, ptr %a
      ret void
    }"""
    optimised = llvm.optimise_ir(text, level=level)
    assert "alloca" not in optimised
    assert optimised.count("fadd") == 1


def test_a_cached_object_is_the_same_and_imports_no_llvm(tmp_path):
    code = (
        "import sys; from tests.runtime.kernels import kernel, ADD; from aril.device import Device; "
        "Device['CPU'].load(kernel(ADD, 'add', 1, 1)); print('llvmlite' in sys.modules)"
    )
    env = {**os.environ, "ARIL_CACHE": str(tmp_path)}
    run = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True) for _ in range(2)]
    assert [one.stdout.strip() for one in run] == ["True", "False"], run[0].stderr + run[1].stderr


def test_objects_are_keyed_by_target():
    before = cache.disk_cache().stats().get("object", (0, 0))[0]
    text = ADD.replace("@add", "@keyed_by_target")
    objects = {llvm.compile_cached(text, target) for target in (host_target(), generic_target("aarch64"))}
    assert len(objects) == 2
    assert cache.disk_cache().stats()["object"][0] == before + 2


def test_host_features_name_this_cpu():
    cpu, features = llvm.host_features()
    assert cpu and features.startswith(("+", "-"))


@pytest.mark.skipif(host_target().arch != "x86_64", reason="levels of x86-64")
@pytest.mark.parametrize(("level", "none", "some"), [("x86-64-v2", "[yz]mm", "xmm"), ("x86-64-v3", "zmm", "xmm")])
def test_cpu_target_bounds_the_instructions(level, none, some):
    """In a process of its own, as the setting is read once: no wider register in the kernels, and right results."""
    out = subprocess.run(
        [sys.executable, "-c", PRODUCT],
        capture_output=True,
        text=True,
        env=os.environ | {"CPU_TARGET": level, "DEBUG": "7"},
    )
    assert out.returncode == 0, out.stderr
    assert "right" in out.stdout
    text = out.stdout + out.stderr
    assert re.search(some, text) and not re.search(none, text)


def test_a_long_block_takes_time_in_proportion():
    """Eight times the loads and stores: within 20 times the time (48 where each is compared with all before it)."""

    def seconds(turns):
        lines = [
            f"""%a{i} = getelementptr float, ptr %p, i64 {16 * i}
                %b{i} = getelementptr float, ptr %q, i64 {16 * i}
                %v{i} = load <16 x float>, ptr %a{i}, align 4
                store <16 x float> %v{i}, ptr %b{i}, align 4"""
            for i in range(turns)
        ]
        start = time.process_time()
        llvm.compile_ir("\n".join(["define void @k(ptr %p, ptr %q) {", *lines, "ret void", "}"]))
        return time.process_time() - start

    seconds(1)
    assert min(seconds(1000) for _ in range(2)) < 20 * min(seconds(125) for _ in range(3))
