"""A crash in a kernel ends with the kernel's name, whoever ran it, and the process still dies of the signal."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from aril.device import Device
from tests.runtime.kernels import kernel, ADD
bodies = {
    "segv": ("store volatile i32 0, ptr inttoptr (i64 64 to ptr)", 0),
    "nowhere": ("call void inttoptr (i64 64 to ptr)() store volatile i64 1, ptr %a", 1),
    "libc": ("call ptr inttoptr (i64 {memset} to ptr)(ptr inttoptr (i64 64 to ptr), i32 0, i64 999) "
             "store volatile i64 1, ptr %a", 1),
    "fpe": ("%z = load volatile i64, ptr %a %q = udiv i64 7, %z store volatile i64 %q, ptr %a", 1),
}
body, nvars = bodies[sys.argv[1]]
import ctypes
body = body.replace("{memset}", str(ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value))
text = "define void @E_4_wild(ptr %a, i64 %chunk, ptr %s) { " + body + " ret void }"
for i in range(5):
    Device["CPU"].load(kernel(ADD, "add", 1, 1))
program = Device["CPU"].load(kernel(text, "E_4_wild", 0, nvars))
others = [Device["CPU"].load(kernel(ADD, "add", 1, 1)) for i in range(5)]
program([], [0] * nvars, int(sys.argv[2]))
"""


@pytest.mark.parametrize("chunks", ["1", "64"])
@pytest.mark.parametrize("options", [[], ["-X", "faulthandler"]])
def test_a_crash_names_the_kernel(chunks, options):
    run = subprocess.run([sys.executable, *options, "-c", SCRIPT, "segv", chunks], capture_output=True, text=True)
    assert run.returncode == -signal.SIGSEGV
    assert "aril: kernel crashed: E_4_wild\n" in run.stderr
    assert ("Fatal Python error: Segmentation fault" in run.stderr) == bool(options)


@pytest.mark.skipif("__import__('platform').machine() != 'x86_64'", reason="AArch64 divides by zero without a fault")
def test_a_division_by_zero_names_the_kernel():
    run = subprocess.run([sys.executable, "-c", SCRIPT, "fpe", "1"], capture_output=True, text=True)
    assert run.returncode == -signal.SIGFPE
    assert "aril: kernel crashed: E_4_wild\n" in run.stderr


@pytest.mark.parametrize("what", ["nowhere", "libc"])
@pytest.mark.parametrize("chunks", ["1", "64"])
def test_a_crash_in_a_function_that_a_kernel_calls_names_the_kernel(what, chunks):
    run = subprocess.run([sys.executable, "-c", SCRIPT, what, chunks], capture_output=True, text=True)
    assert run.returncode == -signal.SIGSEGV
    assert "aril: kernel crashed: E_4_wild\naril: in a function that this kernel called\n" in run.stderr


def test_other_crashes_are_not_blamed_on_kernels():
    code = "from aril.device import Device; Device['CPU']; import ctypes; ctypes.string_at(64)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == -signal.SIGSEGV
    assert "kernel crashed" not in run.stderr
