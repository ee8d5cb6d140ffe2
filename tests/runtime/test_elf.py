"""The object loader: what LLVM emits runs; what is damaged is refused with ObjectError and nothing worse."""

import contextlib
import ctypes
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aril.runtime.elf import EM_AARCH64, ObjectError, external_symbol, load_object
from aril.runtime.llvm import compile_ir
from aril.runtime.target import generic_target, host_target

# Constants in .rodata, a call out of the object, a private function, a constant array, a pointer table, a jump table.
TEXT = """
@table = internal constant [4 x i32] [i32 10, i32 20, i32 30, i32 40], align 16
@entry_points = internal constant [2 x ptr] [ptr @twice, ptr @thrice]
declare double @cbrt(double)
declare ptr @memset(ptr, i32, i64)
define internal i64 @twice(i64 %x) noinline { %r = mul i64 %x, 2 ret i64 %r }
define internal i64 @thrice(i64 %x) noinline { %r = mul i64 %x, 3 ret i64 %r }
define void @kernel(ptr noalias %args, i64 %chunk, ptr %scratch) {
  %out = load ptr, ptr %args
  %i = and i64 %chunk, 3
  %tp = getelementptr i32, ptr @table, i64 %i
  %t32 = load i32, ptr %tp
  %t = zext i32 %t32 to i64
  %which = and i64 %chunk, 1
  %ep = getelementptr ptr, ptr @entry_points, i64 %which
  %f = load ptr, ptr %ep
  %m = call i64 %f(i64 %t)
  store i64 %m, ptr %out
  %x = sitofp i64 %chunk to double
  %root = call double @cbrt(double %x)
  %scaled = fmul double %root, 0x400921FB54442D18
  %p1 = getelementptr i64, ptr %out, i64 1
  store double %scaled, ptr %p1
  %p2 = getelementptr i64, ptr %out, i64 2
  call ptr @memset(ptr %p2, i32 255, i64 %chunk)
  ret void
}
"""


@pytest.fixture(scope="module")
def obj() -> bytes:
    return compile_ir(TEXT)


def test_code_data_pointers_and_calls_are_relocated(obj):
    loaded = load_object(obj)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(loaded.symbols["kernel"])
    for chunk, table in ((0, 20), (1, 60), (2, 60), (8, 20), (27, 120)):
        out = (ctypes.c_ubyte * 64)()
        args = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        call(ctypes.addressof(args), chunk, None)
        number, root = struct.unpack_from("<qd", out)
        assert number == table
        assert root == pytest.approx(chunk ** (1 / 3) * 3.141592653589793, rel=1e-15)
        assert bytes(out[16:]) == b"\xff" * chunk + bytes(48 - chunk)


def test_code_is_not_writable(obj):
    loaded = load_object(obj)
    address = loaded.symbols["kernel"]
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= address < high:
                assert line.split()[1].startswith("r-x")
                return
    pytest.fail("the code is not mapped")


def test_memory_goes_back_with_the_object(obj):
    loaded = load_object(obj)
    page = f"{loaded.symbols['kernel'] & -4096:x}-"
    del loaded
    with open("/proc/self/maps") as maps:
        assert not any(line.startswith(page) and "r-x" in line for line in maps)


def test_loading_needs_no_llvm(obj, tmp_path):
    (tmp_path / "k.o").write_bytes(obj)
    code = (
        "import sys; from aril.runtime.elf import load_object; "
        "load_object(open(sys.argv[1], 'rb').read()); assert 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "k.o")], check=True)


def test_a_missing_symbol_is_named():
    with pytest.raises(ObjectError, match="no_such_function"):
        load_object(
            compile_ir("declare void @no_such_function()\ndefine void @k() { call void @no_such_function() ret void }")
        )
    with pytest.raises(ObjectError, match="_handle"):
        external_symbol("_handle")  # an attribute of ctypes' library objects, not a symbol


def test_objects_of_another_machine_are_refused(obj):
    other = "aarch64" if host_target().arch == "x86_64" else "x86_64"
    with pytest.raises(ObjectError, match="for machine"):
        load_object(compile_ir(TEXT, generic_target(other)))


def test_aarch64_relocations_decode_to_the_right_addresses():
    """Fields per AAELF64 section 5.7, checked by decoding the patched ADRP and LDR/ADD pairs by hand."""
    text = """
    @table = constant [4 x i64] [i64 1, i64 2, i64 3, i64 4], align 32
    define i64 @get(i64 %i) {
      %p = getelementptr i64, ptr @table, i64 %i
      %v = load i64, ptr %p
      ret i64 %v
    }
    """
    loaded = load_object(compile_ir(text, generic_target("aarch64")), EM_AARCH64)
    code = struct.unpack("<4I", ctypes.string_at(loaded.symbols["get"], 16))
    at = next(i for i, word in enumerate(code) if word & 0x9F000000 == 0x90000000)  # ADRP
    pages = (code[at] >> 29 & 3) | (code[at] >> 5 & 0x7FFFF) << 2
    base = (loaded.symbols["get"] + 4 * at & -4096) + (pages << 12)
    second = next(word for word in code[at + 1 :] if word & 0xFFC00000 in (0x91000000, 0xF9400000))
    low = second >> 10 & 0xFFF
    if second & 0xFFC00000 == 0x91000000:  # ADD: the table itself
        assert base + low == loaded.symbols["table"]
    else:  # LDR from the linkage table
        slot = base + (low << 3)
        assert struct.unpack("<Q", ctypes.string_at(slot, 8))[0] == loaded.symbols["table"]


@given(st.data())
def test_damaged_objects_never_do_worse_than_object_error(obj, data):
    damaged = bytearray(obj)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    with contextlib.suppress(ObjectError):
        load_object(bytes(damaged))


def test_every_byte_of_the_tables_may_be_damaged(obj):
    (offset,) = struct.unpack_from("<Q", obj, 40)
    for at in [*range(64), *range(offset, len(obj))]:
        for value in (0, 0xFF, obj[at] ^ 0x80):
            try:
                load_object(obj[:at] + bytes([value]) + obj[at + 1 :])
            except ObjectError:
                continue


@pytest.mark.parametrize("size", [0, 1, 15, 63, 64, 200])
def test_truncated_objects_are_refused(obj, size):
    with pytest.raises(ObjectError):
        load_object(obj[:size])
